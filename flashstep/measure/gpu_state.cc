#include "flashstep/measure/gpu_state.h"

#include <dlfcn.h>

#include "flashstep/base/text.h"

namespace flashstep::measure {
namespace {

// The part of nvml.h that is used here. The library comes with the driver, not with CUDA, so that
// it is opened when needed instead of linked.
using Device = void*;
constexpr int kSuccess = 0;
constexpr unsigned kSmClock = 1, kMemoryClock = 2;  // NVML_CLOCK_SM, NVML_CLOCK_MEM
constexpr unsigned kOnDie = 0;                      // NVML_TEMPERATURE_GPU

class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    ready_ = call<int()>("nvmlInit_v2") == kSuccess;
  }
  bool ready() const { return ready_; }

  // The result of the function of this name; NVML's own code for "not found" without it.
  template <typename Function, typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<Function*>(dlsym(library_, name));
    constexpr int kFunctionNotFound = 13;  // NVML_ERROR_FUNCTION_NOT_FOUND
    return function == nullptr ? kFunctionNotFound : function(arguments...);
  }

 private:
  void* library_;  // open for the life of the process: the driver's state is expensive to make
  bool ready_ = false;
};

}  // namespace

std::optional<GpuState> gpu_state(int index) {
  static const Nvml nvml;
  Device device = nullptr;
  if (!nvml.ready() ||
      nvml.call<int(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2",
                                        static_cast<unsigned>(index), &device) != kSuccess) {
    return std::nullopt;
  }
  unsigned sm = 0, memory = 0, power = 0, limit = 0, temperature = 0;
  nvml.call<int(Device, unsigned, unsigned*)>("nvmlDeviceGetClockInfo", device, kSmClock, &sm);
  nvml.call<int(Device, unsigned, unsigned*)>("nvmlDeviceGetClockInfo", device, kMemoryClock,
                                              &memory);
  nvml.call<int(Device, unsigned*)>("nvmlDeviceGetPowerUsage", device, &power);
  nvml.call<int(Device, unsigned*)>("nvmlDeviceGetEnforcedPowerLimit", device, &limit);
  nvml.call<int(Device, unsigned, unsigned*)>("nvmlDeviceGetTemperature", device, kOnDie,
                                              &temperature);
  return GpuState{static_cast<double>(sm), static_cast<double>(memory), power / 1e3, limit / 1e3,
                  static_cast<double>(temperature)};
}

std::string describe(const GpuState& state) {
  return str("SM ", fixed(state.sm_clock_mhz, 0), " MHz, memory ", fixed(state.memory_clock_mhz, 0),
             " MHz, ", fixed(state.power_watts, 0), " W of ", fixed(state.power_limit_watts, 0),
             " W, ", fixed(state.temperature_celsius, 0), " C");
}

}  // namespace flashstep::measure
