// Which code measured: a result is not taken for that of other code. Texts and layout of the
// report (report/document/) are no part of it: they may change without measuring anew.
#pragma once

#include <string>

namespace flashstep::report {

struct MeasuredVersion {
  std::string commit;   // "1a2b3c4d5e", with a + where files had been changed; empty without git
  std::string sources;  // hash of all sources of the library but tests and report/document/
};

// Of this program, taken when it was built (cmake/FlashstepMeasuredVersion.cmake).
MeasuredVersion measured_version();

std::string describe(const MeasuredVersion& version);  // "commit 1a2b3c4d5e, sources 0123456789"

}  // namespace flashstep::report
