// Flat shards over NCCL, Gloo and copies on two GPUs.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "flashstep/data_parallel.h"
#include "flashstep/parallel/backend.h"
#include "flashstep/parallel/divided_gradient.h"
#include "flashstep/parallel/test_gpu_cases.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::PlainToy;
using testing::same_bits;
using torch::Tensor;

// Of factor_of(i): means, sums and updates are exact. SGD with a learning rate of 1 takes
// factor_of(i) ((W - 1) / 2 + step) from every element of parameter i. Twelve buckets of 9 MB
// (options permitting) and products between them: what does not wait for its input reads another
// step's numbers.
void expect_exact_updates(const Group& group, at::Device device, const ReducerOptions& options,
                          bool peer_copies, at::ScalarType gradients = at::kFloat) {
  constexpr int kParameters = 12;
  constexpr int64_t kSide = 1500;
  std::vector<Tensor> parameters;
  for (int i = 0; i < kParameters; ++i)
    parameters.push_back(torch::ones({kSide, kSide}, device).requires_grad_());
  announce(parameters, gradients);
  GradientReducer reducer(parameters, group, options);
  ShardedOptimizer<torch::optim::SGD> optimizer(parameters, torch::optim::SGDOptions(1), group,
                                                {.mode = ShardMode::kFlat,
                                                 .reducer = &reducer,
                                                 .part_megabytes = 5,
                                                 .peer_copies = peer_copies});
  double taken = 0;
  for (int step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    reducer.prepare_for_backward();
    Tensor loss = torch::zeros({}, device);
    const Tensor one = torch::full({1, kSide}, 1.0 * (group.rank() + step), device);
    for (int i = 0; i < kParameters; ++i) {
      const Tensor column = torch::full({kSide, 1}, factor_of(i), device);
      loss = loss + (i % 4 == 3 ? parameters[i].sum() * (factor_of(i) * (group.rank() + step))
                                : torch::matmul(torch::matmul(one, parameters[i]), column).sum());
    }
    loss.backward();
    reducer.finish_gradient_synchronization();
    // Doubled and halved where the step will look for them.
    for (const Tensor& gradient : optimizer.gradients()) {
      EXPECT_EQ(gradient.scalar_type(), gradients);
      gradient.mul_(2).div_(2);
    }
    std::vector<uint32_t> versions;
    for (const Tensor& parameter : parameters) versions.push_back(parameter._version());
    optimizer.step();
    EXPECT_EQ(optimizer.transport(), !goes_through_nccl(parameters, group) ? "Gloo"
                                     : peer_copies                         ? "copies"
                                                                           : "NCCL");
    taken += (group.world_size() - 1) / 2.0 + step;
    for (int i = 0; i < kParameters; ++i) {
      EXPECT_TRUE(same_bits(parameters[i].detach(),
                            torch::full({kSide, kSide}, 1 - factor_of(i) * taken, device)))
          << "step " << step << ", parameter " << i;
      EXPECT_GT(parameters[i]._version(), versions[i]) << "copies in another dtype are old";
    }
  }
}

void expect_exact_updates_of_all(const Group& group, at::Device device,
                                 const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    for (const bool peer_copies : {true, false})
      expect_exact_updates(group, device, c.options, peer_copies, c.gradients.value_or(at::kFloat));
    ReducerOptions options = c.options;
    if (options.strategy == Strategy::kTorch || c.gradients) continue;
    options.communication_dtype = torch::kBFloat16;
    SCOPED_TRACE("bf16 communication");
    expect_exact_updates(group, device, options, /*peer_copies=*/true);
  }
}

// Divided as flat buckets or all-reduced in place; in twelve, three and one buckets.
TEST(GpuRanks, FlatShardsWaitForTheirInputs) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](const Group& group, at::Device device) {
    std::vector<Case> cases = gpu_cases();
    for (const bool flat : {true, false}) {
      for (const double megabytes : {1.0, 30.0, 1000.0}) {
        Case c = {str(flat ? "flat buckets of " : "in place, buckets of ", megabytes, " MB"),
                  {.bucket_megabytes = megabytes, .flat_buckets = flat}};
        const auto add = [&] {
          cases.push_back(c);
          cases.back().name += ", bf16 gradients";
          cases.back().gradients = at::kBFloat16;
          cases.push_back(c);
        };
        c.options.peer_copies = false;
        add();
        if (flat) continue;
        c.name += ", by copies";
        c.options.peer_copies = true;
        add();
      }
    }
    expect_exact_updates_of_all(group, device, cases);
  });
}

void expect_exact_updates_of_sizes(const Group& group, at::Device device, bool peer_copies) {
  for (const double megabytes : {1.0, 30.0}) {
    SCOPED_TRACE(str(megabytes, " MB"));
    const ReducerOptions options{.bucket_megabytes = megabytes, .peer_copies = peer_copies};
    for (const auto gradients : {at::kFloat, at::kBFloat16})
      expect_exact_updates(group, device, options, peer_copies, gradients);
  }
}

TEST(GpuRanks, FlatShardsOfFourByCopiesWaitForTheirInputs) {
  FLASHSTEP_NEED_GPUS(2);
  testing::run_by_copies(4, [](const Group& group, at::Device device) {
    expect_exact_updates_of_sizes(group, device, /*peer_copies=*/true);
  });
}

TEST(GpuRanks, FlatShardsOfFourOverNcclWaitForTheirInputs) {
  FLASHSTEP_NEED_GPUS(4);
  testing::run_on_gpus(4, [](const Group& group, at::Device device) {
    expect_exact_updates_of_sizes(group, device, /*peer_copies=*/false);
  });
}

// A divided bucket may be flat; those of later steps, whole again, stay where they are.
TEST(GpuRanks, GradientsStayInPlaceAgainAfterTheOptimizer) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](const Group& group, at::Device device) {
    const auto net = make_module<PlainToy>(100, device);
    DistributedDataParallel<PlainToy> wrapped(net, group);
    const Tensor x = torch::ones({4, 10}, device);
    const auto backward = [&] {
      wrapped.forward(x).square().mean().backward();
      wrapped.finish_gradient_synchronization();
    };
    {
      ShardedOptimizer<torch::optim::SGD> optimizer(
          wrapped.parameters(), torch::optim::SGDOptions(0.1), group,
          {.mode = ShardMode::kFlat, .reducer = &wrapped.reducer()});
      for (int step = 0; step < 2; ++step) {
        backward();
        EXPECT_TRUE(is_divided_gradient(net->fc1->weight.grad()));
        optimizer.step();
      }
    }
    backward();
    const Tensor first = net->fc1->weight.grad(), other = net->fc3->weight.grad();
    EXPECT_FALSE(first.storage().is_alias_of(other.storage())) << "copied into one bucket";
  });
}

// Gloo sums up what it received in kernels of the side stream.
TEST(GpuRanks, FlatShardsOverGlooWaitForTheirInputs) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus(
      [](const Group& group, at::Device device) {
        expect_exact_updates_of_all(group, device,
                                    {{"buckets", {.bucket_megabytes = 1}},
                                     {"bf16 gradients", {.bucket_megabytes = 1}, at::kBFloat16},
                                     {"in place, bf16 gradients",
                                      {.bucket_megabytes = 1, .flat_buckets = false},
                                      at::kBFloat16}});
      },
      /*nccl=*/false);
}

}  // namespace
}  // namespace flashstep
