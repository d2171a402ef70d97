// A folder of one's own among the system's temporary ones.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "flashstep/error.h"

namespace flashstep {

// Goes, with what lies in it, when this does. MachineError where none can be made.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "flashstep_XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr)
      throw_errno(errno, "cannot create a folder like " + path);
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace flashstep
