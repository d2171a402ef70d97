// Options of a reducer under which tests repeat themselves.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/base/text.h"
#include "flashstep/data_parallel.h"

namespace flashstep {

struct Case {
  std::string name;
  ReducerOptions options;
  std::optional<at::ScalarType> gradients = std::nullopt;  // their dtype, if not their parameter's
};

inline void add_case(std::vector<Case>& cases, const std::string& name,
                     const std::function<void(ReducerOptions&)>& set) {
  cases.push_back({name, {}, {}});
  set(cases.back().options);
}

// On any device.
inline std::vector<Case> common_cases() {
  std::vector<Case> cases;
  for (const std::string& name : strategy_names()) {
    add_case(cases, name, [&](ReducerOptions& o) { o.strategy = strategy_by_name(name); });
  }
  for (const double megabytes : {0.0001, 0.0016, 0.01}) {
    add_case(cases, str("buckets of ", megabytes, " MB"),
             [&](ReducerOptions& o) { o.bucket_megabytes = megabytes; });
  }
  add_case(cases, "unused allowed", [](ReducerOptions& o) { o.allow_unused = true; });
  return cases;
}

// Those that take gradients of another dtype than their parameter's.
inline std::vector<Case> without_torch(std::vector<Case> cases) {
  std::erase_if(cases, [](const Case& c) { return c.options.strategy == Strategy::kTorch; });
  return cases;
}

// From now on gradients of those that are trained come in `dtype`.
inline void announce(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) {
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad()) parameter.set_grad_dtype(dtype);
  }
}

}  // namespace flashstep
