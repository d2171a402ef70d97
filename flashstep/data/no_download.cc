// The twin of download.cc for builds without libcurl.
#include "flashstep/base/error.h"
#include "flashstep/data/download.h"

namespace flashstep {

bool download(const std::string& url, const std::filesystem::path& path, const DownloadOptions&) {
  throw MachineError(str("[download] this build cannot fetch files: get ", url,
                         " with another program and put it at ", path.string()));
}

}  // namespace flashstep
