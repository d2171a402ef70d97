// A disk without room, for tests.
#pragma once

#include <csignal>
#include <sys/resource.h>

namespace flashstep::testing {

// Files of this process end at so many bytes, as on a disk that is full.
struct FullDisk {
  rlimit before = {};
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    rlimit limit = before;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
};

}  // namespace flashstep::testing
