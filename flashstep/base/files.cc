#include "flashstep/detail/files.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "flashstep/base/unfinished.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

// Large enough that a write call costs little beside the copy, small beside any file worth
// streaming.
constexpr size_t kBufferBytes = 1 << 20;
constexpr size_t kWritebackBytes = size_t{32} << 20;  // that a disk is told of at a time

void write_all(int descriptor, const char* data, size_t size, int64_t offset,
               const std::filesystem::path& path) {
  while (size > 0) {
    const ssize_t written =
        offset < 0 ? ::write(descriptor, data, size) : ::pwrite(descriptor, data, size, offset);
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_errno(errno, str("cannot write ", path));
    }
    data += written;
    size -= static_cast<size_t>(written);
    if (offset >= 0) offset += written;
  }
}

constexpr std::string_view kTemporary = ".tmp-";
constexpr size_t kLongestName = 255 - 40;  // of a file's 255 bytes, beside what is put around it

// The part of the file's name that the names of its temporary files have.
std::string name_in_temporary(const std::filesystem::path& path) {
  return path.filename().string().substr(0, kLongestName);
}

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  static std::atomic<uint64_t> counter{0};
  return path.parent_path() /
         str(".", name_in_temporary(path), kTemporary, ::getpid(), "-", counter.fetch_add(1));
}

// Takes the digits from the end of `text`; false if there are none.
bool take_number(std::string_view& text) {
  const size_t size = text.find_last_not_of("0123456789") + 1;
  const bool has_digits = size < text.size();
  text = text.substr(0, size);
  return has_digits;
}

// Temporary files are locked by the process that writes them, and a lock dies with its process: one
// that can be locked was left by a process that was killed.
void remove_abandoned(const std::filesystem::path& path) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::error_code ignored;  // what cannot be listed or removed harms nobody
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const std::string_view finished = name_when_finished(name);
    if (finished == name || finished != name_in_temporary(path)) continue;
    // A link or a pipe is nobody's temporary file; opening a pipe would wait for its writer.
    const int descriptor =
        ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) continue;
    struct stat status {};
    if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
        ::flock(descriptor, LOCK_EX | LOCK_NB) == 0) {
      ::unlink(entry.path().c_str());
    }
    ::close(descriptor);
  }
}

// Whether the new temporary file is ours: another process may have taken it for abandoned before it
// was locked. (Where the file system knows no locks, nobody takes one for abandoned.)
bool lock_new(int descriptor) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && status.st_nlink > 0;
}

int open_for_reading(const std::filesystem::path& path, int flags = 0) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (descriptor >= 0) return descriptor;
  const int error = errno;
  const std::string sentence = str("cannot read ", path, ": ", std::strerror(error));
  if (error == EACCES || error == EPERM) throw ForbiddenFile(sentence);
  const bool is_no_file = error == ENOENT || error == ENOTDIR || error == ELOOP ||
                          error == ENAMETOOLONG || error == ENXIO || error == ENODEV;
  if (is_no_file) throw UserError(sentence);
  throw MachineError(sentence);
}

// Closes the descriptor that it is given, whatever happens next.
struct Descriptor {
  explicit Descriptor(int value) : value(value) {}
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value;
};

struct stat file_status(int descriptor, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw_errno(errno, str("cannot examine ", path));
  require(!S_ISDIR(status.st_mode), "expected a file, got the directory ", path);
  return status;
}

// What a symbolic link stands for, there or not: the link stays, its target is written.
std::filesystem::path target_of(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as the kernel has it
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(path, error); ++links) {
    if (links == kMostLinks) throw_errno(ELOOP, str("cannot create ", path));
    const auto target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / target;  // an absolute target stands alone
  }
  return path;
}

}  // namespace

std::string_view name_when_finished(std::string_view name) {
  std::string_view rest = name;
  const bool is_temporary = rest.starts_with('.') && take_number(rest) && rest.ends_with('-') &&
                            (rest.remove_suffix(1), take_number(rest)) &&
                            rest.ends_with(kTemporary) && rest.size() > kTemporary.size() + 1;
  return is_temporary ? rest.substr(1, rest.size() - 1 - kTemporary.size()) : name;
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(target_of(std::move(path))) {
  remove_abandoned(path_);
  while (true) {
    temporary_ = temporary_name(path_);
    // Before there is a file: a signal may come at once.
    unfinished_ = std::make_unique<Unfinished>(temporary_.c_str());
    descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor_ < 0 && errno == EEXIST) continue;  // of a process of this number elsewhere
    if (descriptor_ < 0) throw_errno(errno, str("cannot create ", path_));
    if (lock_new(descriptor_)) break;
    ::close(descriptor_);
  }
  struct stat before {};  // what only its owner may read stays so
  if (::stat(path_.c_str(), &before) == 0)
    static_cast<void>(::fchmod(descriptor_, before.st_mode & 0777));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t size_bytes) {
  const char* bytes = static_cast<const char*>(data);
  if (buffer_.size() + size_bytes > kBufferBytes) flush();
  if (size_bytes >= kBufferBytes) {
    put(bytes, size_bytes);
  } else {
    buffer_.append(bytes, size_bytes);
  }
  size_bytes_ += size_bytes;
}

void AtomicFile::overwrite(uint64_t offset, const void* data, size_t size_bytes) {
  require(offset + size_bytes <= size_bytes_, "[AtomicFile] expected to overwrite within the ",
          size_bytes_, " bytes written, got ", offset, " + ", size_bytes);
  flush();
  write_all(descriptor_, static_cast<const char*>(data), size_bytes, static_cast<int64_t>(offset),
            path_);
}

void AtomicFile::flush() {
  put(buffer_.data(), buffer_.size());
  buffer_.clear();
}

// The disk begins with what is there: the kernel alone waits until a tenth of the memory is full of
// what is to be written, or for fsync, while a disk that writes a gigabyte a second is idle.
void AtomicFile::put(const char* bytes, size_t size_bytes) {
  for (size_t done = 0; done < size_bytes;) {
    const size_t now = std::min(size_bytes - done, kWritebackBytes);
    write_all(descriptor_, bytes + done, now, -1, path_);
    done += now;
    put_bytes_ += now;
    if (put_bytes_ - begun_bytes_ < kWritebackBytes) continue;
    static_cast<void>(::sync_file_range(descriptor_, static_cast<off64_t>(begun_bytes_),
                                        static_cast<off64_t>(put_bytes_ - begun_bytes_),
                                        SYNC_FILE_RANGE_WRITE));  // a hint
    begun_bytes_ = put_bytes_;
  }
}

void AtomicFile::sync() {
  flush();
  if (::fsync(descriptor_) != 0) throw_errno(errno, str("cannot flush ", path_));
}

void AtomicFile::commit() {
  sync();
  const int renamed = ::rename(temporary_.c_str(), path_.c_str());
  const int error = errno;
  unfinished_.reset();
  // Closed, and so unlocked, only now: an unlocked temporary file would count as abandoned.
  ::close(std::exchange(descriptor_, -1));
  if (renamed != 0) {
    ::unlink(temporary_.c_str());
    throw_errno(error, str("cannot finish ", path_));
  }
  sync_directory(path_.parent_path());
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_files(const std::vector<FileContents>& files) {
  std::deque<AtomicFile> written;
  for (const auto& [path, bytes] : files) {
    written.emplace_back(path).write(bytes);
    written.back().sync();
  }
  for (AtomicFile& file : written) file.commit();
}

std::string read_file(const std::filesystem::path& path) {
  const Descriptor file(open_for_reading(path));
  const struct stat status = file_status(file.value, path);
  std::string bytes;
  bytes.reserve(static_cast<size_t>(status.st_size) + 1);
  char chunk[1 << 16];
  while (true) {  // not by st_size: pipes and /proc files have none
    const ssize_t got = ::read(file.value, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(errno, str("cannot read ", path));
    if (got == 0) return bytes;
    bytes.append(chunk, static_cast<size_t>(got));
  }
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: a pipe is refused here, not when somebody writes into it.
  Descriptor file(open_for_reading(path, O_NONBLOCK));
  const struct stat status = file_status(file.value, path);
  // A pipe has no size, and would count as empty.
  require(S_ISREG(status.st_mode), "expected a regular file, got ", path,
          ", a pipe or device: write what it gives into a file first");
  size_bytes_ = static_cast<size_t>(status.st_size);
  if (size_bytes_ == 0) return;  // an empty mapping is refused by the kernel
  void* mapped = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (mapped == MAP_FAILED) throw_errno(errno, str("cannot map ", path));
  data_ = static_cast<const char*>(mapped);
  descriptor_ = std::exchange(file.value, -1);
}

MappedFile::~MappedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_bytes_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

void MappedFile::check_size() const {
  struct stat status {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) return;
  const auto now = static_cast<size_t>(status.st_size);
  if (now >= size_bytes_) return;
  throw MachineError(str("expected ", path_, " to keep its ", size_bytes_,
                         " bytes while it is read, got ", now, ": somebody cut it short"));
}

void MappedFile::release_before(size_t offset) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t whole_pages = offset / page * page;
  if (data_ != nullptr && whole_pages > 0) {
    ::madvise(const_cast<char*>(data_), std::min(whole_pages, size_bytes_), MADV_DONTNEED);
  }
}

FileLock::FileLock(const std::filesystem::path& path, const std::string& busy_message)
    : path_(path) {
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (descriptor_ < 0 && errno == ELOOP) {
    throw MachineError(str("expected a file for the lock ", path, ", got a symbolic link"));
  }
  if (descriptor_ < 0) throw_errno(errno, str("cannot create ", path));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::close(descriptor_);
    require(error != EWOULDBLOCK, busy_message);
    throw_errno(error, str("cannot lock ", path));
  }
}

FileLock::~FileLock() { ::close(descriptor_); }

bool is_locked(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return false;
  // A shared one: a network's file system gives no other one for reading.
  const bool is_held = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return is_held;
}

void FileLock::write(std::string_view text) {
  write_all(descriptor_, text.data(), text.size(), 0, path_);
  if (::ftruncate(descriptor_, static_cast<off_t>(text.size())) != 0) {
    throw_errno(errno, str("cannot shorten ", path_));
  }
}

void make_directories(const std::filesystem::path& path) {
  std::error_code error;
  require(!path.empty(), "expected the name of a directory, got an empty one");
  std::filesystem::create_directories(path, error);
  if (!error) return;
  const bool is_link = error == std::errc::file_exists && std::filesystem::is_symlink(path);
  throw MachineError(str("cannot create directory ", path, ": ",
                         is_link ? "it is a symbolic link that leads nowhere" : error.message()));
}

void sync_directory(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory.empty() ? "." : directory;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_errno(errno, str("cannot open directory ", path));
  const Descriptor holder(descriptor);
  // EINVAL: a file system that keeps no directory entries of its own to flush.
  if (::fsync(descriptor) != 0 && errno != EINVAL) throw_errno(errno, str("cannot flush ", path));
}

}  // namespace flashstep
