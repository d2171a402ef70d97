// A file that is still arriving: it grows across processes until it is whole. (Not an AtomicFile,
// which leaves nothing behind when its process ends.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace flashstep {

class PartialFile {
 public:
  // Opens what an earlier process left, or creates an empty file. MachineError if that fails.
  explicit PartialFile(const std::filesystem::path& path);
  ~PartialFile();  // keeps the file unless it is empty
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }

  // Both return 0 or the number of the error: they are called from C code, which no exception
  // may cross.
  int append(const char* data, size_t size_bytes);
  int clear();

  // Makes the bytes durable and renames the file. MachineError if that fails.
  void finish(const std::filesystem::path& final_path);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
  bool finished_ = false;
};

}  // namespace flashstep
