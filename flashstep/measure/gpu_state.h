// At which clock and power a GPU runs now: what a timing on it must be read with.
#pragma once

#include <optional>
#include <string>

namespace flashstep::measure {

struct GpuState {
  double sm_clock_mhz = 0, memory_clock_mhz = 0;
  double power_watts = 0, power_limit_watts = 0;
  double temperature_celsius = 0;
};

// Asked of the driver's management library (NVML), by its own index of GPUs; nothing without one.
std::optional<GpuState> gpu_state(int index = 0);

// "SM 1980 MHz, memory 3201 MHz, 312 W of 700 W, 45 C"
std::string describe(const GpuState& state);

}  // namespace flashstep::measure
