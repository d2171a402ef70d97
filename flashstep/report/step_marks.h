// Moments of a step on a device, without waiting for it.
#pragma once

#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace flashstep::report {

// On a GPU a mark is an event: reached when the current stream has done all that it was given
// before. On a CPU it is the time of day.
class Marks {
 public:
  explicit Marks(c10::Device device) : device_(device) {}

  void set();
  void clear();
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

// Memory of this rank: on a GPU what LibTorch's allocator has given to tensors, on a CPU what the
// process has resident.
double memory_bytes(c10::Device device);
double peak_memory_bytes(c10::Device device);  // since reset_peak_memory()
void reset_peak_memory(c10::Device device);

}  // namespace flashstep::report
