#include "flashstep/bench/timing.h"

#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"

namespace flashstep::tools {

void Marks::set() {
  times_.push_back(measure::steady_seconds());
  if (device_.is_cpu()) return;
  // BACKEND_DEFAULT events are timed; PYTORCH_DEFAULT ones are not.
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  events_.push_back(std::move(event));
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

std::vector<double> seconds_of_calls(const NumberedCall& call, c10::Device device, int64_t first,
                                     int64_t samples, int64_t calls) {
  Marks marks(device);
  marks.set();
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t i = 0; i < calls; ++i) call(first + sample * calls + i);
    marks.set();
  }
  std::vector<double> seconds = marks.seconds();
  for (double& one : seconds) one /= static_cast<double>(calls);
  return seconds;
}

GpuGraph::GpuGraph(const NumberedCall& call, int64_t calls)
    : work_([&] {
        for (int64_t i = 0; i < calls; ++i) call(i);
      }),
      calls_(calls) {}

std::vector<double> GpuGraph::seconds(int64_t samples) {
  work_.replay();
  std::vector<double> seconds =
      seconds_of_calls([&](int64_t) { work_.replay(); }, c10::Device(c10::kCUDA), 0, samples, 1);
  for (double& one : seconds) one /= static_cast<double>(calls_);
  return seconds;
}

}  // namespace flashstep::tools
