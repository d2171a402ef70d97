// Data parallelism and the sharded optimizer over NCCL on two GPUs.
#include <cmath>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include "flashstep/parallel/backend.h"
#include "flashstep/parallel/test_gpu_cases.h"
#include "flashstep/testing/toy_modules.h"

namespace flashstep {
namespace {

using testing::PlainToy;
using testing::same_bits;
using testing::TiedToy;
using torch::Tensor;

TEST(GpuRanks, AllStrategiesTrainLikeOneProcess) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](const Group& group, at::Device device) {
    expect_single_process_training<PlainToy>(group, device, gpu_cases());
    expect_single_process_training<TiedToy>(group, device, gpu_cases());
  });
}

// Enough work for a copy or a collective to overtake it, if it did not wait: the numbers are such
// that the mean is exact, and memory of earlier steps is given to others.
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
    // The gradient of parameter i is factor_of(i) (rank + step) everywhere, out of a matrix
    // product.
    Tensor loss = torch::zeros({}, device);
    const Tensor one = torch::full({1, kSide}, 1.0 * (group.rank() + step), device);
    for (int i = 0; i < kParameters; ++i) {
      const Tensor column = torch::full({kSide, 1}, factor_of(i), device);
      loss = loss + torch::matmul(torch::matmul(one, parameters[i]), column).sum();
    }
    loss.backward();
    reducer.finish_gradient_synchronization();
    const bool by_copies = options.strategy == Strategy::kBucketed && options.peer_copies;
    EXPECT_EQ(reducer.transport(), !goes_through_nccl(parameters, group) ? "Gloo"
                                   : by_copies                           ? "copies"
                                                                         : "NCCL");
    const double mean = (group.world_size() - 1) / 2.0 + step;
    const Tensor norm = reducer.gradient_norm();
    EXPECT_EQ(norm.defined(), reducer.transport() == "copies" && !options.communication_dtype);
    if (norm.defined()) {
      double squares = 0;
      for (int i = 0; i < kParameters; ++i) squares += std::pow(factor_of(i) * mean * kSide, 2);
      EXPECT_NEAR(norm.item<double>(), std::sqrt(squares), 1e-6 * std::sqrt(squares));
    }
    for (int i = 0; i < kParameters; ++i) {
      EXPECT_TRUE(same_bits(parameters[i].grad(), (make() * (factor_of(i) * mean)).to(gradients)))
          << "step " << step << ", parameter " << i;
    }
  }
}

TEST(GpuRanks, CopiesAndCollectivesWaitForTheirInputs) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](const Group& group, at::Device device) {
    for (const Case& c : gpu_cases()) {
      SCOPED_TRACE(c.name);
      expect_exact_means(group, device, c.options, c.gradients.value_or(at::kFloat));
    }
    for (const bool peer_copies : {true, false}) {
      SCOPED_TRACE(str("bf16 communication", peer_copies ? " by copies" : ""));
      expect_exact_means(group, device,
                         {.peer_copies = peer_copies, .communication_dtype = torch::kBFloat16});
    }
  });
}

void expect_exact_means_of_sizes(const Group& group, at::Device device, bool peer_copies) {
  for (const double megabytes : {0.0, 1.0, 30.0}) {
    SCOPED_TRACE(str(megabytes, " MB"));
    for (const auto gradients : {at::kFloat, at::kBFloat16, at::kHalf}) {
      expect_exact_means(group, device, {.bucket_megabytes = megabytes, .peer_copies = peer_copies},
                         gradients);
    }
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

// Where means stay, gradients lie in the same memory in each step, also those that are zeroed and
// added to, and when buckets are made anew.
TEST(GpuRanks, GradientsAreViewsOfWhereMeansArrive) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](const Group& group, at::Device device) {
    std::vector<Tensor> parameters;
    // Three to a bucket, of which one arrives from the other rank whole; and small ones, packed.
    for (int i = 0; i < 10; ++i)
      parameters.push_back(torch::ones({300'000 + 8 * i}, device).requires_grad_());
    const auto doubles = torch::TensorOptions(device).dtype(torch::kDouble);
    for (int i = 0; i < 10; ++i)
      parameters.push_back(torch::ones({1000 + 8 * i}, doubles).requires_grad_());
    GradientReducer reducer(parameters, group,
                            {.bucket_megabytes = 3, .gradient_as_bucket_view = true});
    const auto step = [&](int number, bool to_none) {
      for (Tensor& parameter : parameters) {
        if (!parameter.grad().defined()) continue;
        to_none ? parameter.mutable_grad().reset()
                : static_cast<void>(parameter.mutable_grad().zero_());
      }
      reducer.prepare_for_backward();
      Tensor loss = torch::zeros({}, device);
      for (size_t i = 0; i < parameters.size(); ++i)
        loss = loss + parameters[i].sum() * static_cast<double>((i + 1) * (number + group.rank()));
      loss.backward();
      reducer.finish_gradient_synchronization();
      std::vector<void*> places;
      for (size_t i = 0; i < parameters.size(); ++i) {
        const Tensor& gradient = parameters[i].grad();
        EXPECT_TRUE(same_bits(gradient, torch::full_like(gradient, (i + 1) * (number + 0.5))))
            << "parameter " << i << ", step " << number;
        places.push_back(gradient.data_ptr());
      }
      return places;
    };
    const auto common = [](const std::vector<void*>& a, const std::vector<void*>& b) {
      int64_t count = 0;
      for (size_t i = 0; i < a.size(); ++i) count += a[i] == b[i];
      return count;
    };
    step(0, true);
    step(1, true);
    const std::vector<void*> first = step(2, true);
    std::vector<Tensor> others;  // so that nothing else gets the same memory again
    for (int i = 0; i < 40; ++i) others.push_back(torch::zeros({300'000 + 8 * (i % 10)}, device));
    EXPECT_GE(common(step(3, true), first), 13);
    const std::vector<void*> fourth = step(4, false);
    EXPECT_EQ(common(step(5, false), fourth), 20);
    reducer.record_again();
    for (int number = 6; number < 10; ++number) step(number, number >= 8);
  });
}

TEST(GpuRanks, NoSyncAddsUp) {
  FLASHSTEP_NEED_GPUS(2);
  on_two_gpus([](const Group& group, at::Device device) {
    expect_accumulation<PlainToy>(group, device, gpu_cases());
  });
}

// --- the sharded optimizer -------------------------------------------------------------------

template <typename Inner, typename Options>
void expect_whole(const Group& group, at::Device device, const Options& options, bool peer_copies,
                  bool moves = false) {
  const auto make = [&] { return make_parameters({3, 50'000, 7, 20, 1, 33'333}, device); };
  expect_sharded_is_whole<Inner>(group, make(), make(), options,
                                 {.part_megabytes = 0.1, .peer_copies = peer_copies}, moves);
}

void expect_whole_of_both(const Group& group, at::Device device) {
  for (const bool peer_copies : {true, false}) {
    SCOPED_TRACE(peer_copies ? "copies" : "collectives");
    const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
    expect_whole<torch::optim::AdamW>(group, device, torch::optim::AdamWOptions(0.01), peer_copies);
    expect_whole<torch::optim::SGD>(group, device, sgd, peer_copies);
    expect_whole<torch::optim::SGD>(group, device, sgd, peer_copies, /*moves=*/true);
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
    const auto train = [&](const Case& c) {
      return train_together<PlainToy, torch::optim::AdamW>(group, device, c,
                                                           torch::optim::AdamWOptions(0.01));
    };
    for (const auto gradients : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
      Case c{"", {.bucket_megabytes = 0.0001}, gradients};
      // LibTorch's AdamW takes bf16 gradients by way of a divided one only.
      if (gradients) c.shards = ShardOptions{.part_megabytes = 1e-4};
      const auto whole = train(c);
      for (const ShardMode mode : {ShardMode::kWhole, ShardMode::kFlat}) {
        for (const bool peer_copies : {true, false}) {
          SCOPED_TRACE(str(gradients ? "bf16, " : "", mode == ShardMode::kFlat ? "flat" : "whole",
                           peer_copies ? ", by copies" : ""));
          c.options.peer_copies = peer_copies;
          c.shards = {.mode = mode, .part_megabytes = 1e-4, .peer_copies = peer_copies};
          c.divides_gradients = mode == ShardMode::kFlat;
          expect_same_bits(train(c), whole);
        }
      }
    }
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
