#include "flashstep/comm/peer_copies.h"

#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
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
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "flashstep/base/error.h"
#include "flashstep/base/text.h"
#include "flashstep/comm/outside_collectives.h"
#include "flashstep/comm/shared_counters.h"

namespace flashstep::comm {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// The kinds of counters. A rank writes its own: the first two in the order of its stream, with the
// number of open(), from 1; the last from its processor, when nothing of other ranks is mapped here
// any more.
enum Kind { kReady, kDone, kClosed, kKinds };

// Waits compare in a circle of 2^32 numbers; one so far ahead satisfies every wait that is pending.
constexpr uint32_t kFarAhead = 1U << 30;

// Of libcuda, which a machine without a GPU has not.
template <typename Function>
Function driver_function(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result;
  C10_CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &result));
  require(result == cudaDriverEntryPointSuccess && address != nullptr,
          "[comm] expected a driver that has ", name);
  return reinterpret_cast<Function>(address);
}

void check_driver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  throw MachineError(str("[comm] ", what, " failed with CUDA driver error ", static_cast<int>(result)));
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
  ~StreamCounters() {
    C10_CUDA_CHECK_WARN(cudaHostUnregister(counters_->memory()));
  }
  StreamCounters(const StreamCounters&) = delete;
  StreamCounters& operator=(const StreamCounters&) = delete;

  // After all that the stream has written so far.
  void write(cudaStream_t stream, Kind kind, int rank, uint32_t value) const {
    check_driver(write_(stream, address(kind, rank), value, CU_STREAM_WRITE_VALUE_DEFAULT),
                 "telling the other ranks");
  }
  void wait(cudaStream_t stream, Kind kind, int rank, uint32_t value) const {
    check_driver(wait_(stream, address(kind, rank), value, CU_STREAM_WAIT_VALUE_GEQ),
                 "waiting for the other ranks");
  }
  // From any thread: ends all waits for `rank`.
  void release(int rank) const {
    for (const Kind kind : {kReady, kDone}) counters_->at(kind, rank) += kFarAhead;
  }
  void set_closed(int rank) const { counters_->at(kClosed, rank) = 1; }
  bool are_closed(int world_size) const {
    for (int rank = 0; rank < world_size; ++rank) {
      if (counters_->at(kClosed, rank) == 0) return false;
    }
    return true;
  }

 private:
  CUdeviceptr address(Kind kind, int rank) const {
    return reinterpret_cast<CUdeviceptr>(
        reinterpret_cast<char*>(&counters_->at(kind, rank)) + distance_);
  }

  std::unique_ptr<SharedCounters> counters_;
  CUresult (*write_)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
  CUresult (*wait_)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
  ptrdiff_t distance_ = 0;
};

// Where a tensor's memory is in another process: "BYTES OFFSET HANDLE" of the allocation it lies in.
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
      : group_(group),
        device_(device),
        counters_(std::move(counters)),
        exceptions_at_start_(std::uncaught_exceptions()) {
    interrupt_ = group.outside()->on_loss([counters = counters_, rank = group.rank(),
                                           world_size = group.world_size()] {
      for (int other = 0; other < world_size; ++other) {
        if (other != rank) counters->release(other);
      }
    });
  }

  ~CudaPeerCopies() override {
    const bool in_error = std::uncaught_exceptions() > exceptions_at_start_;
    // Gone between open() and close(), in the middle of an error: the stream still waits, until a
    // rank is lost, and others may write here. All of it stays.
    if (is_open_) {
      static_cast<void>(new std::tuple(counters_, interrupt_, std::move(tensors_)));
      return;
    }
    if (closed_) {
      C10_CUDA_CHECK_WARN(cudaEventSynchronize(*closed_));
      C10_CUDA_CHECK_WARN(cudaEventDestroy(*closed_));
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

  void open() override {
    const c10::cuda::CUDAGuard guard(device_);
    group_.outside()->count();
    ++number_;
    is_open_ = true;
    meet(kReady);
  }

  void push(size_t number, const at::Tensor& from, int64_t begin) override {
    const c10::cuda::CUDAGuard guard(device_);
    const Tensor& tensor = tensors_.at(number);
    const size_t offset = begin * from.element_size();
    require(is_open_ && offset + from.nbytes() <= tensor.own.nbytes(),
            "[comm] expected a push between open() and close(), into the ", tensor.own.nbytes(),
            " bytes of tensor ", number, ", got one to byte ", offset + from.nbytes());
    if (from.nbytes() == 0) return;
    // Each begins with another rank, so that no rank is written to by all at once.
    for (int step = 1; step < group_.world_size(); ++step) {
      const int rank = (group_.rank() + step) % group_.world_size();
      C10_CUDA_CHECK(cudaMemcpyAsync(tensor.of_rank[rank].begin + offset, from.const_data_ptr(),
                                     from.nbytes(), cudaMemcpyDeviceToDevice, stream()));
    }
  }

  void close() override {
    const c10::cuda::CUDAGuard guard(device_);
    meet(kDone);
    is_open_ = false;
    if (!closed_) {
      C10_CUDA_CHECK(cudaEventCreateWithFlags(&closed_.emplace(), cudaEventDisableTiming));
    }
    C10_CUDA_CHECK(cudaEventRecord(*closed_, stream()));
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
  cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream(device_.index()).stream(); }

  // What comes after it, on any rank, starts when all ranks' streams have come here.
  void meet(Kind kind) {
    counters_->write(stream(), kind, group_.rank(), number_);
    for (int rank = 0; rank < group_.world_size(); ++rank) {
      if (rank != group_.rank()) counters_->wait(stream(), kind, rank, number_);
    }
  }

  const Group& group_;
  const at::Device device_;
  std::shared_ptr<StreamCounters> counters_;
  std::shared_ptr<void> interrupt_;
  std::vector<Tensor> tensors_;
  const int exceptions_at_start_;
  uint32_t number_ = 0;
  bool is_open_ = false;
  std::optional<cudaEvent_t> closed_;
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
