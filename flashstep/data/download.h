// Files from the network: resumable, checked, there under their name only when whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "flashstep/base/progress.h"

namespace flashstep {

struct DownloadOptions {
  // What the file is known to be; a server that says or sends otherwise is refused.
  std::optional<uint64_t> size_bytes;
  int attempts = 6;                // in all; only failures that may pass are tried again
  double first_pause_seconds = 1;  // before the second attempt, then doubled
  ProgressFunction progress;       // bytes
};

// Fetches an http or https `url`, redirects followed, into `path`. Bytes gather in
// `path` + ".partial", which outlives a failure: the next call asks for the rest only (Range).
// The content is held against the size in `options`, and against the size and SHA-256 that Hugging
// Face sends for large files (X-Linked-Size, X-Linked-Etag).
// MachineError, naming the server, when it cannot be reached, sends something else, or the disk is
// full; Interrupted when a SignalGuard caught SIGINT or SIGTERM.
// True if the server sent a SHA-256 and the content has it; false if it sent none.
// MachineError where libflashstep_tools, which fetches (tools/download.cc), is not linked.
bool download(const std::string& url, const std::filesystem::path& path,
              const DownloadOptions& options);

// Who fetches for download(), from the loading of that library on.
using DownloadFunction = bool (*)(const std::string& url, const std::filesystem::path& path,
                                  const DownloadOptions& options);
void set_downloader(DownloadFunction function);

}  // namespace flashstep
