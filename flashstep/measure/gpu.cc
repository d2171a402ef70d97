#include "flashstep/measure/gpu.h"

#include <algorithm>
#include <cuda_runtime_api.h>
#include <fstream>
#include <functional>
#include <sstream>

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "flashstep/error.h"
#include "flashstep/measure/bandwidth.h"
#include "flashstep/measure/stats.h"

// Of libcudart; cuda_profiler_api.h, which declares them, is a package of its own.
extern "C" cudaError_t CUDARTAPI cudaProfilerStart();
extern "C" cudaError_t CUDARTAPI cudaProfilerStop();

namespace flashstep::measure {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// The allocator knows no GPU before the first use of one.
c10::DataPtr allocate(size_t bytes) {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  return allocator::get()->allocate(bytes);
}

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    throw MachineError(str("[gpu] ", call, ": ", cudaGetErrorString(status)));
}

int gpu_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) {
    cudaGetLastError();  // forget it: the next CUDA call would report it again
    return 0;
  }
  check(status, "cudaGetDeviceCount");
  return count;
}

std::string version_text(int version) {  // 13000 -> "13.0"
  return version == 0 ? "" : str(version / 1000, ".", version % 1000 / 10);
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// The ninth decile of the rates of `launch`, which moves `bytes`.
double rate_of(double bytes, cudaStream_t stream, const std::function<cudaError_t()>& launch) {
  constexpr int kWarmup = 3, kCalls = 20;
  const Event begin, end;
  std::vector<double> rates;
  for (int i = 0; i < kWarmup + kCalls; ++i) {
    check(cudaEventRecord(begin.get(), stream), "cudaEventRecord");
    check(launch(), "bandwidth kernel");
    check(cudaEventRecord(end.get(), stream), "cudaEventRecord");
    check(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "cudaEventElapsedTime");
    if (i >= kWarmup) rates.push_back(bytes / (milliseconds * 1e-3));
  }
  return quantile(rates, 0.9);
}

c10::DeviceIndex device_index(int index) { return static_cast<c10::DeviceIndex>(index); }

bool can_reach(int from, int to) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, from, to), "cudaDeviceCanAccessPeer");
  return can != 0;
}

// While alive, copies go from one GPU into the other's memory without the host.
class PeerAccess {
 public:
  PeerAccess(int from, int to) : from_(from), to_(to) {
    const c10::cuda::CUDAGuard guard(device_index(from));
    const cudaError_t status = cudaDeviceEnablePeerAccess(to, /*flags=*/0);
    is_ours_ = status != cudaErrorPeerAccessAlreadyEnabled;
    if (is_ours_)
      check(status, "cudaDeviceEnablePeerAccess");
    else
      cudaGetLastError();  // forget it: the next CUDA call would report it again
  }
  ~PeerAccess() {
    if (!is_ours_) return;
    const c10::cuda::CUDAGuard guard(device_index(from_));
    cudaDeviceDisablePeerAccess(to_);
  }
  PeerAccess(const PeerAccess&) = delete;
  PeerAccess& operator=(const PeerAccess&) = delete;

 private:
  int from_, to_;
  bool is_ours_ = false;
};

// One end of a link: what it sends, where it receives, and the stream on which it sends.
struct LinkEnd {
  LinkEnd(int gpu, size_t bytes)
      : guard(device_index(gpu)),
        index(gpu),
        source(allocate(bytes)),
        destination(allocate(bytes)),
        stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_index(gpu))) {}

  const c10::cuda::CUDAGuard guard;  // the members below belong to this GPU
  int index;
  c10::DataPtr source, destination;
  c10::cuda::CUDAStream stream;
  Event begin, end;
};

}  // namespace

bool built_with_cuda() { return true; }

std::vector<Gpu> list_gpus() {
  std::vector<Gpu> gpus;
  for (int i = 0, count = gpu_count(); i < count; ++i) {
    cudaDeviceProp properties = {};
    check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    gpus.push_back({properties.name, properties.totalGlobalMem, properties.major, properties.minor,
                    properties.multiProcessorCount, static_cast<uint64_t>(properties.l2CacheSize)});
  }
  return gpus;
}

std::string gpu_driver_version() {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ..."
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;)
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == word.npos)
      return word;
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return "";
  return "CUDA " + version_text(version);
}

std::string cuda_runtime_version() {
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return version_text(version);
}

void start_gpu_capture() { check(cudaProfilerStart(), "cudaProfilerStart"); }
void stop_gpu_capture() { check(cudaProfilerStop(), "cudaProfilerStop"); }

void synchronize_gpu(int index) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

uint64_t gpu_allocated_bytes(int index) {
  const auto stats = allocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
  return static_cast<uint64_t>(stats.allocated_bytes[0].current);  // [0]: small and large together
}

uint64_t gpu_peak_allocated_bytes(int index) {
  const auto stats = allocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
  return static_cast<uint64_t>(stats.allocated_bytes[0].peak);
}

void reset_gpu_peak_allocated(int index) {
  allocator::resetPeakStats(static_cast<c10::DeviceIndex>(index));
}

void release_cached_gpu_memory() {
  // A replay whose graph is gone by now may still be at work in the graph's memory.
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  allocator::emptyCache();
}

GpuBandwidth measure_gpu_bandwidth(int index) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  cudaDeviceProp properties = {};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  // 1 GiB a buffer where there is room: twenty times the L2 of an H200 (50 MiB).
  const size_t bytes =
      std::min<size_t>(size_t{1} << 30, properties.totalGlobalMem / 8) & ~size_t{15};
  const int64_t groups = static_cast<int64_t>(bytes / 16);
  const auto stream = c10::cuda::getCurrentCUDAStream().stream();
  const auto source = allocate(bytes), destination = allocate(bytes);
  check(cudaMemsetAsync(source.get(), 0x5A, bytes, stream), "cudaMemsetAsync");

  GpuBandwidth result;
  const int multiprocessors = properties.multiProcessorCount;
  const auto size = static_cast<double>(bytes);
  result.copy = rate_of(2 * size, stream, [&] {
    return launch_copy(destination.get(), source.get(), groups, multiprocessors, stream);
  });
  result.read = rate_of(size, stream, [&] {
    return launch_read(source.get(), destination.get(), groups, multiprocessors, stream);
  });
  return result;
}

std::vector<double> measure_gpu_link(int first, int second) {
  constexpr size_t kBytes = size_t{256} << 20;  // a millisecond of NVLink: events see it well
  constexpr int kWarmup = 3, kCalls = 20;
  if (!can_reach(first, second) || !can_reach(second, first)) return {};
  const PeerAccess there(first, second), back(second, first);
  const LinkEnd a(first, kBytes), b(second, kBytes);
  const auto send = [](const LinkEnd& from, const LinkEnd& to) {
    check(cudaMemcpyPeerAsync(to.destination.get(), to.index, from.source.get(), from.index, kBytes,
                              from.stream.stream()),
          "cudaMemcpyPeerAsync");
  };
  std::vector<double> rates;
  for (int i = 0; i < kWarmup + kCalls; ++i) {
    // Both begin together; the time ends when both have sent.
    check(cudaEventRecord(a.begin.get(), a.stream.stream()), "cudaEventRecord");
    check(cudaStreamWaitEvent(b.stream.stream(), a.begin.get(), 0), "cudaStreamWaitEvent");
    send(a, b);
    send(b, a);
    check(cudaEventRecord(b.end.get(), b.stream.stream()), "cudaEventRecord");
    check(cudaStreamWaitEvent(a.stream.stream(), b.end.get(), 0), "cudaStreamWaitEvent");
    check(cudaEventRecord(a.end.get(), a.stream.stream()), "cudaEventRecord");
    check(cudaEventSynchronize(a.end.get()), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, a.begin.get(), a.end.get()), "cudaEventElapsedTime");
    if (i >= kWarmup) rates.push_back(static_cast<double>(kBytes) / (milliseconds * 1e-3));
  }
  return rates;
}

}  // namespace flashstep::measure
