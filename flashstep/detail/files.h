// Files that are written whole or not at all, read without copying, and locked while in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flashstep/error.h"

namespace flashstep {

class Unfinished;

// A file that is there, and that this user may not read.
class ForbiddenFile : public UserError {
 public:
  using UserError::UserError;
};

// A file that appears under its name only when it is complete: bytes go to a temporary name in the
// same folder; commit() flushes and fsyncs it, renames it over `path` and fsyncs the folder.
// Destroyed without commit(), it leaves nothing behind; what a killed process left is removed by
// the next that writes the same file. A symbolic link is written through; a file that is replaced
// leaves its permissions. Every failure throws MachineError with the path and the reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t size_bytes);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  // Overwrites `size_bytes` at `offset`, which must have been written before (for headers known
  // last).
  void overwrite(uint64_t offset, const void* data, size_t size_bytes);
  uint64_t size_bytes() const { return size_bytes_; }
  // Flushes and fsyncs what was written, still under the temporary name: commit() then needs no
  // more room on the disk.
  void sync();
  void commit();

 private:
  void flush();
  void put(const char* bytes, size_t size_bytes);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::unique_ptr<Unfinished> unfinished_;  // temporary_
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
  std::string buffer_;
  uint64_t put_bytes_ = 0, begun_bytes_ = 0;  // given to the kernel; which the disk writes by now
};

// The name that a temporary file of an AtomicFile gets, x of .x.tmp-12-3; any other `name` itself.
std::string_view name_when_finished(std::string_view name);

// AtomicFile in one call.
void write_file(const std::filesystem::path& path, std::string_view bytes);

struct FileContents {
  std::filesystem::path path;
  std::string bytes;
};

// Files that belong together: all are complete on the disk before the first one gets its name, so a
// full disk changes none of them. They get their names in their order.
void write_files(const std::vector<FileContents>& files);

// The whole file. UserError if it is missing or no file, ForbiddenFile, which is one, if it may not
// be read; MachineError if the machine cannot read it.
std::string read_file(const std::filesystem::path& path);

// The file's bytes, mapped read-only. Throws as read_file().
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const char* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  std::string_view bytes() const { return {data_, size_bytes_}; }
  // MachineError if the file is shorter now than when it was mapped: what was cut off would be read
  // as zeros, or end the process by SIGBUS. A new file under the same name is another one.
  void check_size() const;
  // Tells the kernel that [0, offset) is not needed again soon, which keeps resident memory
  // bounded.
  void release_before(size_t offset) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  const char* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// An exclusive lock on `path` (created if missing) that dies with the process (flock).
class FileLock {
 public:
  // UserError(`busy_message`) when another process holds it.
  FileLock(const std::filesystem::path& path, const std::string& busy_message);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // What the locked file holds from now on, by which others know whose it is. MachineError if that
  // cannot be written.
  void write(std::string_view text);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

// Whether another FileLock holds `path`.
bool is_locked(const std::filesystem::path& path);

// Creates the directory and its parents; MachineError with the reason if that fails.
void make_directories(const std::filesystem::path& path);

// Makes renames and removals in `directory` durable (fsync of the directory).
void sync_directory(const std::filesystem::path& directory);

}  // namespace flashstep
