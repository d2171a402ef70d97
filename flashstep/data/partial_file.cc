#include "flashstep/data/partial_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "flashstep/detail/files.h"
#include "flashstep/error.h"

namespace flashstep {

namespace {

// Whether `path` still is the open file: the process that wrote it may just have finished it, and
// it has its final name.
bool is_still(const std::filesystem::path& path, int descriptor) {
  struct stat opened {
  }, there{};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &there) == 0 &&
         opened.st_dev == there.st_dev && opened.st_ino == there.st_ino;
}

}  // namespace

PartialFile::PartialFile(const std::filesystem::path& path) : path_(path) {
  while (true) {
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) throw_errno(errno, str("cannot create ", path.string()));
    // The lock dies with the process: two of them would interleave their bytes.
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      ::close(descriptor_);
      throw MachineError(str("another process is writing ", path.string()));
    }
    if (is_still(path, descriptor_)) break;
    ::close(descriptor_);
  }
  const off_t end = ::lseek(descriptor_, 0, SEEK_END);
  size_bytes_ = end > 0 ? static_cast<uint64_t>(end) : 0;
}

PartialFile::~PartialFile() {
  if (size_bytes_ == 0 && !finished_) ::unlink(path_.c_str());  // nothing worth keeping
  ::close(descriptor_);
}

int PartialFile::append(const char* data, size_t size_bytes) {
  while (size_bytes > 0) {
    const ssize_t written = ::write(descriptor_, data, size_bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    data += written;
    size_bytes -= static_cast<size_t>(written);
    size_bytes_ += static_cast<uint64_t>(written);
  }
  return 0;
}

int PartialFile::clear() {
  if (::ftruncate(descriptor_, 0) != 0) return errno;
  ::lseek(descriptor_, 0, SEEK_SET);
  size_bytes_ = 0;
  return 0;
}

void PartialFile::finish(const std::filesystem::path& final_path) {
  if (::fsync(descriptor_) != 0) throw_errno(errno, str("cannot flush ", path_.string()));
  std::error_code error;
  std::filesystem::rename(path_, final_path, error);
  if (error) throw_errno(error.value(), str("cannot finish ", final_path.string()));
  finished_ = true;
  sync_directory(final_path.parent_path());
}

}  // namespace flashstep
