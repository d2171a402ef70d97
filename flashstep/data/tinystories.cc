#include "flashstep/data/tinystories.h"

#include <cstdlib>

#include "flashstep/base/text.h"
#include "flashstep/data/download.h"
#include "flashstep/data/manifest.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPublisher =
    "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/main";
// Sizes as the publisher's file list shows them.
constexpr uint64_t kTrainBytes = 2'227'753'162, kValidationBytes = 22'502'601;

Stage stage_of(const RemoteFile& file, const fs::path& path) {
  return {"fetch", {{"file", file.name}}, {}, {path}};
}

// UserError when the file that is there is not the one that was, or has to be, fetched. Whether its
// manifest is there.
bool check_present(const RemoteFile& file, const fs::path& path) {
  const fs::path manifest = manifest_path(path);
  std::error_code error;
  if (fs::exists(manifest, error)) {
    const Verdict verdict = holds(manifest, stage_of(file, path));
    require(verdict.holds, "[fetch] expected ", path.string(), " as it was fetched, but ",
            verdict.why, ": remove it to fetch it again");
    return true;
  }
  const uint64_t size = fs::file_size(path, error);
  require(!error, "[fetch] cannot read ", path.string(), ": ", error.message());
  require(size == file.size_bytes.value_or(size), "[fetch] expected ",
          with_commas(static_cast<int64_t>(file.size_bytes.value_or(0))), " bytes in ",
          path.string(), ", got ", with_commas(static_cast<int64_t>(size)),
          ": remove it to fetch it again");
  return false;
}

}  // namespace

TinyStories tinystories(std::string base_url) {
  if (base_url.empty()) {
    const char* variable = std::getenv("FLASHSTEP_TINYSTORIES_URL");
    base_url = variable != nullptr && *variable != '\0' ? variable : kPublisher;
  }
  while (base_url.ends_with('/')) base_url.pop_back();
  const auto file = [&](const char* name, uint64_t size) {
    const bool known = base_url == kPublisher;
    return RemoteFile{name, base_url + "/" + name,
                      known ? std::optional<uint64_t>(size) : std::nullopt};
  };
  return {file("TinyStoriesV2-GPT4-train.txt", kTrainBytes),
          file("TinyStoriesV2-GPT4-valid.txt", kValidationBytes)};
}

fs::path fetch(const RemoteFile& file, const fs::path& directory, const ProgressFunction& progress,
               const std::function<void(const std::string&)>& say) {
  fs::path path = directory / file.name;
  std::error_code error;
  if (!fs::exists(path, error)) {
    make_directories(directory);
    DownloadOptions options;
    options.size_bytes = file.size_bytes;
    options.progress = progress;
    fs::remove(manifest_path(path), error);  // it speaks of a file that is gone
    if (!download(file.url, path, options) && say) {
      say(str("[fetch] ", file.url, " came without a SHA-256: only the size of ", path.string(),
              " was checked"));
    }
  }
  if (!check_present(file, path)) write_manifest(manifest_path(path), stage_of(file, path));
  return path;
}

fs::path fetched(const RemoteFile& file, const fs::path& directory) {
  fs::path path = directory / file.name;
  std::error_code error;
  require(fs::exists(path, error), "[fetch] expected ", path.string(),
          " to have been fetched, but it is missing");
  check_present(file, path);
  return path;
}

}  // namespace flashstep
