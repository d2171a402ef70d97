// GPU work that is recorded once, in a CUDA graph, and replayed without the host. recorded_work.cc
// in a CUDA build; no_recorded_work.cc, which throws, in the others.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include <c10/core/Device.h>

namespace flashstep {

// While one is alive this thread's tensors are computed on a stream that is not the device's
// default, of which CUDA captures no work: the thread's own of that device, whose memory is used
// again. It begins when the device has done all that it was given before.
class GpuStream {
 public:
  explicit GpuStream(std::optional<at::Device> device = {});  // else the current one
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class RecordedWork {
 public:
  // Records, without running it, what `work` gives to this thread's stream (a GpuStream's) and to
  // streams that follow it and join it again. What it throws, or CUDA's refusal, is thrown on, and
  // leaves the device as if nothing had been recorded. Tensors made in it lie in memory of the
  // graph's own, in which a replay makes them anew; `before` lends its memory to work that is
  // replayed after it, and with it that of the tensors that are let go meanwhile.
  explicit RecordedWork(const std::function<void()>& work, const RecordedWork* before = nullptr);
  ~RecordedWork();
  RecordedWork(const RecordedWork&) = delete;
  RecordedWork& operator=(const RecordedWork&) = delete;

  void replay();  // on this thread's stream, whichever that is

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace flashstep
