// Sources: flashstep/train/metrics_log.cc
// Any bytes as metrics.jsonl: refused with UserError, or cut to a file of which every line is kept
// when it is opened and cut again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <unistd.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/train/metrics_log.h"

namespace {

struct TemporaryFile {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     flashstep::str("flashstep_metrics_fuzz_", ::getpid());
  ~TemporaryFile() { std::filesystem::remove(path); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TemporaryFile file;
  std::ofstream(file.path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const int64_t last = flashstep::MetricsLog(file.path).truncate_after(5);
    if (last > 5) std::abort();
    const std::string kept = flashstep::read_file(file.path);
    if (!text.starts_with(kept)) std::abort();
    flashstep::MetricsLog again(file.path);
    if (again.truncate_after(5) != last || flashstep::read_file(file.path) != kept) std::abort();
  } catch (const flashstep::UserError&) {
  }
  return 0;
}
