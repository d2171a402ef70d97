#include "flashstep/report/document/measured_version.h"

#include "flashstep/base/text.h"

namespace flashstep::report {

std::string describe(const MeasuredVersion& version) {
  return str(version.commit.empty() ? "" : "commit " + version.commit + ", ", "sources ",
             version.sources.substr(0, 10));
}

}  // namespace flashstep::report
