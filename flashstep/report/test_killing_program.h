// A flashstep one of whose processes is killed.
#pragma once

#include <filesystem>
#include <string>
#include <unistd.h>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"

namespace flashstep::report {

// A script that runs `program`, but in a rank whose task has `words` kills its own process.
class KillingProgram {
 public:
  KillingProgram(const std::string& program, const std::string& words, const std::string& signal)
      : path_(std::filesystem::temp_directory_path() / str("flashstep_killed_", getpid())) {
    write_file(path_,
               str("#!/bin/sh\nif [ -n \"$RANK\" ]; then case \"$FLASHSTEP_BENCH_TASK\" in *'",
                   words, "'*) kill -", signal, " $$ ;; esac; fi\nexec '", program, "' \"$@\"\n"));
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
  ~KillingProgram() {
    std::error_code error;
    std::filesystem::remove(path_, error);
  }
  KillingProgram(const KillingProgram&) = delete;
  KillingProgram& operator=(const KillingProgram&) = delete;

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace flashstep::report
