#include "flashstep/report/bench_allreduce_cases.h"

#include <algorithm>
#include <cmath>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/report/bench_allreduce_pattern.h"

namespace flashstep::report {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::vector<std::string> allreduce_presets() { return {"2024", "2025", "2026"}; }

AllreducePlan allreduce_preset(const std::string& name) {
  AllreducePlan plan;
  plan.ranks = {2, 4, 6};
  plan.megabytes = {1, 10, 100, 1000};
  if (name == "2024") {
    plan.megabytes = {0.512, 1, 10, 50, 100, 500, 1000};
    plan.transports = {{"gloo", "cpu"}, {"gloo", "cuda"}, {"nccl", "cuda"}};
  } else if (name == "2025") {
    plan.transports = {{"gloo", "cpu"}, {"nccl", "cuda"}};
  } else {
    require(name == "2026", "[bench allreduce] expected a preset of ", join(allreduce_presets()),
            ", got \"", name, "\"");
    plan.transports = {{"nccl", "cuda"}};
  }
  return plan;
}

std::vector<std::pair<std::string, std::string>> transports_of(
    const std::vector<std::string>& backends, const std::vector<std::string>& devices) {
  std::vector<std::pair<std::string, std::string>> transports;
  for (const auto& [backend, device] :
       {std::pair("gloo", "cpu"), std::pair("gloo", "cuda"), std::pair("nccl", "cuda")}) {
    if (contains(backends, backend) && contains(devices, device)) {
      transports.emplace_back(backend, device);
    }
  }
  require(!transports.empty(), "[bench allreduce] expected a backend for the device, got ",
          join(backends), " on ", join(devices), ": NCCL knows no CPU");
  return transports;
}

std::string describe(const AllreduceCase& c) {
  return str(c.backend, " ", c.device, " ", c.ranks, " ranks ", static_cast<double>(c.bytes) / 1e6,
             " MB ", c.dtype);
}

std::vector<AllreduceCase> cases_of(const AllreducePlan& plan) {
  const int64_t width = element_bytes(plan.dtype);
  std::vector<AllreduceCase> cases;
  for (const auto& [backend, device] : plan.transports) {
    for (const int64_t ranks : plan.ranks) {
      require(ranks >= 2, "[bench allreduce] expected at least 2 ranks, got ", ranks);
      pattern_period(plan.dtype, ranks);
      for (const double megabytes : plan.megabytes) {
        const auto elements = std::llround(megabytes * 1e6 / static_cast<double>(width));
        require(elements >= ranks, "[bench allreduce] expected at least an element for each of ",
                ranks, " ranks, got ", megabytes, " MB");
        cases.push_back({backend, device, plan.dtype, ranks, elements * width});
      }
    }
  }
  require(!cases.empty(), "[bench allreduce] expected sizes and ranks, got none");
  return cases;
}

double algorithm_bandwidth(const AllreduceCase& c, double seconds) {
  return static_cast<double>(c.bytes) / seconds;
}

double bus_bandwidth(const AllreduceCase& c, double seconds) {
  const auto n = static_cast<double>(c.ranks);
  return algorithm_bandwidth(c, seconds) * 2 * (n - 1) / n;
}

Fields key_of(const AllreduceCase& c) {
  return {{"backend", c.backend},
          {"device", c.device},
          {"dtype", c.dtype},
          {"ranks", c.ranks},
          {"size", static_cast<double>(c.bytes) / 1e6}};
}

}  // namespace flashstep::report
