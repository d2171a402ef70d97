#include "flashstep/comm/peer_copies.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cuda_runtime_api.h>
#include <exception>
#include <iterator>
#include <list>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "flashstep/base/text.h"
#include "flashstep/comm/outside_collectives.h"
#include "flashstep/comm/shared_counters.h"
#include "flashstep/comm/stream_counters.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// Where a tensor's memory is in another process: "BYTES OFFSET HANDLE" of the allocation it lies
// in.
std::string tell_memory(const at::Tensor& tensor) {
  if (tensor.nbytes() == 0) return "0 0 -";
  // The allocator knows blocks by their beginning.
  const auto [offset, handle] = allocator::shareIpcHandle(tensor.storage().mutable_data());
  const auto in_block = static_cast<ptrdiff_t>(tensor.storage_offset() * tensor.element_size());
  std::string digits;
  for (const char byte : handle) {
    constexpr char kDigits[] = "0123456789abcdef";
    digits += kDigits[static_cast<unsigned char>(byte) >> 4];
    digits += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return str(tensor.nbytes(), " ", offset + in_block, " ", digits);
}

// Another rank's memory, reachable from here.
struct Mapped {
  std::shared_ptr<void> allocation;
  char* begin = nullptr;
};

Mapped map_memory(std::istringstream& told, size_t expected_bytes) {
  size_t bytes = 0;
  ptrdiff_t offset = 0;
  std::string digits;
  told >> bytes >> offset >> digits;
  require(!told.fail() && bytes == expected_bytes, "[comm] expected ", expected_bytes,
          " bytes on every rank, got ", bytes);
  if (bytes == 0) return {};
  std::string handle;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    handle += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  }
  Mapped mapped = {allocator::getIpcDevPtr(handle), nullptr};
  mapped.begin = static_cast<char*>(mapped.allocation.get()) + offset;
  return mapped;
}

struct PeerTensor {
  at::Tensor own;               // (numel)
  std::vector<Mapped> of_rank;  // none for this one
};

// Copies that nobody uses any more. What is mapped goes when the stream is done: it may wait for
// ranks that do not come, until one is lost. What others may have mapped goes when they have closed
// it, for CUDA forbids to free it before.
class DeferredRelease {
 public:
  DeferredRelease(std::shared_ptr<StreamCounters> counters, std::shared_ptr<void> interrupt,
                  std::vector<PeerTensor> tensors, at::Device device, cudaStream_t stream)
      : counters_(std::move(counters)),
        interrupt_(std::move(interrupt)),
        tensors_(std::move(tensors)),
        device_(device),
        stream_(stream) {}

  // Whether nothing of it is needed any more. A device that has failed never gets there.
  bool try_release() noexcept {
    try {
      return release_if_idle();
    } catch (const std::exception&) {  // the device's, which is told elsewhere
      return false;
    }
  }

 private:
  bool release_if_idle() {
    if (!is_closed_) {
      const c10::cuda::CUDAGuard guard(device_);
      if (is_being_captured(device_)) return false;
      const cudaStream_t stream = counters_->has_passed_barrier()
                                      ? stream_
                                      : c10::cuda::getCurrentCUDAStream(device_.index()).stream();
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
      if (status != cudaStreamCaptureStatusNone) return false;  // which a question would end
      if (cudaStreamQuery(stream) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());  // not ready; or an error, which is told elsewhere
        return false;
      }
      for (PeerTensor& tensor : tensors_) tensor.of_rank.clear();
      interrupt_.reset();
      counters_->set_closed();
      is_closed_ = true;
    }
    return counters_->are_closed();
  }

  std::shared_ptr<StreamCounters> counters_;
  std::shared_ptr<void> interrupt_;
  std::vector<PeerTensor> tensors_;
  at::Device device_;
  cudaStream_t stream_;
  bool is_closed_ = false;
};

// Where they stay until then. Never destroyed: at the end of the process CUDA is gone first.
class DeferredReleases {
 public:
  static DeferredReleases& instance() {
    static auto* const instance = new DeferredReleases;
    return *instance;
  }
  // Ranks end their copies together, as a rule, and none has to stay. Without patience nothing is
  // tried: to unmap memory waits for all of the device, which may wait for a rank that is lost.
  void add(DeferredRelease ended, std::chrono::milliseconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (std::chrono::steady_clock::now() < deadline) {
      if (ended.try_release()) return;
      std::this_thread::sleep_for(kLook);
    }
    const std::lock_guard lock(mutex_);
    ended_.push_back(std::move(ended));
  }
  void sweep() {
    const std::lock_guard lock(mutex_);
    for (auto ended = ended_.begin(); ended != ended_.end();)
      ended = ended->try_release() ? ended_.erase(ended) : std::next(ended);
  }

 private:
  static constexpr std::chrono::microseconds kLook{100};
  std::mutex mutex_;
  std::list<DeferredRelease> ended_;
};

// Where nobody watches the ranks: a process in which nothing comes from a rank for the limit,
// though it waits for it, ends with a sentence. Time in which it was stopped is not counted.
class WaitLimit {
 public:
  WaitLimit(std::shared_ptr<StreamCounters> counters, std::chrono::milliseconds limit)
      : counters_(std::move(counters)), limit_(limit), looker_([this] { look(); }) {}
  ~WaitLimit() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    news_.notify_all();
    looker_.join();
  }
  WaitLimit(const WaitLimit&) = delete;
  WaitLimit& operator=(const WaitLimit&) = delete;

 private:
  void look() {
    using Clock = std::chrono::steady_clock;
    const auto interval = std::min<Clock::duration>(limit_ / 10, std::chrono::seconds(1));
    Clock::duration waited(0);
    auto last = Clock::now();
    std::pair<int, uint32_t> before = counters_->slowest();
    std::unique_lock lock(mutex_);
    while (!news_.wait_for(lock, interval, [this] { return ended_; })) {
      const auto now = Clock::now();
      const std::pair<int, uint32_t> slowest = counters_->slowest();
      const bool waits = slowest.second != counters_->launched() && slowest == before;
      waited = waits ? waited + std::min(now - last, 2 * interval) : Clock::duration(0);
      last = now;
      before = slowest;
      if (waited < limit_) continue;
      end_process(str(
          "[peer copies] waited ", std::chrono::duration_cast<std::chrono::seconds>(limit_).count(),
          " s, the limit of the process group, for rank ", slowest.first, ", which has not come"));
    }
  }

  const std::shared_ptr<StreamCounters> counters_;
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable news_;
  bool ended_ = false;
  std::thread looker_;
};

class CudaPeerCopies : public PeerCopies {
 public:
  CudaPeerCopies(const Group& group, at::Device device, std::shared_ptr<StreamCounters> counters,
                 bool can_be_captured)
      : can_be_captured_(can_be_captured),
        group_(group),
        device_(device),
        counters_(std::move(counters)),
        exceptions_at_start_(std::uncaught_exceptions()) {
    interrupt_ = group.outside()->on_loss([counters = counters_] { counters->release(); });
    if (const auto limit = group.outside()->limit(); limit.count() > 0) {
      limit_ = std::make_unique<WaitLimit>(counters_, limit);
    }
  }

  ~CudaPeerCopies() override {
    const bool in_error = std::uncaught_exceptions() > exceptions_at_start_;
    limit_.reset();
    DeferredReleases::instance().add(
        {counters_, interrupt_, std::move(tensors_), device_, last_stream_},
        in_error ? std::chrono::milliseconds(0) : kPatience);
  }
  CudaPeerCopies(const CudaPeerCopies&) = delete;
  CudaPeerCopies& operator=(const CudaPeerCopies&) = delete;

  bool share(const std::vector<at::Tensor>& tensors) override {
    const c10::cuda::CUDAGuard guard(device_);
    std::string told;
    bool works = true;
    try {
      for (const at::Tensor& tensor : tensors) told += tell_memory(tensor) + "\n";
    } catch (const c10::Error&) {
      works = false;
    }
    const std::vector<std::string> of_ranks = group_.all_gather(works ? told : "");
    std::vector<PeerTensor> added;
    try {
      for (const at::Tensor& tensor : tensors) {
        added.push_back({flat(tensor), std::vector<Mapped>(group_.world_size())});
      }
      for (int rank = 0; rank < group_.world_size(); ++rank) {
        if (rank == group_.rank()) continue;
        std::istringstream in(of_ranks[rank]);
        for (PeerTensor& tensor : added) tensor.of_rank[rank] = map_memory(in, tensor.own.nbytes());
      }
    } catch (const std::exception&) {  // the driver's, or a rank's whose memory cannot be told
      works = false;
    }
    if (group_.all_reduce(int64_t{works}, Reduce::kMin) == 0) return false;
    for (PeerTensor& tensor : added) tensors_.push_back(std::move(tensor));
    return true;
  }

  const at::Tensor& shared(size_t number) const override { return tensors_.at(number).own; }

  void stream_barrier() override {
    const c10::cuda::CUDAGuard guard(device_);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
    if (!is_being_captured(device_)) {  // replays of graphs are not counted
      group_.outside()->count();
      last_stream_ = stream;
    }
    counters_->barrier(stream);
  }
  bool can_be_captured() const override { return can_be_captured_; }

  void push_to_all(const std::function<void(int to)>& push_to) override {
    const int ranks = group_.world_size();
    for (int step = 1; step < ranks; ++step) push_to((group_.rank() + step) % ranks);
  }

  void push(int to, size_t number, const at::Tensor& from, int64_t begin) override {
    push_bytes(to, number, begin * from.element_size(), from.const_data_ptr(), from.nbytes());
  }

  void push_bytes(int to, size_t number, size_t begin, const void* from, size_t bytes) override {
    const PeerTensor& tensor = tensors_.at(number);
    require(begin + bytes <= tensor.own.nbytes(), "[comm] expected a push into the ",
            tensor.own.nbytes(), " bytes of tensor ", number, ", got one to byte ", begin + bytes);
    if (bytes == 0) return;
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
    C10_CUDA_CHECK(cudaMemcpyAsync(tensor.of_rank.at(to).begin + begin, from, bytes,
                                   cudaMemcpyDeviceToDevice, stream));
  }

 private:
  // For the others to end their copies too.
  static constexpr std::chrono::milliseconds kPatience{1000};

  static at::Tensor flat(const at::Tensor& tensor) {
    const at::Tensor detached = tensor.detach();
    return detached.as_strided({detached.numel()}, {1});
  }
  const bool can_be_captured_;
  const Group& group_;
  const at::Device device_;
  std::shared_ptr<StreamCounters> counters_;
  std::shared_ptr<void> interrupt_;
  std::unique_ptr<WaitLimit> limit_;  // null where the ranks are watched
  std::vector<PeerTensor> tensors_;
  const int exceptions_at_start_;
  cudaStream_t last_stream_ = nullptr;  // on which it met
};

}  // namespace

std::unique_ptr<PeerCopies> make_peer_copies(const Group& group, at::Device device) {
  if (!device.is_cuda() || group.world_size() == 1 || !group.is_on_one_machine()) return nullptr;
  if (group.outside() == nullptr) return nullptr;
  if (group.process_group().getBackend(at::kCUDA)->getBackendName() != "nccl") return nullptr;
  const c10::cuda::CUDAGuard guard(device);
  auto shared = SharedCounters::make(group, StreamCounters::kinds(group.world_size()));
  if (!shared) return nullptr;
  DeferredReleases::instance().sweep();  // all ranks have come here
  std::shared_ptr<StreamCounters> counters;
  try {
    counters = std::make_shared<StreamCounters>(std::move(shared), group.rank(), group.world_size(),
                                                device);
  } catch (const std::exception&) {  // a driver or machine that cannot
  }
  const bool captures = counters != nullptr && counters->can_be_captured();
  const std::vector<int64_t> all =
      group.all_reduce(std::vector<int64_t>{counters != nullptr, captures}, Reduce::kMin);
  if (all[0] == 0) return nullptr;
  DeferredReleases::instance().sweep();  // what was closed by all of them just now
  return std::make_unique<CudaPeerCopies>(group, device, std::move(counters), all[1] == 1);
}

bool is_being_captured(at::Device device) {
  if (!device.is_cuda()) return false;
  const c10::cuda::CUDAGuard guard(device);
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

}  // namespace flashstep
