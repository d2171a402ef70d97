// Time of work on a device: between moments, of calls one after the other, and of calls replayed
// from a CUDA graph.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "flashstep/ops/recorded_work.h"

namespace flashstep::tools {

// Moments of a step on a device, without waiting for it. On a GPU a mark is an event: reached when
// the current stream has done all that it was given before. On a CPU it is the time of day.
class Marks {
 public:
  explicit Marks(c10::Device device) : device_(device) {}

  void set();
  // Seconds between each mark and the one before. Waits for the last one.
  std::vector<double> seconds() const;
  // How many seconds after it was set each mark is reached: the host's lead over a device that had
  // nothing left to do when the first was set. Waits for the last one. 0 on a CPU.
  std::vector<double> leads() const;

 private:
  c10::Device device_;
  std::vector<c10::Event> events_;  // none on a CPU
  std::vector<double> times_;       // when each was set
};

// Waits until the device has done all that it was given; nothing to wait for on a CPU.
void synchronize(c10::Device device);

// Enqueues the call of this number: numbers choose among inputs.
using NumberedCall = std::function<void(int64_t number)>;

// Seconds a call in each of `samples` runs of `calls` calls, numbered from `first` on, from mark to
// mark: what someone sees who calls again and again, be it the kernels or their launching that
// takes longer.
std::vector<double> seconds_of_calls(const NumberedCall& call, c10::Device device, int64_t first,
                                     int64_t samples, int64_t calls);

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

}  // namespace flashstep::tools
