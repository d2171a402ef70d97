#include "flashstep/train/tensor_memory.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "flashstep/base/heap.h"

namespace flashstep {
namespace {

constexpr size_t kAlignment = 64;  // c10/core/alignment.h: enough for AVX-512
constexpr size_t kMostBytes = std::numeric_limits<ptrdiff_t>::max() - kAlignment;

// What malloc gave stands in the 8 bytes before the tensor's: blocks begin at multiples of 16.
void*& given_before(void* data) { return static_cast<void**>(data)[-1]; }

void release(void* data) {
  if (data == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(data);
  std::free(given_before(data));
}

class AlignedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    void* const given = bytes > kMostBytes ? nullptr : std::malloc(bytes + kAlignment);
    TORCH_CHECK_WITH(OutOfMemoryError, given != nullptr,
                     "can't allocate memory: you tried to allocate ", bytes, " bytes");
    const auto address = reinterpret_cast<uintptr_t>(given);
    void* const data =
        static_cast<char*>(given) + (kAlignment - address % kAlignment);  // 16 to 64 bytes on
    given_before(data) = given;
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
};

}  // namespace

void keep_memory_of_tensors() {
  keep_freed_memory();
  // Tensors keep a pointer to their allocator: it lives as long as the process. One that somebody
  // else has set stays.
  static auto* const allocator = new AlignedAllocator;
  if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) c10::SetCPUAllocator(allocator);
}

}  // namespace flashstep
