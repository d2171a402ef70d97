#include "flashstep/bench/workload.h"

#include <gtest/gtest.h>

#include "flashstep/bench/test_table.h"
#include "flashstep/bench/test_workload.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/model/cost.h"

namespace flashstep::tools {
namespace {

TEST(Workload, SizesByNameAndByNumbers) {
  for (const std::string& name : workload_size_names()) {
    const Workload workload = resolved_workload({.model = model_by_name(name)});
    EXPECT_EQ(model_name(workload.model), name);
    EXPECT_GT(workload.batch_size, 0);
  }
  const Workload tiny = resolved_workload({.model = model_by_name("tiny")});
  EXPECT_EQ(tiny.batch_size, 32);
  EXPECT_EQ(tiny.model.context_length, 128);
  EXPECT_EQ(tiny.model.vocab_size, 4096);
  EXPECT_EQ(resolved_workload({.model = model_by_name("xl")}).batch_size, 4);
  EXPECT_EQ(model_name(small_workload().model), "32/64/2/2");
  Workload fewer = {.model = model_by_name("xl")};
  fewer.model.num_layers = 20;
  EXPECT_EQ(model_name(resolved_workload(fewer).model), "1600/6400/20/25");
  for (const char* wrong : {"", "xxl", "64/256/2", "64/256/2/4/8", "64/256/2/x", "0/256/2/4"})
    EXPECT_THROW(model_by_name(wrong), UserError) << wrong;
  EXPECT_EQ(sizes_named({"all", "tiny"}).size(), 6u);
}

TEST(Workload, WhatCannotBeIsASentence) {
  const auto refused = refused_by(resolved_workload, small_workload());
  refused([](auto& w) { w.mode = "backward"; });
  refused([](auto& w) { w.precision = "fp16"; });
  refused([](auto& w) { w.precision = "tf32"; });  // on a CPU
  refused([](auto& w) { w.precision = "fp32-split"; });
  refused([](auto& w) { w.stream = "bf16"; });  // with fp32
  refused([](auto& w) { w.moments = "fp16"; });
  refused([](auto& w) { w.recompute = "blocks"; });
  refused([](auto& w) { w.device = "tpu"; });
  refused([](auto& w) { w.model.attention = "flash"; });
  refused([](auto& w) { w.model.context_length = 0; });  // these numbers have none of their own
  refused([](auto& w) { w.model.num_heads = 3; });
  if (measure::list_gpus().empty()) refused([](auto& w) { w.device = "cuda"; });
}

TEST(Workload, SaysWhatDiffersFromTheDefault) {
  Workload w;
  EXPECT_EQ(mode_text(w), "step");
  w.moments = w.stream = "bf16";
  w.recompute = "block";
  EXPECT_EQ(mode_text(w), "step, bf16 moments, bf16 stream, recompute block");
  w.recompute_group = 4;
  EXPECT_EQ(mode_text(w), "step, bf16 moments, bf16 stream, recompute blocks by 4");
  w.recompute_blocks = 8;
  EXPECT_EQ(mode_text(w), "step, bf16 moments, bf16 stream, recompute blocks by 4 (first 8)");
}

TEST(Workload, TheStreamIsShortWhereTrainHasIt) {
  Workload w = resolved_workload(small_workload());
  EXPECT_EQ(w.stream, "fp32");
  w.device = "cuda";
  w.precision = "bf16";
  EXPECT_EQ(mode_text(w), "step, fp32 stream");
  w.stream = "bf16";
  EXPECT_EQ(mode_text(w), "step, bf16 stream");
  w.stream = "auto";
  EXPECT_EQ(mode_text(w), "step");
}

TEST(Workload, EveryCombinationSizesFirst) {
  WorkloadAxes axes;
  axes.sizes = {"small", "32/64/2/2"};
  axes.contexts = {16, 32};
  axes.precisions = {"fp32", "bf16"};
  axes.attentions = {"naive"};
  axes.modes = {"forward", "step"};
  axes.common.batch_size = 3;
  axes.common.model.num_layers = 1;
  axes.common.model.vocab_size = 77;
  axes.common.max_norm = 0;
  const auto workloads = workloads_of(axes);
  ASSERT_EQ(workloads.size(), 16u);
  EXPECT_EQ(describe(workloads[0]), "768/3072/1/12, batch 3, context 16, fp32, forward");
  EXPECT_EQ(describe(workloads[1]), "768/3072/1/12, batch 3, context 16, fp32, step");
  EXPECT_EQ(describe(workloads[15]), "32/64/1/2, batch 3, context 32, bf16, step");
  EXPECT_EQ(workloads[15].model.attention, "naive");
  EXPECT_EQ(workloads[15].model.vocab_size, 77);
  EXPECT_EQ(workloads[15].max_norm, 0);
}

TEST(Workload, FlopsOfAPass) {
  const Workload forward = small_workload("forward"), step = small_workload("step");
  // Two rows of 16 tokens; 2 (4 C^2 + 3 C F) a layer and token, 2 C V for the head, and 4 C for
  // each of 16 * 17 / 2 visible pairs of a layer.
  const double layer = 2.0 * (4 * 32 * 32 + 3 * 32 * 64), head = 2.0 * 32 * 64;
  const double expected = 2 * (16 * (2 * layer + head) + 2 * 4.0 * 32 * 136);
  EXPECT_EQ(pass_flops(forward), expected);
  EXPECT_EQ(pass_flops(step), 3 * expected);
  EXPECT_EQ(pass_flops(small_workload("forward-backward")), 3 * expected);
}

TEST(CaseMemory, OfThisMachine) {
  EXPECT_GT(free_memory_bytes("cpu"), 0);
  EXPECT_LE(free_memory_bytes("cpu"), total_memory_bytes("cpu"));
}

// Blocks that are recomputed keep their inputs; the fewer they are, the more is kept.
TEST(CaseMemory, OfRecomputedBlocks) {
  Workload w = resolved_workload({.model = {.size = "small"}});
  const auto about = [&](const char* recompute, int64_t blocks) {
    w.recompute = recompute;
    w.recompute_blocks = blocks;
    return needed_bytes(w).about;
  };
  const double none = about("none", 0), all = about("block", 0);
  EXPECT_LT(all, none);
  EXPECT_EQ(about("block", 12), all);
  EXPECT_EQ(about("block", 100), all);
  EXPECT_GT(about("block", 4), about("block", 8));
  EXPECT_LT(about("block", 4), none);
}

TEST(CaseMemory, NeededBytesAndTheLayersThatFit) {
  Workload workload = resolved_workload(small_workload());
  workload.model.num_layers = 10;
  const double parameters = static_cast<double>(parameter_count(workload.model));
  EXPECT_EQ(needed_bytes(workload).least, 16 * parameters);
  EXPECT_GT(needed_bytes(workload).about, needed_bytes(workload).least);
  for (const auto& [mode, bytes] :
       std::vector<std::pair<std::string, double>>{{"forward", 4}, {"forward-backward", 8}}) {
    workload.mode = mode;
    EXPECT_EQ(needed_bytes(workload).least, bytes * parameters);
  }
  workload.mode = "step";
  Workload less = workload;
  less.moments = "bf16";
  EXPECT_EQ(needed_bytes(less).least, 12 * parameters);
  less = workload;
  less.recompute = "block";
  const PassShape shape = pass_shape(workload);
  EXPECT_NEAR(
      needed_bytes(workload).about - needed_bytes(less).about,
      9 * (block_saved_bytes(workload.model, shape) - residual_stream_bytes(workload.model, shape)),
      1);
  Workload four = workload;
  four.model.num_layers = 4;
  EXPECT_EQ(fitting_layers(workload, needed_bytes(four).about), 4);
  EXPECT_EQ(fitting_layers(workload, needed_bytes(four).about - 1), 3);
  EXPECT_EQ(fitting_layers(workload, 2 * needed_bytes(four).about, 2), 4);
  EXPECT_EQ(fitting_layers(workload, 1e18), 9);  // fewer than there are
  EXPECT_EQ(fitting_layers(workload, 1), 0);
}

}  // namespace
}  // namespace flashstep::tools
