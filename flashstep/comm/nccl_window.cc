#define USE_C10D_NCCL  // else LibTorch's header is empty
#include <memory>
#include <thread>
#include <utility>

#include <ATen/cuda/MemPool.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "flashstep/comm/window.h"

namespace flashstep::comm {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// What this thread allocates meanwhile comes out of `pool`.
class Allocating {
 public:
  explicit Allocating(at::cuda::MemPool& pool) : device_(pool.device()), id_(pool.id()) {
    allocator::beginAllocateToPool(device_, id_, [thread = std::this_thread::get_id()](auto) {
      return std::this_thread::get_id() == thread;
    });
  }
  ~Allocating() {
    allocator::endAllocateToPool(device_, id_);
    allocator::releasePool(device_, id_);
  }
  Allocating(const Allocating&) = delete;
  Allocating& operator=(const Allocating&) = delete;

 private:
  const c10::DeviceIndex device_;
  const at::cuda::MempoolId_t id_;
};

// A pool of its own for every window: registering is a collective, and so the segments of a pool
// would have to lie in the same order on all ranks.
struct Window {
  std::unique_ptr<at::cuda::MemPool> pool;
  at::Tensor memory;  // given back to the pool before that ends
};

c10d::ProcessGroupNCCL* nccl_of(const Group& group) {
  return dynamic_cast<c10d::ProcessGroupNCCL*>(group.process_group().getBackend(at::kCUDA).get());
}

}  // namespace

at::Tensor window_zeros(int64_t numel, const at::TensorOptions& options, const Group& group) {
  const auto bytes = numel * static_cast<int64_t>(options.dtype().itemsize());
  const bool through_nccl = options.device().is_cuda() && group.world_size() > 1;
  c10d::ProcessGroupNCCL* nccl =
      through_nccl && bytes >= kLeastWindowBytes ? nccl_of(group) : nullptr;
  if (nccl == nullptr) return at::zeros({numel}, options);
  return group.guarded("registering memory", [&] {
    const c10::cuda::CUDAGuard guard(options.device());
    auto window = std::make_shared<Window>();
    window->pool = std::make_unique<at::cuda::MemPool>(
        std::dynamic_pointer_cast<allocator::CUDAAllocator>(nccl->getMemAllocator()));
    {
      const Allocating allocating(*window->pool);
      window->memory = at::zeros({numel}, options);
    }
    nccl->registerMemPool(window->pool.get(), /*symm=*/true);
    void* const data = window->memory.data_ptr();
    return at::from_blob(
        data, {numel}, [window = std::move(window)](void*) {}, options);
  });
}

}  // namespace flashstep::comm
