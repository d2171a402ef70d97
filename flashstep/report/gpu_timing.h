// Time of work on the GPU: calls between events, and calls replayed from a CUDA graph.
// gpu_timing.cc in a CUDA build; no_gpu_timing.cc, which throws, in the others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace flashstep::report {

// While one is alive this thread's tensors are computed on a stream of their own: CUDA captures no
// work of the default one.
class GpuStream {
 public:
  GpuStream();
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Enqueues the call of this number: numbers choose among inputs.
using NumberedCall = std::function<void(int64_t number)>;

// Seconds a call in each of `samples` runs of `calls` calls, between events on this thread's
// stream: what someone sees who calls again and again, be it the kernels or their launching that
// takes longer.
std::vector<double> gpu_seconds(const NumberedCall& call, int64_t first, int64_t samples,
                                int64_t calls);

// Work recorded once, in a CUDA graph, and replayed without the host.
class RecordedWork {
 public:
  // Records, without running it, what `work` gives to this thread's stream (a GpuStream's) and to
  // streams that follow it and join it again. What it throws is thrown on. Tensors made in it lie
  // in memory of the graph's own, in which a replay makes them anew; `before` lends its memory to
  // work that is replayed after it, and with it that of the tensors that are let go meanwhile.
  explicit RecordedWork(const std::function<void()>& work, const RecordedWork* before = nullptr);
  ~RecordedWork();
  RecordedWork(const RecordedWork&) = delete;
  RecordedWork& operator=(const RecordedWork&) = delete;

  void replay();  // on this thread's stream

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Calls recorded once and replayed as one: their kernels' time, without the launching.
class GpuGraph {
 public:
  // Throws what the calls throw when they cannot be captured.
  GpuGraph(const NumberedCall& call, int64_t calls);

  // Seconds a call in each of `samples` replays, after one that is not timed.
  std::vector<double> seconds(int64_t samples);

 private:
  RecordedWork work_;
  int64_t calls_;
};

uint64_t gpu_l2_bytes();

}  // namespace flashstep::report
