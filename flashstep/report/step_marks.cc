#include "flashstep/report/step_marks.h"

#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/memory.h"

namespace flashstep::report {

void Marks::set() {
  times_.push_back(measure::steady_seconds());
  if (device_.is_cpu()) return;
  // BACKEND_DEFAULT events are timed; PYTORCH_DEFAULT ones are not.
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  events_.push_back(std::move(event));
}

void Marks::clear() {
  events_.clear();
  times_.clear();
}

std::vector<double> Marks::seconds() const {
  std::vector<double> result;
  if (!events_.empty()) events_.back().synchronize();
  for (size_t i = 1; i < times_.size(); ++i) {
    result.push_back(events_.empty() ? times_[i] - times_[i - 1]
                                     : events_[i - 1].elapsedTime(events_[i]) * 1e-3);
  }
  return result;
}

std::vector<double> Marks::leads() const {
  const std::vector<double> between = seconds();
  std::vector<double> result;
  double reached = 0;  // after the first
  for (size_t i = 0; i < times_.size(); ++i) {
    if (i > 0) reached += between[i - 1];
    result.push_back(reached - (times_[i] - times_[0]));
  }
  return result;
}

void synchronize(c10::Device device) {
  if (device.is_cuda()) measure::synchronize_gpu(device.index());
}

double memory_bytes(c10::Device device) {
  return static_cast<double>(device.is_cuda() ? measure::gpu_allocated_bytes(device.index())
                                              : measure::resident_bytes());
}

double peak_memory_bytes(c10::Device device) {
  return static_cast<double>(device.is_cuda() ? measure::gpu_peak_allocated_bytes(device.index())
                                              : measure::peak_resident_bytes());
}

void reset_peak_memory(c10::Device device) {
  if (device.is_cuda()) {
    measure::reset_gpu_peak_allocated(device.index());
  } else {
    measure::reset_peak_resident();
  }
}

}  // namespace flashstep::report
