// What tests of data parallelism have in common: ranks, options under which a test repeats itself,
// and a few steps of training, alone and together.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/base/text.h"
#include "flashstep/data_parallel.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"

namespace flashstep {

// Runs `body` on so many ranks, over Gloo: once for each of the numbers.
inline void on_ranks(std::initializer_list<int> world_sizes,
                     const std::function<void(const Group&)>& body) {
  for (const int world_size : world_sizes) {
    testing::run_ranks(world_size,
                       [&](const Environment& environment) { body(Group(environment)); });
  }
}
inline void on_ranks(int world_size, const std::function<void(const Group&)>& body) {
  on_ranks({world_size}, body);
}

// --- cases -------------------------------------------------------------------------------------

struct Case {
  std::string name;
  ReducerOptions options = {};
  std::optional<at::ScalarType> gradients = {};  // their dtype, if not their parameter's
  std::optional<ShardOptions> shards = {};       // of the optimizer, which is whole without them
  bool divides_gradients = false;                // to that optimizer
  int micro_steps = 1;
  double max_norm = 0;  // gradients are clipped to it; 0: they are not
};

// Those whose gradients are ours to send: all but torch.
inline std::vector<Strategy> own_strategies() {
  return {Strategy::kNaive, Strategy::kFlat, Strategy::kOverlapped, Strategy::kBucketed};
}

// On any device.
inline std::vector<Case> common_cases() {
  std::vector<Case> cases;
  for (const std::string& name : strategy_names())
    cases.push_back({name, {.strategy = strategy_by_name(name)}});
  for (const double megabytes : {0.0001, 0.0016, 0.01})
    cases.push_back({str("buckets of ", megabytes, " MB"), {.bucket_megabytes = megabytes}});
  cases.push_back({"unused allowed", {.allow_unused = true}});
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

// --- tensors -----------------------------------------------------------------------------------

// Made on the CPU, so that its numbers are those of any device.
template <typename M>
std::shared_ptr<M> make_module(int seed, at::Device device = at::kCPU) {
  torch::manual_seed(seed);
  auto net = std::make_shared<M>();
  net->to(device);
  return net;
}

inline at::Tensor rows_of(const Group& group, const at::Tensor& all) {
  const int64_t rows = all.size(0) / group.world_size();
  return all.slice(0, group.rank() * rows, (group.rank() + 1) * rows);
}

inline std::vector<at::Tensor> copies(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : module.parameters())
    result.push_back(parameter.detach().clone());
  for (const at::Tensor& buffer : module.buffers()) result.push_back(buffer.clone());
  return result;
}

// Tied ones once: torch's optimizers update a tensor as often as it is named.
inline std::vector<at::Tensor> distinct(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters) {
    const auto same = [&](const at::Tensor& other) { return other.is_same(parameter); };
    if (std::ranges::none_of(result, same)) result.push_back(parameter);
  }
  return result;
}

inline void expect_near(const std::vector<at::Tensor>& actual,
                        const std::vector<at::Tensor>& expected, double absolute,
                        double relative = 0) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(testing::close(actual[i], expected[i], absolute, relative)) << i;
}

inline void expect_same_bits(const std::vector<at::Tensor>& actual,
                             const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(testing::same_bits(actual[i].detach(), expected[i].detach())) << i;
}

inline void expect_same_on_all(const Group& group, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor first = tensor.contiguous().clone();
    group.broadcast(first);
    EXPECT_TRUE(testing::same_bits(tensor, first)) << "ranks differ";
  }
}

// --- training ----------------------------------------------------------------------------------

constexpr int64_t kRows = 12;  // of the global batch: divisible by 2, 3 and 4 ranks
constexpr int kSteps = 6;
constexpr double kRate = 0.1;

// LibTorch's SGD would keep its momentum in the gradients' dtype.
inline torch::optim::SGDOptions sgd_of(const Case& c) {
  return torch::optim::SGDOptions(kRate).momentum(c.gradients ? 0 : 0.9);
}

// Gradients of the toy modules are below 1. In bf16 each is rounded on each rank, as a mean, and in
// the single process, by 2^-8 at most; twice that for what a step changes in the next.
constexpr double kNarrowBound = 2 * kSteps * kRate * 3 / 256;

struct Rows {
  at::Tensor x, y;
  Rows(int step, at::Device device) {
    torch::manual_seed(500 + step);
    x = torch::randn({kRows, 10}).to(device);
    y = torch::randn({kRows, 5}).to(device);
  }
};

// Every way in which a training loop gets rid of old gradients; of another dtype, those that keep
// it.
inline void clear_gradients(int step, torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                            const Case& c) {
  switch (step % (c.gradients ? 2 : 5)) {
    case 0:
      return optimizer.zero_grad();
    case 1:
      return optimizer.zero_grad(/*set_to_none=*/false);
    case 2:
      return module.zero_grad();
    case 3:
      return module.zero_grad(/*set_to_none=*/false);
    default:
      for (at::Tensor& parameter : module.parameters()) {
        if (parameter.requires_grad()) parameter.mutable_grad() = torch::zeros_like(parameter);
      }
  }
}

// Rank 0's module in one process.
template <typename M, typename Inner = torch::optim::SGD, typename Options>
std::vector<at::Tensor> train_alone(at::Device device, const Case& c, const Options& options) {
  const auto net = make_module<M>(100, device);
  if (c.gradients) announce(net->parameters(), *c.gradients);
  const std::vector<at::Tensor> parameters = distinct(net->parameters());
  Inner optimizer(parameters, options);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Rows rows(step, device);
    torch::mse_loss(net->forward(rows.x), rows.y).backward();
    if (c.max_norm > 0) torch::nn::utils::clip_grad_norm_(parameters, c.max_norm);
    optimizer.step();
  }
  return copies(*net);
}

// The gradients of this rank's rows of a step, the mean over all ranks at its end.
template <typename Net>
void backward_of_own_rows(Net& wrapped, const Group& group, const Rows& rows, int micro_steps) {
  const auto x = rows_of(group, rows.x).chunk(micro_steps);
  const auto y = rows_of(group, rows.y).chunk(micro_steps);
  for (int micro = 0; micro < micro_steps; ++micro) {
    std::optional<GradientReducer::NoSync> no_sync;
    if (micro + 1 < micro_steps) no_sync.emplace(wrapped.no_sync());
    (torch::mse_loss(wrapped.forward(x[micro]), y[micro]) / micro_steps).backward();
  }
  wrapped.finish_gradient_synchronization();
}

template <typename M, typename Inner = torch::optim::SGD, typename Options>
std::vector<at::Tensor> train_together(const Group& group, at::Device device, const Case& c,
                                       const Options& options) {
  const auto net = make_module<M>(100 + group.rank(), device);  // wrapping makes rank 0's of it
  if (c.gradients) announce(net->parameters(), *c.gradients);
  DistributedDataParallel<M> wrapped(net, group, c.options);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (c.shards) {
    ShardOptions shards = *c.shards;
    if (c.divides_gradients) shards.reducer = &wrapped.reducer();
    optimizer =
        std::make_unique<ShardedOptimizer<Inner>>(wrapped.parameters(), options, group, shards);
  } else {
    optimizer = std::make_unique<Inner>(wrapped.reducer().reduced_parameters(), options);
  }
  for (int step = 0; step < kSteps; ++step) {
    clear_gradients(step, wrapped, *optimizer, c);
    backward_of_own_rows(wrapped, group, Rows(step, device), c.micro_steps);
    if (c.max_norm > 0 && c.shards) {
      static_cast<ShardedOptimizerBase&>(*optimizer).clip_grad_norm(c.max_norm);
    } else if (c.max_norm > 0) {
      torch::nn::utils::clip_grad_norm_(wrapped.reducer().reduced_parameters(), c.max_norm);
    }
    optimizer->step();
  }
  for (const at::Tensor& parameter : net->parameters()) {
    EXPECT_TRUE(parameter.requires_grad() || !parameter.grad().defined());
    if (parameter.grad().defined()) {
      EXPECT_EQ(parameter.grad().scalar_type(), c.gradients.value_or(parameter.scalar_type()));
    }
  }
  return copies(*net);
}

// Every case does what a single process does, and the same on all ranks; up to two ranks also the
// same as the other cases with gradients of its dtype.
template <typename M>
void expect_single_process_training(const Group& group, at::Device device,
                                    const std::vector<Case>& cases) {
  struct Expected {
    std::vector<at::Tensor> alone, first;
  };
  Expected by_gradients[2];
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::vector<at::Tensor> together = train_together<M>(group, device, c, sgd_of(c));
    auto& [alone, first] = by_gradients[c.gradients ? 1 : 0];
    if (first.empty()) {
      first = together;
      alone = train_alone<M>(device, c, sgd_of(c));
    }
    expect_same_on_all(group, together);
    if (c.gradients) {
      expect_near(together, alone, kNarrowBound);
    } else {
      // Sums of 12 and of 2 to 4 times fewer rows round differently: some last bits a step.
      expect_near(together, alone, 2e-6, 1e-5);
    }
    // Halving is exact and a sum of two has one order; of three, place and order matter.
    if (group.world_size() <= 2) {
      expect_same_bits(together, first);
    } else {
      expect_near(together, first, c.gradients ? kNarrowBound : 1e-6, 1e-5);
    }
  }
}

// The same sum of gradients as without wrapper, for micro-batches of which the last synchronizes.
template <typename M>
void expect_accumulation(const Group& group, at::Device device, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto alone = make_module<M>(100, device), net = make_module<M>(100, device);
    if (c.gradients) announce(net->parameters(), *c.gradients);
    DistributedDataParallel<M> wrapped(net, group, c.options);
    for (int step = 0; step < 3; ++step) {
      alone->zero_grad();
      net->zero_grad(/*set_to_none=*/step != 1);
      const Rows rows(step, device);
      torch::mse_loss(alone->forward(rows.x), rows.y).backward();
      backward_of_own_rows(wrapped, group, rows, /*micro_steps=*/3);
      for (size_t i = 0; i < alone->parameters().size(); ++i) {
        const at::Tensor& expected = alone->parameters()[i].grad();
        if (!expected.defined()) continue;
        // In bf16 three parts, two sums and the mean are rounded, of gradients below 1.
        EXPECT_TRUE(testing::close(net->parameters()[i].grad(), expected,
                                   c.gradients ? 6.0 / 256 : 1e-7, 1e-5))
            << i;
      }
    }
  }
}

// --- parameters without a module ---------------------------------------------------------------

// Of unlike sizes, one of them frozen and one not row by row in memory; the same on every rank.
inline std::vector<at::Tensor> make_parameters(std::initializer_list<int64_t> sizes,
                                               at::Device device = at::kCPU) {
  torch::manual_seed(11);
  std::vector<at::Tensor> parameters;
  for (const int64_t size : sizes)
    parameters.push_back(torch::randn({size, 2}).to(device).requires_grad_());
  parameters.push_back(torch::randn({64}).to(device));  // frozen
  parameters.push_back(torch::randn({4, 6}).to(device).t().requires_grad_());
  return parameters;
}

inline void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
  torch::manual_seed(1000 + step);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor gradient = torch::randn(parameters[i].sizes()).to(parameters[i].device());
    if (!parameters[i].requires_grad()) continue;
    // One is without gradient now and then.
    parameters[i].mutable_grad() = i == 2 && step % 2 == 1 ? at::Tensor() : gradient;
  }
}

// A divided optimizer of any kind does what the whole one does. `moves`: between two steps
// parameters get other memory, as by torch::load into a module, on one rank or all.
template <typename Inner, typename Options>
void expect_sharded_is_whole(const Group& group, std::vector<at::Tensor> own,
                             const std::vector<at::Tensor>& reference, const Options& options,
                             const ShardOptions& shards, bool moves = false) {
  const std::vector<at::Tensor> parameters = own;
  own.push_back(own.front());  // tied
  ShardedOptimizer<Inner> sharded(own, options, group, shards);
  Inner whole(reference, options);
  for (int step = 0; step < 5; ++step) {
    if (moves && step == 2) {
      for (size_t i = 0; i < parameters.size(); i += 1 + group.rank()) {
        at::Tensor parameter = parameters[i];
        parameter.set_data(parameter.detach().clone());
      }
    }
    set_gradients(parameters, step);
    set_gradients(reference, step);
    std::vector<uint32_t> versions;
    for (const at::Tensor& parameter : parameters) versions.push_back(parameter._version());
    sharded.step();
    whole.step();
    SCOPED_TRACE(str("step ", step));
    expect_same_bits(parameters, reference);
    for (size_t i = 0; i < parameters.size(); ++i) {
      // Copies of it in another dtype are old, whoever wrote it.
      if (parameters[i].grad().defined()) {
        EXPECT_GT(parameters[i]._version(), versions[i]) << i;
      }
      EXPECT_TRUE(parameters[i].requires_grad() || parameters[i]._version() == versions[i]) << i;
    }
  }
  if (shards.mode == ShardMode::kFlat) return;  // the state is of pieces
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) continue;
    const bool has_state = sharded.inner().state().count(parameter.unsafeGetTensorImpl()) > 0;
    EXPECT_EQ(has_state, sharded.owner(parameter) == group.rank());
  }
}

}  // namespace flashstep
