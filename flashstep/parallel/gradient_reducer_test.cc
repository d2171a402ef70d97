// Gradients averaged by every strategy, on 2, 3 and 4 ranks.
#include <optional>

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/base/hash.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/parallel/test_cases.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/ranks.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::PlainToy;
using testing::same_bits;
using testing::TiedToy;
using torch::Tensor;

constexpr int64_t kBatchRows = 12;  // of the global batch: divisible by 2, 3 and 4 ranks
constexpr int kReducedSteps = 6;

std::vector<Case> all_cases() {
  std::vector<Case> cases = common_cases();
  add_case(cases, "torch, buckets of 0.0016 MB", [](ReducerOptions& o) {
    o.strategy = Strategy::kTorch;
    o.bucket_megabytes = 0.0016;
  });
  add_case(cases, "buckets in place", [](ReducerOptions& o) {
    o.flat_buckets = false;
    o.bucket_megabytes = 0.0016;
  });
  add_case(cases, "buckets in place, unused allowed", [](ReducerOptions& o) {
    o.flat_buckets = false;
    o.allow_unused = true;
  });
  add_case(cases, "not reordered, debug", [](ReducerOptions& o) {
    o.reorder = false;
    o.debug = true;
  });
  return cases;
}

Tensor rows_of(const Group& group, const Tensor& all) {
  const int64_t rows = all.size(0) / group.world_size();
  return all.slice(0, group.rank() * rows, (group.rank() + 1) * rows);
}

// Every way in which a training loop gets rid of old gradients.
void clear_gradients(int step, torch::nn::Module& module, torch::optim::Optimizer& optimizer) {
  switch (step % 5) {
    case 0:
      return optimizer.zero_grad();
    case 1:
      return optimizer.zero_grad(/*set_to_none=*/false);
    case 2:
      return module.zero_grad();
    case 3:
      return module.zero_grad(/*set_to_none=*/false);
    default:
      for (Tensor& parameter : module.parameters()) {
        if (parameter.requires_grad()) parameter.mutable_grad() = torch::zeros_like(parameter);
      }
  }
}

std::vector<Tensor> copies(const torch::nn::Module& module) {
  std::vector<Tensor> result;
  for (const Tensor& parameter : module.parameters()) result.push_back(parameter.detach().clone());
  for (const Tensor& buffer : module.buffers()) result.push_back(buffer.clone());
  return result;
}

template <typename M>
std::vector<Tensor> train_alone(std::shared_ptr<M> net, const Tensor& x, const Tensor& y) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kReducedSteps; ++step) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    optimizer.step();
  }
  return copies(*net);
}

template <typename M>
std::vector<Tensor> train_together(const Group& group, const ReducerOptions& options,
                                   const Tensor& x, const Tensor& y) {
  torch::manual_seed(100 + group.rank());  // wrapping must make rank 0's of it
  const auto net = std::make_shared<M>();
  DistributedDataParallel<M> wrapped(net, group, options);
  torch::optim::SGD optimizer(wrapped.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kReducedSteps; ++step) {
    clear_gradients(step, wrapped, optimizer);
    torch::mse_loss(wrapped.forward(rows_of(group, x)), rows_of(group, y)).backward();
    wrapped.finish_gradient_synchronization();
    optimizer.step();
  }
  for (const Tensor& parameter : net->parameters()) {
    EXPECT_TRUE(parameter.requires_grad() || !parameter.grad().defined());
  }
  return copies(*net);
}

std::string hash_of(const std::vector<Tensor>& tensors) {
  std::string bytes;
  for (const Tensor& tensor : tensors) {
    const Tensor whole = tensor.contiguous();
    bytes.append(static_cast<const char*>(whole.data_ptr()), whole.nbytes());
  }
  return hash_bytes(bytes);
}

template <typename M>
void expect_single_process_training(const Group& group) {
  torch::manual_seed(7);
  const Tensor x = torch::randn({kBatchRows, 10}), y = torch::randn({kBatchRows, 5});
  torch::manual_seed(100);  // rank 0's
  const std::vector<Tensor> alone = train_alone(std::make_shared<M>(), x, y);
  std::vector<Tensor> first;
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.name);
    const std::vector<Tensor> together = train_together<M>(group, c.options, x, y);
    const auto hashes = group.all_gather(hash_of(together));
    for (const std::string& hash : hashes) EXPECT_EQ(hash, hashes.front()) << "ranks differ";
    if (first.empty()) first = together;
    ASSERT_EQ(together.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      // Sums of 12 and of 2 to 4 times fewer rows round differently: some last bits a step.
      EXPECT_TRUE(testing::close(together[i], alone[i], 2e-6, 1e-5)) << i;
      // Halving is exact and a sum of two has one order; of three, place and order matter.
      if (group.world_size() == 2) {
        EXPECT_TRUE(same_bits(together[i], first[i])) << i;
      }
      EXPECT_TRUE(testing::close(together[i], first[i], 1e-6, 1e-5)) << i;
    }
  }
}

TEST(Ranks, AllStrategiesTrainLikeOneProcess) {
  for (const int world_size : {2, 3, 4}) {
    testing::run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      expect_single_process_training<PlainToy>(group);
      expect_single_process_training<TiedToy>(group);
    });
  }
}

TEST(Ranks, OneProcessNeedsNoOthers) {
  const Group group{Environment()};
  torch::manual_seed(7);
  const Tensor x = torch::randn({kBatchRows, 10}), y = torch::randn({kBatchRows, 5});
  torch::manual_seed(100);
  const auto alone = train_alone(std::make_shared<PlainToy>(), x, y);
  const auto wrapped = train_together<PlainToy>(group, {}, x, y);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(same_bits(wrapped[i], alone[i]));
}

// The same sum of gradients as without wrapper, for micro-batches of which the last synchronizes.
void expect_accumulation(const Group& group, const ReducerOptions& options) {
  torch::manual_seed(7);
  const Tensor x = torch::randn({kBatchRows, 10}), y = torch::randn({kBatchRows, 5});
  torch::manual_seed(100);
  const auto alone = std::make_shared<PlainToy>();
  const auto net = std::make_shared<PlainToy>();
  DistributedDataParallel<PlainToy> wrapped(net, group, options);
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < alone->parameters().size(); ++i) {
      alone->parameters()[i].copy_(net->parameters()[i]);
    }
  }
  for (int step = 0; step < 3; ++step) {
    alone->zero_grad();
    net->zero_grad(/*set_to_none=*/step != 1);
    constexpr int64_t kMicroSteps = 3;
    torch::mse_loss(alone->forward(x), y).backward();
    for (int64_t m = 0; m < kMicroSteps; ++m) {
      // Each rank's third of its own rows.
      const Tensor own_x = rows_of(group, x).chunk(kMicroSteps)[m];
      const Tensor own_y = rows_of(group, y).chunk(kMicroSteps)[m];
      const auto backward = [&] {
        (torch::mse_loss(wrapped.forward(own_x), own_y) / kMicroSteps).backward();
      };
      if (m + 1 < kMicroSteps) {
        const auto no_sync = wrapped.no_sync();
        backward();
      } else {
        backward();
      }
    }
    wrapped.finish_gradient_synchronization();
    for (size_t i = 0; i < alone->parameters().size(); ++i) {
      const Tensor& expected = alone->parameters()[i].grad();
      if (!expected.defined()) continue;
      EXPECT_TRUE(testing::close(net->parameters()[i].grad(), expected, 1e-7, 1e-5)) << i;
    }
  }
}

TEST(Ranks, NoSyncAddsUp) {
  testing::run_ranks(2, [](const Environment& environment) {
    const Group group(environment);
    for (const Case& c : all_cases()) {
      SCOPED_TRACE(c.name);
      expect_accumulation(group, c.options);
    }
  });
}

// Gradients that are whole numbers: means of 2 and 4 ranks are exact whatever the order.
// `announced`: the gradients' dtype.
void expect_exact_means(const Group& group, const ReducerOptions& options,
                        const std::vector<torch::ScalarType>& dtypes,
                        std::optional<torch::ScalarType> announced = std::nullopt) {
  std::vector<Tensor> parameters, factors;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const std::vector<int64_t> shape = i % 2 ? std::vector<int64_t>{7, 3} : std::vector<int64_t>{};
    const Tensor value = torch::ones(shape, dtypes[i]);
    parameters.push_back((i % 4 == 1 ? value.t() : value).detach().requires_grad_());
    factors.push_back(
        torch::full(parameters.back().sizes(), static_cast<double>(i + 1), dtypes[i]));
  }
  if (announced) announce(parameters, *announced);
  GradientReducer reducer(parameters, group, options);
  for (int step = 0; step < 3; ++step) {
    for (Tensor& parameter : parameters) parameter.mutable_grad().reset();
    reducer.prepare_for_backward();
    Tensor loss = torch::zeros({});
    for (size_t i = 0; i < parameters.size(); ++i) {
      loss = loss + (parameters[i] * factors[i] * static_cast<double>(group.rank() + step))
                        .sum()
                        .to(torch::kFloat);
    }
    loss.backward();
    reducer.finish_gradient_synchronization();
    const double mean = (group.world_size() - 1) / 2.0 + step;
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(testing::close(parameters[i].grad(), factors[i].to(torch::kDouble) * mean, 0))
          << i;
      EXPECT_EQ(parameters[i].grad().scalar_type(), announced.value_or(dtypes[i]));
    }
  }
}

TEST(Ranks, MixedDtypesAndStrides) {
  for (const int world_size : {2, 4}) {
    testing::run_ranks(world_size, [](const Environment& environment) {
      const Group group(environment);
      for (const Case& c : all_cases()) {
        SCOPED_TRACE(c.name);
        const auto f = torch::kFloat, d = torch::kDouble, b = torch::kBFloat16;
        expect_exact_means(group, c.options, {f, f, f, f, f, f});
        expect_exact_means(group, c.options, {f, f, d, d, b, b, f, d, b});
      }
      for (const Case& c : without_torch(all_cases())) {
        for (const auto announced : {torch::kBFloat16, torch::kHalf, torch::kDouble}) {
          SCOPED_TRACE(str(c.name, ", gradients of ", c10::toString(announced)));
          const auto f = torch::kFloat, d = torch::kDouble, b = torch::kBFloat16;
          expect_exact_means(group, c.options, {f, f, d, f, b, f, f}, announced);
        }
      }
      for (const Strategy strategy : {Strategy::kNaive, Strategy::kFlat, Strategy::kBucketed}) {
        ReducerOptions options;  // whole numbers below 256 are exact in bfloat16, too
        options.strategy = strategy;
        options.communication_dtype = torch::kBFloat16;
        expect_exact_means(group, options, {torch::kFloat, torch::kFloat, torch::kFloat});
        options.flat_buckets = false;
        expect_exact_means(group, options, {torch::kFloat, torch::kFloat, torch::kFloat});
        expect_exact_means(group, options, {torch::kFloat, torch::kFloat}, torch::kBFloat16);
        expect_exact_means(group, options, {torch::kFloat, torch::kFloat}, torch::kHalf);
      }
    });
  }
}

}  // namespace
}  // namespace flashstep
