#include "flashstep/data/download.h"

#include "flashstep/error.h"

namespace flashstep {
namespace {

DownloadFunction downloader = nullptr;

}  // namespace

bool download(const std::string& url, const std::filesystem::path& path,
              const DownloadOptions& options) {
  if (downloader != nullptr) return downloader(url, path, options);
  throw MachineError(str("[download] this program cannot fetch files: get ", url,
                         " with another one and put it at ", path.string()));
}

void set_downloader(DownloadFunction function) { downloader = function; }

}  // namespace flashstep
