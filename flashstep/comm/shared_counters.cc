#include "flashstep/comm/shared_counters.h"

#include <cerrno>
#include <fcntl.h>
#include <new>
#include <random>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "flashstep/base/text.h"

namespace flashstep {
namespace {

// So far apart that no two are in one line of a cache.
constexpr size_t kBytesApart = 128;
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
static_assert(std::atomic<uint32_t>::is_always_lock_free);

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

uint64_t random_word() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device() | 1;
}

void* map(int descriptor, size_t bytes) {
  if (descriptor < 0) return nullptr;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

// Rank 0 makes a file without a name, and the others open it by its place in /proc. Where that is
// another file, or none, the word at its end tells.
std::unique_ptr<SharedCounters> SharedCounters::make(const Group& group, int kinds) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t needed = kBytesApart * kinds * group.world_size() + sizeof(uint64_t);
  const size_t bytes = (needed + page - 1) / page * page;
  const size_t word_at = bytes - sizeof(uint64_t);
  void* memory = nullptr;
  bool is_ours = false;
  std::string path;
  uint64_t word = 0;
  const Descriptor made(group.is_first() ? memfd_create("flashstep-counters", MFD_CLOEXEC) : -1);
  if (made.get() >= 0 && ftruncate(made.get(), static_cast<off_t>(bytes)) == 0) {
    memory = map(made.get(), bytes);
    is_ours = memory != nullptr;
  }
  if (is_ours) {
    word = random_word();
    *reinterpret_cast<uint64_t*>(static_cast<char*>(memory) + word_at) = word;
    path = str("/proc/", getpid(), "/fd/", made.get(), " ", word);
  }
  std::istringstream told(group.broadcast(path));
  told >> path >> word;
  if (!group.is_first() && !path.empty()) {
    const Descriptor opened(open(path.c_str(), O_RDWR | O_CLOEXEC));
    // A smaller file would end the process when it is read.
    const off_t end = opened.get() < 0 ? 0 : lseek(opened.get(), 0, SEEK_END);
    if (end == static_cast<off_t>(bytes)) memory = map(opened.get(), bytes);
    is_ours = memory != nullptr &&
              *reinterpret_cast<uint64_t*>(static_cast<char*>(memory) + word_at) == word;
  }
  std::unique_ptr<SharedCounters> counters;
  if (memory != nullptr) counters.reset(new SharedCounters(memory, bytes, group.world_size()));
  if (group.all_reduce(int64_t{is_ours}, Reduce::kMin) == 0) return nullptr;
  return counters;
}

SharedCounters::~SharedCounters() { munmap(memory_, bytes_); }

std::atomic<uint32_t>& SharedCounters::at(int kind, int rank) const {
  const size_t place = kBytesApart * (static_cast<size_t>(kind) * world_size_ + rank);
  return *reinterpret_cast<std::atomic<uint32_t>*>(static_cast<char*>(memory_) + place);
}

}  // namespace flashstep
