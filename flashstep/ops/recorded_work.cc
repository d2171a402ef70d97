#include "flashstep/ops/recorded_work.h"

#include <exception>
#include <map>
#include <mutex>
#include <optional>

#include <ATen/Functions.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "flashstep/products/cuda/counters.h"

namespace flashstep {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// CUDAGraph::capture_end() throws at once when CUDA has broken the capture off, and leaves undone
// what comes after: the allocators would go on asking a graph that is gone where tensors belong,
// and the generator believe that it is still captured.
void undo_capture(c10::DeviceIndex device, at::cuda::MempoolId_t memory) {
  allocator::endAllocateToPool(device, memory);
  allocator::releasePool(device, memory);
  at::HostAllocator* const on_host = at::getHostAllocator(at::kCUDA);
  on_host->end_allocate_to_pool(memory);
  on_host->release_pool(memory);
  // A copy of the generator's state (seed and offset) has no captures.
  at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.graphsafe_set_state(generator.clone());
}

}  // namespace

struct GpuStream::State {
  explicit State(c10::cuda::CUDAStream stream) : guard(stream) {}
  c10::cuda::CUDAStreamGuard guard;  // makes the stream's device the current one, too
};
GpuStream::GpuStream(std::optional<at::Device> device) {
  const c10::DeviceIndex index = device ? device->index() : c10::cuda::current_device();
  const c10::cuda::CUDAGuard guard(index);
  at::cuda::device_synchronize();  // what was computed on the default stream is there from now on
  thread_local std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  if (!streams.contains(index))
    streams.emplace(index, c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index));
  state_ = std::make_unique<State>(streams.at(index));
}
GpuStream::~GpuStream() {
  try {
    state_->guard.current_stream().synchronize();
  } catch (const c10::Error&) {  // of a device that has failed, which the next call tells
  }
}

struct RecordedWork::State {
  // Kept, so that to end the capture and to make it replayable are two calls, whose failures leave
  // different things behind.
  at::cuda::CUDAGraph graph{/*keep_graph=*/true};
  at::cuda::MempoolId_t memory;
  c10::DataPtr counter_memory;  // of the graph's own memory, and gone with it
  std::optional<products_cuda::RecordedCounters> counters;
};

RecordedWork::RecordedWork(const std::function<void()>& work, const RecordedWork* before)
    : state_(std::make_unique<State>()) {
  at::cuda::CUDAGraph& graph = state_->graph;
  state_->memory = before ? before->state_->memory : at::cuda::graph_pool_handle();
  at::cuda::device_synchronize();
  // Other threads, NCCL's and the group's, may ask CUDA what they like meanwhile.
  graph.capture_begin(state_->memory, cudaStreamCaptureModeThreadLocal);
  std::exception_ptr error;
  try {
    state_->counter_memory = allocator::get()->allocate(products_cuda::RecordedCounters::kBytes);
    state_->counters.emplace(state_->counter_memory.get(), c10::cuda::getCurrentCUDAStream());
    work();
  } catch (...) {
    error = std::current_exception();
  }
  try {
    graph.capture_end();  // the stream computes again from here on
  } catch (const std::exception&) {
    static_cast<void>(cudaGetLastError());  // of the broken capture
    if (!error) error = std::current_exception();
    undo_capture(c10::cuda::current_device(), state_->memory);
  }
  if (error) std::rethrow_exception(error);
  C10_CUDA_CHECK(state_->counters->zero_at_start(graph.raw_cuda_graph()));
  graph.instantiate();
}

RecordedWork::~RecordedWork() = default;

void RecordedWork::replay() { state_->graph.replay(); }

}  // namespace flashstep
