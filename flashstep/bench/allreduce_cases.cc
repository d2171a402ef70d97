#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "flashstep/base/text.h"
#include "flashstep/bench/allreduce.h"
#include "flashstep/bench/turns.h"
#include "flashstep/error.h"
#include "flashstep/measure/data_sheet.h"
#include "flashstep/measure/limits.h"

namespace flashstep::tools {
namespace {

// Elements that are compared, or written, at a time: the rest of the memory is the buffer's.
constexpr int64_t kChunk = int64_t{1} << 22;

// factor (i mod p + 1) for the first elements; whole periods, so that it holds for every chunk.
at::Tensor pattern(const at::Tensor& like, int64_t period, int64_t factor) {
  const int64_t length = std::min(like.numel(), kChunk) / period * period + period;
  const auto options = at::TensorOptions(at::kLong).device(like.device());
  return (at::arange(length, options).remainder(period).add_(1).mul_(factor))
      .to(like.scalar_type());
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
    plan.transports = {{"nccl", "cuda"}};
  }
  return plan;
}

std::vector<Transport> transports_of(const std::vector<std::string>& backends,
                                     const std::vector<std::string>& devices) {
  std::vector<Transport> transports = {{"gloo", "cpu"}, {"gloo", "cuda"}, {"nccl", "cuda"}};
  std::erase_if(transports, [&](const Transport& transport) {
    return !is_wanted(backends, transport.first) || !is_wanted(devices, transport.second);
  });
  require(!transports.empty(), "[bench allreduce] expected a backend for the device, got ",
          join(backends), " on ", join(devices), ": NCCL knows no CPU");
  return transports;
}

std::string describe(const AllreduceCase& c) {
  return str(c.backend, " ", c.device, " ", c.ranks, " ranks ", static_cast<double>(c.bytes) / 1e6,
             " MB ", c.dtype);
}

std::vector<std::vector<AllreduceCase>> jobs_of(const AllreducePlan& plan) {
  const int64_t width = element_bytes(plan.dtype);
  std::vector<std::vector<AllreduceCase>> jobs;
  for (const auto& [backend, device] : plan.transports) {
    for (const int64_t ranks : plan.ranks) {
      pattern_period(plan.dtype, ranks);
      jobs.emplace_back();
      for (const double megabytes : plan.megabytes) {
        const auto elements = std::llround(megabytes * 1e6 / static_cast<double>(width));
        require(elements >= ranks, "[bench allreduce] expected at least an element for each of ",
                ranks, " ranks, got ", megabytes, " MB");
        jobs.back().push_back({backend, device, plan.dtype, ranks, elements * width});
      }
    }
  }
  return jobs;
}

Fields key_of(const AllreduceCase& c) {
  return {{"backend", c.backend},
          {"device", c.device},
          {"dtype", c.dtype},
          {"ranks", c.ranks},
          {"size", static_cast<double>(c.bytes) / 1e6}};
}

int64_t pattern_period(const std::string& dtype, int64_t ranks) {
  // Whole numbers up to 2^(bits of the significand) are exact: 24, 8 and 11 bits.
  const at::ScalarType type = scalar_type(dtype);
  const int64_t exact = int64_t{1} << (type == at::kFloat ? 24 : type == at::kHalf ? 11 : 8);
  const int64_t most = exact / (ranks * (ranks + 1) / 2);
  for (const int64_t prime : {251, 31, 13, 7, 5, 3}) {
    if (prime <= most) return prime;
  }
  throw UserError(str("[bench allreduce] expected few enough ranks for exact sums in ", dtype,
                      ", got ", ranks));
}

void fill_pattern(at::Tensor buffer, const std::string& dtype, int64_t ranks, int64_t rank) {
  const at::Tensor source = pattern(buffer, pattern_period(dtype, ranks), rank + 1);
  for (const at::Tensor& part : buffer.split(source.numel()))
    part.copy_(source.narrow(0, 0, part.numel()));
}

int64_t count_wrong(const at::Tensor& buffer, const std::string& dtype, int64_t ranks) {
  const at::Tensor sum = pattern(buffer, pattern_period(dtype, ranks), ranks * (ranks + 1) / 2);
  int64_t wrong = 0;
  for (const at::Tensor& part : buffer.split(sum.numel()))  // NaN differs from everything
    wrong += part.ne(sum.narrow(0, 0, part.numel())).sum().item<int64_t>();
  return wrong;
}

Links links_of(const std::vector<Transport>& transports, const std::string& gpu_name) {
  Links links;
  for (const Transport& transport : transports) {
    if (transport.first == "nccl") {
      if (const auto sheet = measure::find_link_sheet(gpu_name))
        links[transport] = {sheet->bytes_per_s, sheet->source};
      continue;
    }
    const measure::Limits measured = measure::remembered_limits("link");
    for (const measure::Limit& limit : measured.limits) {
      if (limit.name == "loopback")
        links[transport] = {
            limit.rate, str(limit.method, " over the loopback, measured ", measured.measured_at)};
    }
    if (!links.contains(transport)) throw MachineError("[limits] the loopback was not measured");
  }
  return links;
}

}  // namespace flashstep::tools
