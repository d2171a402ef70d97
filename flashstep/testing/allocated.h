// How many bytes of tensors LibTorch's CPU allocator has given out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "flashstep/base/error.h"

namespace flashstep::testing {

// Of the whole process, from its making on; one at a time. Tensors that were there before and go
// away are not counted. An allocator in front of LibTorch's, since LibTorch's own reports come by
// thread: of a tensor that a thread of Gloo's is the last to let go, none says that it is freed.
class Allocated {
 public:
  Allocated() : allocator_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(&allocator_); }
  ~Allocated() { c10::SetCPUAllocator(allocator_.inner); }
  Allocated(const Allocated&) = delete;
  Allocated& operator=(const Allocated&) = delete;

  int64_t bytes() const {
    const std::lock_guard lock(ledger().mutex);
    return allocator_.count->now;
  }
  int64_t peak_bytes() const {
    const std::lock_guard lock(ledger().mutex);
    return allocator_.count->peak;
  }
  // From now on the peak is that of what is to come.
  void reset_peak() {
    const std::lock_guard lock(ledger().mutex);
    allocator_.count->peak = allocator_.count->now;
  }

 private:
  struct Count {
    int64_t now = 0, peak = 0;
  };
  struct Block {  // may outlive the object that counts it
    std::shared_ptr<Count> count;
    int64_t bytes;
    c10::DeleterFnPtr release;
  };
  struct Ledger {
    std::mutex mutex;
    std::unordered_map<void*, Block> blocks;
  };
  struct Allocator : c10::Allocator {
    explicit Allocator(c10::Allocator* allocator) : inner(allocator) {
      require(raw_deleter() != inner->raw_deleter(),
              "[testing] expected one Allocated at a time, got a second");
    }
    c10::DataPtr allocate(size_t size) override {
      void* const address = inner->raw_allocate(size);
      if (address != nullptr) {
        const std::lock_guard lock(ledger().mutex);
        const auto bytes = static_cast<int64_t>(size);
        ledger().blocks[address] = {count, bytes, inner->raw_deleter()};
        count->now += bytes;
        count->peak = std::max(count->peak, count->now);
      }
      return {address, address, raw_deleter(), c10::Device(c10::kCPU)};
    }
    // LibTorch asks its CPU allocator for memory without a context of ours, too.
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void* to, const void* from, size_t size) const override {
      default_copy_data(to, from, size);
    }
    c10::Allocator* inner;
    std::shared_ptr<Count> count = std::make_shared<Count>();
  };

  static Ledger& ledger() {
    static auto* const ledger = new Ledger;  // tensors may go after all statics
    return *ledger;
  }
  static void release(void* address) {
    c10::DeleterFnPtr release = nullptr;
    {
      const std::lock_guard lock(ledger().mutex);
      const auto found = ledger().blocks.find(address);
      found->second.count->now -= found->second.bytes;
      release = found->second.release;
      ledger().blocks.erase(found);
    }
    release(address);
  }

  Allocator allocator_;
};

}  // namespace flashstep::testing
