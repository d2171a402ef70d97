// What the tests of data parallelism on two GPUs have in common.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <torch/utils.h>

#include "flashstep/parallel/gradient_reducer.h"
#include "flashstep/testing/gpu_ranks.h"

namespace flashstep {

// Runs `body` on two ranks, each with its GPU, over NCCL or Gloo.
inline void on_two_gpus(const std::function<void(const comm::Group&, at::Device)>& body,
                        bool nccl = true) {
  testing::run_on_gpus(
      2,
      [&](const comm::Group& group, at::Device device) {
        at::globalContext().setAllowTF32CuBLAS(false);
        body(group, device);
      },
      nccl);
}

struct Case {
  std::string name;
  ReducerOptions options;
};

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, const std::function<void(ReducerOptions&)>& set) {
    cases.push_back({name, {}});
    set(cases.back().options);
  };
  for (const std::string& name : strategy_names()) {
    add(name, [&](ReducerOptions& o) { o.strategy = strategy_by_name(name); });
  }
  for (const double megabytes : {0.0001, 0.0016, 0.01}) {
    add(str("buckets of ", megabytes, " MB"),
        [&](ReducerOptions& o) { o.bucket_megabytes = megabytes; });
  }
  add("persistent", [](ReducerOptions& o) {
    o.persistent_buckets = true;
    o.bucket_megabytes = 0.0016;
  });
  for (const double megabytes : {0.0, 0.0001, 0.0016}) {
    add(str("by copies, buckets of ", megabytes, " MB"), [&](ReducerOptions& o) {
      o.peer_copies = true;
      o.bucket_megabytes = megabytes;
    });
  }
  add("unused allowed", [](ReducerOptions& o) { o.allow_unused = true; });
  return cases;
}

// Rank `seed - 100`'s module, made on the CPU so that its numbers are those of any device.
template <typename M>
std::shared_ptr<M> make_module(int seed, at::Device device) {
  torch::manual_seed(seed);
  auto net = std::make_shared<M>();
  net->to(device);
  return net;
}

}  // namespace flashstep
