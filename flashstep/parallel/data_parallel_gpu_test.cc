// Data parallelism and the sharded optimizer over NCCL on two GPUs.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/parallel/backend.h"
#include "flashstep/parallel/test_gpu_cases.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::PlainToy;
using testing::same_bits;
using testing::TiedToy;
using torch::Tensor;

constexpr int64_t kRows = 12;  // of the global batch
constexpr int kSteps = 6;
constexpr double kRate = 0.1;

Tensor rows_of(const Group& group, const Tensor& all) {
  const int64_t rows = all.size(0) / group.world_size();
  return all.slice(0, group.rank() * rows, (group.rank() + 1) * rows);
}

std::vector<Tensor> copies(const torch::nn::Module& module) {
  std::vector<Tensor> result;
  for (const Tensor& parameter : module.parameters()) result.push_back(parameter.detach().clone());
  for (const Tensor& buffer : module.buffers()) result.push_back(buffer.clone());
  return result;
}

// LibTorch's SGD would keep its momentum in the gradients' dtype.
torch::optim::SGDOptions sgd(const Case& c) {
  return torch::optim::SGDOptions(kRate).momentum(c.gradients ? 0 : 0.9);
}

template <typename M>
std::vector<Tensor> train_alone(at::Device device, const Case& c, const Tensor& x,
                                const Tensor& y) {
  const auto net = make_module<M>(100, device);
  if (c.gradients) announce(net->parameters(), *c.gradients);
  torch::optim::SGD optimizer(net->parameters(), sgd(c));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    optimizer.step();
  }
  return copies(*net);
}

template <typename M>
std::vector<Tensor> train_together(const Group& group, at::Device device, const Case& c,
                                   const Tensor& x, const Tensor& y) {
  const auto net = make_module<M>(100 + group.rank(), device);
  if (c.gradients) announce(net->parameters(), *c.gradients);
  DistributedDataParallel<M> wrapped(net, group, c.options);
  torch::optim::SGD optimizer(wrapped.parameters(), sgd(c));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
    torch::mse_loss(wrapped.forward(rows_of(group, x)), rows_of(group, y)).backward();
    wrapped.finish_gradient_synchronization();
    optimizer.step();
  }
  return copies(*net);
}

template <typename M>
void expect_single_process_training(const Group& group, at::Device device) {
  torch::manual_seed(7);
  const Tensor x = torch::randn({kRows, 10}).to(device), y = torch::randn({kRows, 5}).to(device);
  struct Expected {
    std::vector<Tensor> alone, first;
  };
  Expected by_gradients[2];
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.name);
    const std::vector<Tensor> together = train_together<M>(group, device, c, x, y);
    auto& [alone, first] = by_gradients[c.gradients ? 1 : 0];
    if (first.empty()) {
      first = together;
      alone = train_alone<M>(device, c, x, y);
    }
    ASSERT_EQ(together.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      // Sums of 12 and of 2 times 6 rows round differently: some last bits a step. Gradients in
      // bf16, below 1, are rounded on each rank, as a mean and in the single process, by 2^-8 at
      // most; twice that for what a step changes in the next.
      const bool is_near = c.gradients
                               ? testing::close(together[i], alone[i], 2 * kSteps * kRate * 3 / 256)
                               : testing::close(together[i], alone[i], 2e-6, 1e-5);
      EXPECT_TRUE(is_near) << i;
      // Halving is exact, and a sum of two has one order.
      EXPECT_TRUE(same_bits(together[i].cpu(), first[i].cpu())) << i;
      const Tensor theirs = together[i].clone();
      group.broadcast(theirs, 1);
      EXPECT_TRUE(same_bits(together[i].cpu(), theirs.cpu())) << "ranks differ in " << i;
    }
  }
}

TEST(GpuRanks, AllStrategiesTrainLikeOneProcess) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](const Group& group, at::Device device) {
    expect_single_process_training<PlainToy>(group, device);
    expect_single_process_training<TiedToy>(group, device);
  });
}

// Enough work for a copy or a collective to overtake it, if it did not wait: the numbers are whole,
// so that the mean is exact, and memory of earlier steps is given to others.
void expect_exact_means(const Group& group, at::Device device, const ReducerOptions& options,
                        at::ScalarType gradients = at::kFloat) {
  constexpr int kParameters = 12;
  constexpr int64_t kSide = 1500;
  const auto make = [&] { return torch::ones({kSide, kSide}, device); };
  std::vector<Tensor> parameters;
  for (int i = 0; i < kParameters; ++i) parameters.push_back(make().requires_grad_());
  announce(parameters, gradients);
  GradientReducer reducer(parameters, group, options);
  for (int step = 0; step < 8; ++step) {
    for (Tensor& parameter : parameters) parameter.mutable_grad().reset();
    reducer.prepare_for_backward();
    // The gradient of parameter i is (i + 1) (rank + step) everywhere, out of a matrix product.
    Tensor loss = torch::zeros({}, device);
    const Tensor one = torch::full({1, kSide}, 1.0 * (group.rank() + step), device);
    for (int i = 0; i < kParameters; ++i) {
      const Tensor column = torch::full({kSide, 1}, i + 1.0, device);
      loss = loss + torch::matmul(torch::matmul(one, parameters[i]), column).sum();
    }
    loss.backward();
    reducer.finish_gradient_synchronization();
    const bool by_copies = options.strategy == Strategy::kBucketed && options.peer_copies;
    EXPECT_EQ(reducer.transport(), !goes_through_nccl(parameters, group) ? "Gloo"
                                   : by_copies                           ? "copies"
                                                                         : "NCCL");
    const double mean = (group.world_size() - 1) / 2.0 + step;
    for (int i = 0; i < kParameters; ++i) {
      EXPECT_TRUE(same_bits(parameters[i].grad(), (make() * ((i + 1) * mean)).to(gradients)))
          << "step " << step << ", parameter " << i;
    }
  }
}

TEST(GpuRanks, CopiesAndCollectivesWaitForTheirInputs) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](const Group& group, at::Device device) {
    for (const Case& c : all_cases()) {
      SCOPED_TRACE(c.name);
      expect_exact_means(group, device, c.options, c.gradients.value_or(at::kFloat));
    }
    ReducerOptions options;  // whole and half numbers below 128 are exact in bfloat16, too
    options.communication_dtype = torch::kBFloat16;
    for (const bool peer_copies : {true, false}) {
      SCOPED_TRACE(str("bf16 communication", peer_copies ? " by copies" : ""));
      options.peer_copies = peer_copies;
      expect_exact_means(group, device, options);
    }
  });
}

void expect_exact_means_of_sizes(const Group& group, at::Device device, bool peer_copies) {
  for (const double megabytes : {0.0, 1.0, 30.0}) {
    SCOPED_TRACE(str(megabytes, " MB"));
    ReducerOptions options;
    options.bucket_megabytes = megabytes;
    options.peer_copies = peer_copies;
    for (const auto gradients : {at::kFloat, at::kBFloat16, at::kHalf})
      expect_exact_means(group, device, options, gradients);
  }
}

TEST(GpuRanks, CopiesOfFourWaitForTheirInputs) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_by_copies(4, [](const Group& group, at::Device device) {
    expect_exact_means_of_sizes(group, device, /*peer_copies=*/true);
  });
}

TEST(GpuRanks, CollectivesOfFourWaitForTheirInputs) {
  FLASHSTEP_NEED_GPUS(4);
  testing::run_on_gpus(4, [](const Group& group, at::Device device) {
    expect_exact_means_of_sizes(group, device, /*peer_copies=*/false);
  });
}

TEST(GpuRanks, NoSyncAddsUp) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](const Group& group, at::Device device) {
    torch::manual_seed(7);
    const Tensor x = torch::randn({kRows, 10}).to(device), y = torch::randn({kRows, 5}).to(device);
    for (const Case& c : all_cases()) {
      SCOPED_TRACE(c.name);
      const auto alone = make_module<PlainToy>(100, device);
      torch::mse_loss(alone->forward(x), y).backward();
      const auto net = make_module<PlainToy>(100, device);
      if (c.gradients) announce(net->parameters(), *c.gradients);
      DistributedDataParallel<PlainToy> wrapped(net, group, c.options);
      const Tensor own_x = rows_of(group, x), own_y = rows_of(group, y);
      const auto backward = [&](int64_t m) {
        (torch::mse_loss(wrapped.forward(own_x.chunk(2)[m]), own_y.chunk(2)[m]) / 2).backward();
      };
      {
        const auto no_sync = wrapped.no_sync();
        backward(0);
      }
      backward(1);
      wrapped.finish_gradient_synchronization();
      for (size_t i = 0; i < alone->parameters().size(); ++i) {
        const Tensor& expected = alone->parameters()[i].grad();
        if (!expected.defined()) continue;
        // In bf16 two halves, their sum and the mean are rounded, of gradients below 1.
        EXPECT_TRUE(testing::close(net->parameters()[i].grad(), expected,
                                   c.gradients ? 4.0 / 256 : 1e-7, 1e-5))
            << i;
      }
    }
  });
}

// --- the sharded optimizer -------------------------------------------------------------------

std::vector<Tensor> make_parameters(at::Device device) {
  torch::manual_seed(11);
  std::vector<Tensor> parameters;
  for (const int64_t size : {3, 50'000, 7, 20, 1, 33'333}) {
    parameters.push_back(torch::randn({size, 2}).to(device).requires_grad_());
  }
  parameters.push_back(torch::randn({64}).to(device));  // frozen
  parameters.push_back(torch::randn({4, 6}).to(device).t().requires_grad_());
  return parameters;
}

void set_gradients(const std::vector<Tensor>& parameters, int step) {
  torch::manual_seed(1000 + step);
  for (const Tensor& parameter : parameters) {
    const Tensor gradient = torch::randn(parameter.sizes()).to(parameter.device());
    if (parameter.requires_grad()) parameter.mutable_grad() = gradient;
  }
}

template <typename Inner, typename Options>
void expect_whole(const Group& group, at::Device device, const Options& options,
                  const ShardOptions& shards, bool moves = false) {
  const auto own = make_parameters(device), reference = make_parameters(device);
  ShardedOptimizer<Inner> sharded(own, options, group, shards);
  Inner whole(reference, options);
  for (int step = 0; step < 5; ++step) {
    if (moves && step == 2) {  // as torch::load into a module does, on one rank or all
      for (size_t i = 0; i < own.size(); i += 1 + group.rank()) {
        Tensor parameter = own[i];
        parameter.set_data(parameter.detach().clone());
      }
    }
    set_gradients(own, step);
    set_gradients(reference, step);
    std::vector<uint32_t> versions;
    for (const Tensor& parameter : own) versions.push_back(parameter._version());
    sharded.step();
    whole.step();
    for (size_t i = 0; i < own.size(); ++i) {
      // Copies of it in another dtype are old, whoever wrote it.
      EXPECT_EQ(own[i]._version() > versions[i], own[i].requires_grad()) << i;
      EXPECT_TRUE(
          same_bits(own[i].detach().cpu().contiguous(), reference[i].detach().cpu().contiguous()))
          << "step " << step << ", parameter " << i;
    }
  }
  for (const Tensor& parameter : own) {
    const bool has_state = sharded.inner().state().count(parameter.unsafeGetTensorImpl()) > 0;
    EXPECT_EQ(has_state, parameter.requires_grad() && sharded.owner(parameter) == group.rank());
  }
}

void expect_whole_of_both(const Group& group, at::Device device) {
  for (const bool peer_copies : {true, false}) {
    SCOPED_TRACE(peer_copies ? "copies" : "collectives");
    const ShardOptions shards = {.part_megabytes = 0.1, .peer_copies = peer_copies};
    const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
    expect_whole<torch::optim::AdamW>(group, device, torch::optim::AdamWOptions(0.01), shards);
    expect_whole<torch::optim::SGD>(group, device, sgd, shards);
    expect_whole<torch::optim::SGD>(group, device, sgd, shards, /*moves=*/true);
  }
}

TEST(GpuRanks, ShardedIsWhole) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus(expect_whole_of_both);
}

TEST(GpuRanks, ShardedByFourIsWhole) {
  FLASHSTEP_NEED_GPUS(4);
  testing::run_on_gpus(4, expect_whole_of_both);
}

// Wrapper and sharded optimizer together, beside the wrapper with a whole one. Between two ranks
// every sum has one order, divided or not.
TEST(GpuRanks, ShardedUnderDdpIsWhole) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](const Group& group, at::Device device) {
    torch::manual_seed(7);
    const Tensor x = torch::randn({kRows, 10}).to(device), y = torch::randn({kRows, 5}).to(device);
    const torch::optim::AdamWOptions options(0.01);
    ReducerOptions small_buckets;
    small_buckets.bucket_megabytes = 0.0001;
    bool narrow = false;
    const auto train = [&](std::optional<ShardMode> mode, bool peer_copies = true) {
      const auto net = make_module<PlainToy>(100, device);
      if (narrow) announce(net->parameters(), at::kBFloat16);
      small_buckets.peer_copies = peer_copies;
      DistributedDataParallel<PlainToy> wrapped(net, group, small_buckets);
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      if (mode) {
        ShardOptions shards = {.mode = *mode, .part_megabytes = 1e-4, .peer_copies = peer_copies};
        if (*mode == ShardMode::kFlat) shards.reducer = &wrapped.reducer();
        optimizer = std::make_unique<ShardedOptimizer<torch::optim::AdamW>>(wrapped.parameters(),
                                                                            options, group, shards);
      } else {
        optimizer = std::make_unique<torch::optim::AdamW>(wrapped.parameters(), options);
      }
      for (int step = 0; step < kSteps; ++step) {
        optimizer->zero_grad();
        torch::mse_loss(wrapped.forward(rows_of(group, x)), rows_of(group, y)).backward();
        wrapped.finish_gradient_synchronization();
        optimizer->step();
      }
      return copies(*net);
    };
    const auto expect_same = [&](const std::vector<Tensor>& whole) {
      for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
        for (const bool peer_copies : {true, false}) {
          const auto sharded = train(mode, peer_copies);
          for (size_t i = 0; i < whole.size(); ++i) {
            EXPECT_TRUE(same_bits(sharded[i].cpu(), whole[i].cpu()))
                << i << (mode == ShardMode::kFlat ? ", flat" : ", whole") << peer_copies;
          }
        }
      }
    };
    expect_same(train(std::nullopt));
    SCOPED_TRACE("bf16 gradients");
    narrow = true;  // LibTorch's AdamW takes them by way of a divided one only
    expect_same(train(ShardMode::kWhole));
  });
}

TEST(GpuRanks, NormOverRanksIsTheSameOnAll) {
  FLASHSTEP_NEED_GPUS(2);
  for (const bool nccl : {true, false}) {
    on_two_gpus(
        [](const Group& group, at::Device device) {
          const Tensor own = torch::full({}, group.rank() == 0 ? 3.0 : 4.0, device);
          const Tensor norm = norm_over_ranks(own, group);
          EXPECT_EQ(norm.device(), device);
          EXPECT_EQ(norm.scalar_type(), torch::kFloat);
          EXPECT_EQ(norm.item<float>(), 5);
        },
        nccl);
  }
}

}  // namespace
}  // namespace flashstep
