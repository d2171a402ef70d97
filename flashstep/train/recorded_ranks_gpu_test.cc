// Steps of two ranks replayed from CUDA graphs against launched ones, to the bit: gradients and
// updates by copies between GPUs and by NCCL, the optimizer's state whole, divided and flat.
#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "flashstep/amp.h"
#include "flashstep/error.h"
#include "flashstep/parallel/test_gpu_cases.h"
#include "flashstep/train/test_recorded.h"

namespace flashstep {
namespace {

using torch::Tensor;

void on_ranks(const std::function<void(Group&, at::Device)>& body, int ranks = 2) {
  testing::run_ranks(ranks, [&](const Environment& environment) {
    const at::Device device = testing::take_gpu(environment);
    Group group(environment, testing::over_nccl());
    body(group, device);
  });
}

RecordedCase division(const std::string& wrapper, const std::string& peer_copies,
                      const std::string& shards) {
  RecordedCase c;
  c.parallel.wrapper = wrapper;
  c.parallel.peer_copies = peer_copies;
  c.parallel.shard_optimizer = shards;
  c.parallel.bucket_megabytes = 0.2;  // several buckets
  return c;
}

TEST(GpuRecordedRanks, GradientsAreAveragedInReplays) {
  FLASHSTEP_NEED_GPUS(2);
  on_ranks([](Group& group, at::Device device) {
    for (const char* wrapper : {"bucketed", "naive", "flat", "overlapped"}) {
      for (const char* copies : {"all", "none"}) {
        for (const int64_t accumulation : {1, 3}) {
          SCOPED_TRACE(str(wrapper, " ", copies, " ", accumulation));
          RecordedCase c = division(wrapper, copies, "none");
          c.accumulation_steps = accumulation;
          c.precision = accumulation == 1 ? Precision::kBFloat16 : Precision::kFloat32;
          expect_recorded_as_launched(c, device, &group);
        }
      }
    }
  });
}

TEST(GpuRecordedRanks, DividedOptimizersUpdateInReplays) {
  FLASHSTEP_NEED_GPUS(2);
  on_ranks([](Group& group, at::Device device) {
    for (const char* shards : {"whole", "flat"}) {
      for (const char* copies : {"all", "updates", "none"}) {
        for (const char* wrapper : {"bucketed", "flat"}) {
          SCOPED_TRACE(str(shards, " ", copies, " ", wrapper));
          expect_recorded_as_launched(division(wrapper, copies, shards), device, &group);
        }
      }
    }
  });
}

TEST(GpuRecordedRanks, MatricesOfMuonAreDividedInReplays) {
  FLASHSTEP_NEED_GPUS(2);
  on_ranks([](Group& group, at::Device device) {
    for (const char* copies : {"all", "none"}) {
      RecordedCase c = division("bucketed", copies, "whole");
      c.optimizer = "muon";
      c.precision = Precision::kBFloat16;
      SCOPED_TRACE(copies);
      expect_recorded_as_launched(c, device, &group);
    }
  });
}

RecordedCase fully_sharded(Precision precision, bool in_float8 = false) {
  RecordedCase c = division("bucketed", "all", "full");
  c.precision = precision;
  c.prepare = [precision, in_float8](TransformerImpl& model) {
    model.set_short_stream(precision == Precision::kBFloat16);
    model.set_float8_products(in_float8);
    if (precision == Precision::kBFloat16) keep_gradients_in(at::kBFloat16, model.parameters());
  };
  return c;
}

TEST(GpuRecordedRanks, ProductsOfFloat8AreReplayed) {
  FLASHSTEP_NEED_GPUS(2);
  on_ranks([](Group& group, at::Device device) {
    if (!has_float8_products(device)) return;
    for (const char* shards : {"none", "flat", "full"}) {
      for (const int64_t accumulation : {1, 3}) {
        for (const Recompute recompute : {Recompute::kNone, Recompute::kInner, Recompute::kBlock}) {
          SCOPED_TRACE(str(shards, " ", accumulation, " ", static_cast<int>(recompute)));
          RecordedCase c = fully_sharded(Precision::kBFloat16, /*in_float8=*/true);
          c.parallel.shard_optimizer = shards;
          c.accumulation_steps = accumulation;
          c.prepare = [&, prepare = c.prepare](TransformerImpl& model) {
            if (accumulation == 1) prepare(model);
            model.set_float8_products(true);
            model.set_recompute(recompute, 1);
          };
          expect_recorded_as_launched(c, device, &group);
        }
      }
    }
  });
}

TEST(GpuRecordedRanks, FullyShardedParametersTravelInReplays) {
  FLASHSTEP_NEED_GPUS(2);
  on_ranks([](Group& group, at::Device device) {
    for (const Precision precision :
         {Precision::kFloat32, Precision::kBFloat16, Precision::kFloat16}) {
      for (const int64_t accumulation : {1, 3}) {
        for (const Recompute recompute : {Recompute::kNone, Recompute::kInner, Recompute::kBlock}) {
          SCOPED_TRACE(str(static_cast<int>(precision), " ", accumulation, " ",
                           static_cast<int>(recompute)));
          RecordedCase c = fully_sharded(precision);
          c.accumulation_steps = accumulation;
          c.prepare = [&, prepare = c.prepare](TransformerImpl& model) {
            if (accumulation == 1) prepare(model);
            model.set_recompute(recompute, 1);
          };
          expect_recorded_as_launched(c, device, &group);
        }
      }
    }
  });
}

TEST(GpuRecordedRanks, ParametersShardedInReplicasTravelInReplays) {
  FLASHSTEP_NEED_GPUS(4);
  on_ranks(
      [](Group& group, at::Device device) {
        for (const int64_t accumulation : {1, 3}) {
          SCOPED_TRACE(accumulation);
          RecordedCase c = fully_sharded(Precision::kFloat32);
          c.parallel.shard_ranks = 2;
          c.accumulation_steps = accumulation;
          expect_recorded_as_launched(c, device, &group);
        }
      },
      4);
}

// Of the same gradients: by copies it comes along with the means, by NCCL another pass takes it.
TEST(GpuRecordedRanks, TheNormThatComesAlongIsThatOfAPass) {
  FLASHSTEP_NEED_GPUS(2);
  on_ranks([](Group& group, at::Device device) {
    for (const char* shards : {"none", "whole", "flat"}) {
      SCOPED_TRACE(shards);
      std::vector<Tensor> firsts;
      for (const char* copies : {"all", "none"}) {
        const RecordedRun run =
            train_recorded(division("bucketed", copies, shards), GraphMode::kOn, device, &group);
        firsts.push_back(run.results.front());
      }
      EXPECT_TRUE(testing::close(firsts[0], firsts[1], 0, 1e-6)) << firsts[0] << firsts[1];
    }
  });
}

// The same arithmetic, but for the order in which the norm is summed up: without clipping, the
// same bits.
TEST(GpuRecordedRanks, FullShardingHasTheBitsOfDataParallelism) {
  FLASHSTEP_NEED_GPUS(2);
  on_ranks([](Group& group, at::Device device) {
    const auto expect_same = [&](RecordedCase c) {
      c.max_norm = 0;
      const RecordedRun full = train_recorded(c, GraphMode::kOn, device, &group);
      c.parallel.shard_optimizer = "none";
      expect_same_weights(full, train_recorded(c, GraphMode::kOn, device, &group));
    };
    for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
      SCOPED_TRACE(static_cast<int>(precision));
      expect_same(fully_sharded(precision));
    }
    SCOPED_TRACE("fp8");
    if (has_float8_products(device))
      expect_same(fully_sharded(Precision::kBFloat16, /*in_float8=*/true));
  });
}

TEST(GpuRecordedRanks, FullyShardedUpdatesInBackwardAreReplayed) {
  FLASHSTEP_NEED_GPUS(2);
  on_ranks([](Group& group, at::Device device) {
    for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
      SCOPED_TRACE(static_cast<int>(precision));
      RecordedCase c = fully_sharded(precision);
      c.max_norm = 0;
      const RecordedRun after = train_recorded(c, GraphMode::kOn, device, &group);
      c.update_in_backward = true;
      expect_same_weights(expect_recorded_as_launched(c, device, &group), after);
    }
  });
}

// Its memory is nobody's between steps: an evaluation gathers the same units in another order.
TEST(GpuRecordedRanks, FullyShardedModelsAreEvaluatedBetweenReplays) {
  FLASHSTEP_NEED_GPUS(2);
  on_ranks([](Group& group, at::Device device) {
    const RecordedCase c = fully_sharded(Precision::kBFloat16);
    RecordedCase evaluated = c;
    const Tensor ids = torch::arange(40, at::TensorOptions(device).dtype(at::kLong)).view({2, 20});
    evaluated.between = [&](int64_t step, TransformerImpl& model, Parallelism& parallel) {
      if (step % 2 == 0) return;
      const torch::NoGradGuard no_grad;
      const AutocastGuard autocast(at::kCUDA, at::kBFloat16);
      EXPECT_TRUE(parallel.call([&] { return model.forward(ids); }).isfinite().all().item<bool>());
    };
    expect_same_runs(train_recorded(evaluated, GraphMode::kOn, device, &group),
                     train_recorded(c, GraphMode::kOff, device, &group));
  });
}

TEST(GpuRecordedRanks, ANonFiniteLossOfOneRankSkipsTheReplayOnBoth) {
  FLASHSTEP_NEED_GPUS(2);
  on_ranks([](Group& group, at::Device device) {
    const Tensor poison = torch::zeros({}, device);
    RecordedCase c = division("bucketed", "all", "none");
    c.loss_hook = [&](const Tensor& loss, TransformerImpl&) { return loss + poison; };
    c.before_step = [&](int64_t step, TransformerImpl&) {
      poison.fill_(step == 6 && group.rank() == 1 ? NAN : 0.0);
    };
    const RecordedRun run = expect_recorded_as_launched(c, device, &group);
    EXPECT_EQ(run.results[6][2].item<double>(), 1);
    EXPECT_EQ(run.results[7][2].item<double>(), 0);
  });
}

// The hosts of all but the first wait for the device, in forward or in backward.
void expect_launches(RecordedCase c, bool in_backward, at::Device device, Group& group) {
  SCOPED_TRACE(str(in_backward, " ", c.parallel.peer_copies, " ", c.parallel.shard_optimizer));
  c.loss_hook = [&](const Tensor& loss, TransformerImpl& model) {
    if (group.rank() == 0) return loss;
    if (in_backward) return loss + 1e-3 * Waiting::apply(model.parameters()[0]).sum();
    return loss.item<double>() > 0 ? loss : loss * 2;
  };
  const RecordedRun launched = train_recorded(c, GraphMode::kOff, device, &group);
  const RecordedRun run = train_recorded(c, GraphMode::kAuto, device, &group);
  EXPECT_FALSE(run.was_recorded);
  EXPECT_EQ(run.said.size(), 1u);
  expect_same_runs(run, launched);
  EXPECT_THROW(train_recorded(c, GraphMode::kOn, device, &group), UserError);
  group.barrier();
}

TEST(GpuRecordedRanks, AllRanksLaunchWhereOneCannotRecord) {
  FLASHSTEP_NEED_GPUS(2);
  on_ranks([](Group& group, at::Device device) {
    for (const bool in_backward : {false, true}) {
      for (const char* copies : {"all", "none"})
        expect_launches(division("bucketed", copies, "none"), in_backward, device, group);
    }
    // The parameter that backward's hook uses would be used beside its unit.
    expect_launches(division("bucketed", "all", "full"), /*in_backward=*/false, device, group);
  });
}

TEST(GpuRecordedRanks, AllRanksOfReplicasLaunchWhereOneCannotRecord) {
  FLASHSTEP_NEED_GPUS(4);
  on_ranks(
      [](Group& group, at::Device device) {
        RecordedCase c = division("bucketed", "all", "full");
        c.parallel.shard_ranks = 2;
        expect_launches(c, /*in_backward=*/false, device, group);
      },
      4);
}

TEST(GpuRecordedRanks, WhatHostsMustDoIsRefused) {
  FLASHSTEP_NEED_GPUS(2);
  on_ranks([](Group& group, at::Device device) {
    const RecordedRun run =
        train_recorded(division("torch", "none", "none"), GraphMode::kAuto, device, &group);
    EXPECT_FALSE(run.was_recorded);
    ASSERT_EQ(run.said.size(), 1u);
    EXPECT_NE(run.said[0].find("c10d's Reducer (wrapper torch)"), std::string::npos) << run.said[0];
    EXPECT_THROW(train_recorded(division("torch", "none", "none"), GraphMode::kOn, device, &group),
                 UserError);
    group.barrier();
  });
}

}  // namespace
}  // namespace flashstep
