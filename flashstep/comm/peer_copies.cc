#include "flashstep/comm/peer_copies.h"

#include <chrono>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <exception>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "flashstep/base/error.h"
#include "flashstep/base/text.h"
#include "flashstep/comm/outside_collectives.h"
#include "flashstep/comm/shared_counters.h"

namespace flashstep::comm {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// The kinds of counters. A rank writes its own: at the n-th meeting n, in the order of its stream;
// and 1, from its processor, when nothing of other ranks is mapped here any more.
enum Kind { kMet, kClosed, kKinds };

// Waits compare in a circle of 2^32 numbers; one so far ahead satisfies every wait that is pending.
constexpr uint32_t kFarAhead = 1U << 30;

// Of libcuda, which a machine without a GPU has not.
template <typename Function>
Function driver_function(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result;
  C10_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &result));
  require(result == cudaDriverEntryPointSuccess && address != nullptr,
          "[comm] expected a driver that has ", name);
  return reinterpret_cast<Function>(address);
}

void check_driver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  throw MachineError(
      str("[comm] ", what, " failed with CUDA driver error ", static_cast<int>(result)));
}

// Counters as a GPU's streams see them.
class StreamCounters {
 public:
  explicit StreamCounters(std::unique_ptr<SharedCounters> counters)
      : counters_(std::move(counters)),
        write_(driver_function<decltype(write_)>("cuStreamWriteValue32")),
        wait_(driver_function<decltype(wait_)>("cuStreamWaitValue32")) {
    C10_CUDA_CHECK(
        cudaHostRegister(counters_->memory(), counters_->bytes(), cudaHostRegisterMapped));
    void* device = nullptr;
    const cudaError_t mapped = cudaHostGetDevicePointer(&device, counters_->memory(), 0);
    if (mapped != cudaSuccess) static_cast<void>(cudaHostUnregister(counters_->memory()));
    C10_CUDA_CHECK(mapped);
    distance_ = static_cast<char*>(device) - static_cast<char*>(counters_->memory());
  }
  ~StreamCounters() { C10_CUDA_CHECK_WARN(cudaHostUnregister(counters_->memory())); }
  StreamCounters(const StreamCounters&) = delete;
  StreamCounters& operator=(const StreamCounters&) = delete;

  // After all that the stream has written so far.
  void set_met(cudaStream_t stream, int rank, uint32_t number) const {
    check_driver(write_(stream, address(kMet, rank), number, CU_STREAM_WRITE_VALUE_DEFAULT),
                 "telling the other ranks");
  }
  void await_met(cudaStream_t stream, int rank, uint32_t number) const {
    check_driver(wait_(stream, address(kMet, rank), number, CU_STREAM_WAIT_VALUE_GEQ),
                 "waiting for the other ranks");
  }
  // From any thread: ends all waits for `rank`.
  void release(int rank) const { counters_->at(kMet, rank) += kFarAhead; }
  void set_closed(int rank) const { counters_->at(kClosed, rank) = 1; }
  bool are_closed(int world_size) const {
    for (int rank = 0; rank < world_size; ++rank) {
      if (counters_->at(kClosed, rank) == 0) return false;
    }
    return true;
  }

 private:
  CUdeviceptr address(Kind kind, int rank) const {
    return reinterpret_cast<CUdeviceptr>(reinterpret_cast<char*>(&counters_->at(kind, rank)) +
                                         distance_);
  }

  std::unique_ptr<SharedCounters> counters_;
  CUresult (*write_)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
  CUresult (*wait_)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
  ptrdiff_t distance_ = 0;
};

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

// What others may still have mapped: CUDA forbids to free it before.
struct Exported {
  std::shared_ptr<StreamCounters> counters;
  int world_size;
  std::vector<at::Tensor> memory;

  bool is_free() const { return counters->are_closed(world_size); }
};

// Where it stays until it is free. Never destroyed: at the end of the process CUDA is gone first.
class Waiting {
 public:
  static Waiting& room() {
    static auto* const room = new Waiting;
    return *room;
  }
  // Ranks end their copies together, as a rule, and none has to stay.
  void add(Exported exported, std::chrono::milliseconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!exported.is_free() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(kLook);
    const std::lock_guard lock(mutex_);
    if (!exported.is_free()) exported_.push_back(std::move(exported));
  }
  void sweep() {
    const std::lock_guard lock(mutex_);
    std::erase_if(exported_, [](const Exported& exported) { return exported.is_free(); });
  }

 private:
  static constexpr std::chrono::microseconds kLook{100};
  std::mutex mutex_;
  std::vector<Exported> exported_;
};

class CudaPeerCopies : public PeerCopies {
 public:
  CudaPeerCopies(const Group& group, at::Device device, std::shared_ptr<StreamCounters> counters)
      : PeerCopies(group.rank(), group.world_size()),
        group_(group),
        device_(device),
        counters_(std::move(counters)),
        exceptions_at_start_(std::uncaught_exceptions()) {
    interrupt_ = group.outside()->on_loss(
        [counters = counters_, rank = group.rank(), world_size = group.world_size()] {
          for (int other = 0; other < world_size; ++other) {
            if (other != rank) counters->release(other);
          }
        });
  }

  ~CudaPeerCopies() override {
    const bool in_error = std::uncaught_exceptions() > exceptions_at_start_;
    // In the middle of an error the stream may wait for ranks that do not come, until one is lost,
    // and they may write here. Then all of it stays.
    if (!await_last_meeting(in_error ? std::chrono::milliseconds(0) : kPatience)) {
      static_cast<void>(new std::tuple(counters_, interrupt_, std::move(tensors_)));
      return;
    }
    Exported exported = {counters_, group_.world_size(), {}};
    for (Tensor& tensor : tensors_) exported.memory.push_back(std::move(tensor.own));
    tensors_.clear();  // closes what is mapped
    counters_->set_closed(group_.rank());
    Waiting::room().add(std::move(exported), in_error ? std::chrono::milliseconds(0) : kPatience);
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
    std::vector<Tensor> added;
    try {
      for (const at::Tensor& tensor : tensors) {
        added.push_back({flat(tensor), std::vector<Mapped>(group_.world_size())});
      }
      for (int rank = 0; rank < group_.world_size(); ++rank) {
        if (rank == group_.rank()) continue;
        std::istringstream in(of_ranks[rank]);
        for (Tensor& tensor : added) tensor.of_rank[rank] = map_memory(in, tensor.own.nbytes());
      }
    } catch (const std::exception&) {  // the driver's, or a rank's whose memory cannot be told
      works = false;
    }
    if (group_.all_reduce(int64_t{works}, Reduce::kMin) == 0) return false;
    for (Tensor& tensor : added) tensors_.push_back(std::move(tensor));
    return true;
  }

  const at::Tensor& shared(size_t number) const override { return tensors_.at(number).own; }

  void meet() override {
    const c10::cuda::CUDAGuard guard(device_);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
    group_.outside()->count();
    counters_->set_met(stream, group_.rank(), ++meetings_);
    for (int rank = 0; rank < group_.world_size(); ++rank) {
      if (rank != group_.rank()) counters_->await_met(stream, rank, meetings_);
    }
    last_stream_ = stream;
  }

  void push(int to, size_t number, const at::Tensor& from, int64_t begin) override {
    push_bytes(to, number, begin * from.element_size(), from.const_data_ptr(), from.nbytes());
  }

  void push_bytes(int to, size_t number, size_t begin, const void* from, size_t bytes) override {
    const Tensor& tensor = tensors_.at(number);
    require(begin + bytes <= tensor.own.nbytes(), "[comm] expected a push into the ",
            tensor.own.nbytes(), " bytes of tensor ", number, ", got one to byte ", begin + bytes);
    if (bytes == 0) return;
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
    C10_CUDA_CHECK(cudaMemcpyAsync(tensor.of_rank.at(to).begin + begin, from, bytes,
                                   cudaMemcpyDeviceToDevice, stream));
  }

 private:
  struct Tensor {
    at::Tensor own;               // (numel)
    std::vector<Mapped> of_rank;  // none for this one
  };

  // For the others to end their copies too.
  static constexpr std::chrono::milliseconds kPatience{1000};

  static at::Tensor flat(const at::Tensor& tensor) {
    const at::Tensor detached = tensor.detach();
    return detached.as_strided({detached.numel()}, {1});
  }
  // Whether the stream has come to its end, or does in that time; true also where it has failed.
  bool await_last_meeting(std::chrono::milliseconds patience) const {
    if (meetings_ == 0) return true;
    const c10::cuda::CUDAGuard guard(device_);
    const auto deadline = std::chrono::steady_clock::now() + patience;
    cudaError_t state = cudaStreamQuery(last_stream_);
    while (state == cudaErrorNotReady && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      state = cudaStreamQuery(last_stream_);
    }
    if (state != cudaSuccess) static_cast<void>(cudaGetLastError());  // it was told elsewhere
    return state != cudaErrorNotReady;
  }

  const Group& group_;
  const at::Device device_;
  std::shared_ptr<StreamCounters> counters_;
  std::shared_ptr<void> interrupt_;
  std::vector<Tensor> tensors_;
  const int exceptions_at_start_;
  uint32_t meetings_ = 0;
  cudaStream_t last_stream_ = nullptr;  // on which it met
};

}  // namespace

std::unique_ptr<PeerCopies> make_peer_copies(const Group& group, at::Device device) {
  if (!device.is_cuda() || group.world_size() == 1 || group.outside() == nullptr) return nullptr;
  if (group.process_group().getBackend(at::kCUDA)->getBackendName() != "nccl") return nullptr;
  const c10::cuda::CUDAGuard guard(device);
  auto shared = SharedCounters::make(group, kKinds);
  if (!shared) return nullptr;
  Waiting::room().sweep();  // all ranks have come here
  std::shared_ptr<StreamCounters> counters;
  try {
    counters = std::make_shared<StreamCounters>(std::move(shared));
  } catch (const std::exception&) {  // a driver or machine that cannot
  }
  if (group.all_reduce(int64_t{counters != nullptr}, Reduce::kMin) == 0) return nullptr;
  return std::make_unique<CudaPeerCopies>(group, device, std::move(counters));
}

bool is_being_captured(at::Device device) {
  if (!device.is_cuda()) return false;
  const c10::cuda::CUDAGuard guard(device);
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

}  // namespace flashstep::comm
