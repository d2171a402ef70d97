#include "flashstep/profile/account.h"

#include <algorithm>
#include <functional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "flashstep/amp.h"
#include "flashstep/attention.h"
#include "flashstep/attention/cost.h"
#include "flashstep/bench/test_table.h"
#include "flashstep/error.h"
#include "flashstep/measure/cpu_memory.h"
#include "flashstep/model.h"
#include "flashstep/model/cost.h"
#include "flashstep/ops.h"
#include "flashstep/ops/internal.h"
#include "flashstep/train/cost.h"

namespace flashstep::tools {
namespace {

double entry(const measure::Table& account, const std::vector<measure::Cell>& row,
             const char* column) {
  return number_of(cell_behind(account, row, column));
}

double value(const measure::Table& account, const std::string& quantity) {
  return entry(account, {quantity}, "value");
}

// 16 P = 31.97 GB; 4 rows of 512 tokens in width 1600: 13,107,200 bytes.
TEST(Account, OfAStep) {
  const measure::Table account = account_step({});
  EXPECT_EQ(value(account, "parameters"), 1'998'235'200);
  EXPECT_EQ(value(account, "one tensor of the residual stream"), 12.5);
  const double gib = 1073741824.0, p = 1'998'235'200.0;
  EXPECT_DOUBLE_EQ(value(account, "memory: parameters"), 4 * p / gib);
  EXPECT_DOUBLE_EQ(value(account, "memory: AdamW's moments"), 8 * p / gib);
  EXPECT_DOUBLE_EQ(value(account, "update: least memory traffic"), 28 * p / 1e9);
  EXPECT_DOUBLE_EQ(value(account, "FLOPs in all"), 3 * value(account, "FLOPs forward"));
  EXPECT_TRUE(some_line_has(account.notes, {"= 1,998,235,200"}));
  EXPECT_TRUE(some_line_has(account.notes, {"= 12.50 MiB"}));
  // Backward ends with the gradients, or begins with what forward kept: the larger is the peak.
  EXPECT_EQ(value(account, "memory: peak, at least"),
            std::max(value(account, "memory after forward, at least"),
                     value(account, "memory after backward, at least")));
}

TEST(Account, OfAForwardPassHasNoGradients) {
  const measure::Table account = account_step({.mode = "forward"});
  for (const auto& row : account.rows) EXPECT_NE(row[0], measure::Cell("memory: gradients"));
  EXPECT_GT(value(account, "memory: peak, at least"), value(account, "memory: parameters"));
}

// At least what parameters, stream and logits take together; no more than was measured.
TEST(Account, APeakOfAForwardPassIsALowerBound) {
  StepAccount inputs{.mode = "forward"};
  inputs.device = "cpu";
  inputs.model.size.clear();
  inputs.model.d_model = 64;
  inputs.model.d_ff = 171;
  inputs.model.num_layers = 2;
  inputs.model.num_heads = 4;
  inputs.model.vocab_size = 10001;
  inputs.model.context_length = 65;
  inputs.batch_size = 3;
  const double peak = value(account_step(inputs), "memory: peak, at least") * 1024;  // MiB
  EXPECT_GT(peak, 12.6);
  EXPECT_LT(peak, 12.75);  // flashstep memory --mode forward
}

TEST(Account, TheLargestCaseOfAttentionIsTold) {
  const measure::Table account =
      account_attention({.contexts = {16384, 256}, .head_dims = {128, 16}, .memory_gb = 1e6});
  EXPECT_TRUE(some_line_has(account.notes, {"Largest case, N 16,384, D 128"}));
}

TEST(Account, OfABlockAddsUp) {
  for (const char* precision : {"fp32", "bf16"}) {
    const measure::Table account = account_block({.precision = precision, .attention = "naive"});
    double sum = 0, all = 0;
    for (const auto& row : account.rows) {
      if (row[0] == measure::Cell("in all")) all = number_of(row[1]);
      if (all == 0) sum += number_of(row[1]);
    }
    EXPECT_NEAR(sum, all, 1e-9 * all);
    EXPECT_GT(all, 0);
  }
}

// Batch 8, N 16384: a matrix has 8 GiB; the eight tensors of D 128 have 64 MiB each.
TEST(Account, OfAttentionByTheFormula) {
  const measure::Table account = account_attention({.memory_gb = 20});
  const std::vector<measure::Cell> last = {16384, 128};
  EXPECT_EQ(entry(account, last, "one matrix"), 8192);
  EXPECT_EQ(entry(account, last, "before backward"), 4 * 64 + 8192);
  EXPECT_EQ(entry(account, last, "peak"), 8 * 64 + 3 * 8192);
  EXPECT_EQ(entry(account, last, "kernel's peak"),
            8 * 64 + 0.5);  // 4 x 131,072 bytes
  // The first that does not fit in 20 GB has 3 x 8 GiB; 3 x 2 GiB fit.
  EXPECT_EQ(cell_behind(account, {8192, 128}, "fits in 20 GB"), measure::Cell("yes"));
  EXPECT_EQ(cell_behind(account, {16384, 16}, "fits in 20 GB"), measure::Cell("no"));
  EXPECT_TRUE(
      some_line_has({account.notes.front()}, {"First case that does not fit, N 16,384, D 16"}));
  EXPECT_TRUE(
      some_line_has({account_attention({}).notes.front()}, {"Largest case, N 16,384, D 128"}));
}

// P = 1.998 G parameters on two ranks: 16 P, 12 P, 10 P and 8 P and two layers.
TEST(Account, OfSharding) {
  const measure::Table account = account_sharding({.model = {.size = "xl"}});
  const double p = 1.9982352;
  const auto all = [&](const char* name) { return entry(account, {2, name}, "in all"); };
  const auto sent = [&](const char* name) { return entry(account, {2, name}, "sent a step"); };
  EXPECT_NEAR(all("DDP"), 16 * p, 1e-9);
  EXPECT_NEAR(all("ZeRO-1"), 12 * p, 1e-9);
  EXPECT_NEAR(all("ZeRO-2"), 10 * p, 1e-9);
  const double block = 4 * (4 * 1600.0 * 1600 + 3 * 1600.0 * 6400 + 2 * 1600) / 1e9;
  EXPECT_NEAR(all("ZeRO-3 (FSDP)"), 8 * p + 2 * block, 1e-9);
  EXPECT_NEAR(sent("DDP"), 4 * p, 1e-9);
  EXPECT_NEAR(sent("ZeRO-1"), 4 * p, 1e-9);
  EXPECT_NEAR(sent("whole parameters"), 6 * p, 1e-9);
  EXPECT_NEAR(sent("ZeRO-3 (FSDP)"), 6 * p, 1e-9);
}

// 1 GB among 6 at 450 GB/s: 2 x 5 / 6 / 450 s in the ring, 5 / 450 s for whole tensors.
TEST(Account, OfRings) {
  const measure::Table account = account_ring({});
  EXPECT_NEAR(entry(account, {6, 1000.0, "ring"}, "time"), 3.7037, 1e-4);
  const std::vector<measure::Cell> whole = {6, 1000.0, "whole tensors (alternate)"};
  EXPECT_NEAR(entry(account, whole, "time"), 11.1111, 1e-4);
  EXPECT_NEAR(entry(account, whole, "x ring"), 3, 1e-12);  // N / 2
  EXPECT_EQ(account.rows.size(), 3u * 4 * 4);
  // Two ranks have one link between them, more have a link each way round.
  EXPECT_EQ(entry(account, {2, 1000.0, "ring both ways"}, "x ring"), 1);
  EXPECT_EQ(entry(account, {4, 1000.0, "ring both ways"}, "x ring"), 0.5);
}

// 126 x 2 x 16384 x 53248 parameters of 16 bytes: 3,517.58 GB. A token keeps 126 x (16384 + 53248)
// x 2 bytes = 17.547 MB, 320 keep 5.615 GB: together 3,523.19 GB = 44.04 H100s. Divided, with half
// of what is kept on every device: (3517.578 + 2.808) / N < 92.192.
TEST(Account, OfTheHandoutsMesh) {
  const measure::Table account = account_mesh({});
  EXPECT_EQ(value(account, "parameters"), 219'848'638'464);
  EXPECT_NEAR(value(account, "state in all"), 3517.578215, 1e-6);
  EXPECT_NEAR(value(account, "kept for backward by a token"), 17.547264, 1e-9);
  EXPECT_NEAR(value(account, "kept for backward by 320 tokens"), 5.61512448, 1e-9);
  EXPECT_EQ(value(account, "accelerators of 80 GB"), 45);
  EXPECT_EQ(value(account, "N_FSDP for less than 95 GB"), 39);
  EXPECT_NEAR(value(account, "least batch, axes at once"), 20444.44, 0.01);
  EXPECT_NEAR(value(account, "least batch a device, axes at once"), 319.44, 0.01);
  EXPECT_NEAR(value(account, "least batch a device, axes one after the other"), 395.34, 0.01);
  EXPECT_TRUE(some_line_has(account.notes, {"= 219,848,638,464"}));
  // The state alone is 43.97 H100s, and 3517.578 / N < 95.
  const measure::Table state = account_mesh({.tokens = 0});
  EXPECT_EQ(value(state, "accelerators of 80 GB"), 44);
  EXPECT_EQ(value(state, "N_FSDP for less than 95 GB"), 38);
  EXPECT_EQ(state.rows.size() + 1, account.rows.size()) << "nothing of 0 tokens";
  // 1,000 tokens keep 17.547 GB, half of it on every device: (3517.578 + 8.774) / N < 86.226.
  EXPECT_EQ(value(account_mesh({.tokens = 1000}), "N_FSDP for less than 95 GB"), 41);
  EXPECT_EQ(cell_behind(account_mesh({.tokens = 20000}), {"N_FSDP for less than 95 GB"}, "value"),
            measure::Cell("none"));
}

TEST(Account, OfAMeshThatNoBatchKeepsBusy) {
  const measure::Table account =
      account_mesh({.mesh = {.data = 2, .tensor = 32}});  // 20.8 are most
  EXPECT_EQ(cell_behind(account, {"least batch, axes at once"}, "value"), measure::Cell("none"));
  // What hides the weights alone does not ask how large Y is: as of the handout's mesh.
  const measure::Table wide =
      account_mesh({.mesh = {.data = 16, .tensor = 40, .data_links = 2, .tensor_links = 1}});
  EXPECT_TRUE(some_line_has(wide.notes, {"weights hidden: ", "= 20,444.4 tokens", "= 31.944"}));
  for (const std::string& note : wide.notes) EXPECT_EQ(note.find("inf"), note.npos) << note;
}

// What sends nothing has no part in a sentence, and no batch to hide it.
TEST(Account, OfAMeshOfOneRankOnAnAxis) {
  const measure::Table fsdp = account_mesh({.mesh = {.data = 16, .tensor = 1, .data_links = 2}});
  EXPECT_NEAR(value(fsdp, "least batch, axes one after the other"), 20444.44, 0.01);
  EXPECT_TRUE(some_line_has(fsdp.notes, {"Y = 1: no activations are sent"}));
  EXPECT_TRUE(some_line_has(fsdp.notes, {"weights hidden: ", "= 20,444.4 tokens"}));
  EXPECT_FALSE(some_line_has(fsdp.notes, {"one after the other: B"}));
  EXPECT_FALSE(some_line_has(fsdp.notes, {"activations hidden"}));
  const measure::Table one = account_mesh({.mesh = {.data = 1, .tensor = 1}});
  EXPECT_EQ(cell_behind(one, {"least batch, axes at once"}, "value"), measure::Cell("any"));
  EXPECT_TRUE(some_line_has(one.notes, {"X = 1: no weights are gathered"}));
  EXPECT_FALSE(some_line_has(one.notes, {"weights hidden"}));
}

// C / W = 2197.78: 1 + 65536 / 2197.78; 1 + 1.5 x 11008 / 2197.78; 1.5 x 65536 x 11008 / 2197.78^2.
TEST(Account, OfTheHandoutsBounds) {
  const measure::Table account = account_bounds({});
  const auto most = [&](const char* strategy, const char* pass) {
    return entry(account, {strategy, pass}, "most devices");
  };
  EXPECT_NEAR(most("DP", "backward"), 30.819, 1e-3);
  EXPECT_NEAR(most("FSDP", "forward"), 30.819, 1e-3);
  EXPECT_NEAR(most("TP", "forward"), 8.513, 1e-3);
  EXPECT_NEAR(most("TP", "backward"), 16.026, 1e-3);
  // X / Y = 2 B / (3 F) = 3.97: of 8 devices 4 x 2 and 8 x 1 are as far in logarithms; 4 x 2 is
  // nearer.
  EXPECT_NEAR(most("FSDP 4 x TP 2, at once", "forward"), 224.03, 0.01);
  EXPECT_NEAR(most("FSDP 4 x TP 2, in turn", "forward"), 56.01, 0.01);
  // At 450 GB/s: 3/4 of 2 x 3 x 4096 x 11008 / 2 bytes, and 1/2 of 2 x 2 x 65536 x 4096 / 4.
  const auto sent = [&](const char* what) {
    return entry(account, {"FSDP 4 x TP 2, at once", "forward"}, what);
  };
  EXPECT_NEAR(sent("weights sent"), 0.2254, 1e-4);
  EXPECT_NEAR(sent("activations sent"), 0.2983, 1e-4);
  EXPECT_TRUE(some_line_has(account.notes, {"weights (X - 1) / X e m D F / (Y W)"}));
}

// (4, 2048, 2560) in float32 has 80 MiB.
TEST(Account, OfRecomputation) {
  const measure::Table account = account_recompute({.saved_mib = 3651.31});
  const auto peak = [&](const char* name) { return entry(account, {name}, "peak"); };
  EXPECT_NEAR(peak("keep everything") * 1024, 32 * 3651.31, 1e-6);
  EXPECT_NEAR(peak("groups of 1 (best)") * 1024, 31 * 80 + 3651.31, 1e-6);
  EXPECT_NEAR(peak("groups of 2") * 1024, 15 * 80 + 2 * 3651.31, 1e-6);
  EXPECT_NEAR(peak("halves of halves") * 1024, 5 * 80 + 3651.31, 1e-6);
  EXPECT_NEAR(peak("from the start each time") * 1024, 80 + 3651.31, 1e-6);
  EXPECT_EQ(entry(account, {"from the start each time"}, "block passes"), 528);
  EXPECT_NEAR(number_of(cell_behind(account, {"groups of 1 (best)"}, "step")), 4.0 / 3, 1e-12);
}

TEST(Account, RefusesWhatIsNone) {
  EXPECT_THROW(account_step({.model = {.size = "huge"}}), UserError);
  EXPECT_THROW(account_step({.mode = "backward"}), UserError);
  EXPECT_THROW(account_step({.precision = "fp8"}), UserError);
  EXPECT_THROW(account_step({.batch_size = 0}), UserError);
  EXPECT_THROW(account_block({.attention = "flash"}), UserError);
  EXPECT_THROW(account_attention({.contexts = {}}), UserError);
  EXPECT_THROW(account_sharding({.ranks = {0}}), UserError);
  EXPECT_THROW(account_ring({.gigabytes_per_s = 0}), UserError);
  EXPECT_THROW(account_mesh({.blocks = 0}), UserError);
  EXPECT_THROW(account_bounds({.tokens = 0}), UserError);
}

ModelConfig measured_model(const char* attention) {
  return {.size = "",
          .vocab_size = 100,
          .context_length = 64,
          .d_model = 64,
          .d_ff = 192,
          .num_layers = 1,
          .num_heads = 4,
          .attention = attention};
}

// What stays behind the forward pass of recomputed blocks, and the most that backward holds.
TEST(AccountMeasured, RecomputedBlocksKeepTheirInputs) {
  ModelConfig config = measured_model("tiled");
  config.num_layers = 6;
  const PassShape shape{.batch_size = 4, .seq_len = 64};
  Transformer model(config, 1);
  const at::Tensor tokens = at::randint(config.vocab_size, {4, 64});
  const double boundary = residual_stream_bytes(config, shape),
               saved = block_saved_bytes(config, shape);
  const auto measured = [&](int64_t size) {
    model->set_block_runner(size == 0 ? BlockRunner(run_blocks_in_order) : recompute_blocks(size));
    model->zero_grad(/*set_to_none=*/false);  // gradients have their memory already
    measure::AllocatedBytes allocated;
    const at::Tensor hidden = model->hidden(tokens);
    const auto kept = static_cast<double>(allocated.now());
    allocated.reset_peak();
    hidden.sum().backward();
    return std::pair(kept, static_cast<double>(allocated.peak()));
  };
  measured(0);  // gradients and tables are there from now on
  const auto [kept_all, peak_all] = measured(0);
  for (const int64_t size : {1, 2, 4}) {
    const auto [kept, peak] = measured(size);
    const auto groups = static_cast<double>((6 + size - 1) / size);
    EXPECT_NEAR(kept_all - kept, 6 * saved - groups * boundary, 0.02 * kept_all) << size;
    const BlockStack stack{6, boundary, saved};
    const double less =
        keep_everything(stack).peak_bytes - recompute_groups(stack, size).peak_bytes;
    EXPECT_NEAR(peak_all - peak, less, 0.03 * peak_all) << size;
  }
}

// The (B, H, N, N) matrices of the formula: D is small, so that they are nearly all.
TEST(AccountMeasured, TheFormulaHoldsSoManyMatrices) {
  for (const bool causal : {false, true}) {
    const AttentionSize size{.batches = 2,
                             .heads = 2,
                             .kv_heads = 2,
                             .n = 256,
                             .m = 256,
                             .head_dim = 4,
                             .causal = causal};
    const auto input = [] { return at::randn({2, 2, 256, 4}).requires_grad_(); };
    const at::Tensor q = input(), k = input(), v = input();
    AttentionOptions options;
    options.causal = causal;
    options.implementation = "naive";
    const double matrix = attention_matrix_bytes(size, 4);
    const NaiveAttentionMemory expected = naive_attention_memory(size, 4);
    measure::AllocatedBytes allocated;
    const at::Tensor out = attention(q, k, v, options);
    EXPECT_NEAR(allocated.now(), expected.kept, 0.2 * matrix) << causal;
    EXPECT_NEAR(allocated.peak(), expected.forward_peak, 0.2 * matrix) << causal;
    const at::Tensor gradient = at::ones_like(out);
    allocated.reset_peak();
    out.backward(gradient);
    EXPECT_NEAR(allocated.peak(), expected.backward_peak, 0.2 * matrix) << causal;
  }
}

// FLOPs of the matrix products that LibTorch's profiler sees in `work`.
double profiled_flops(const std::function<void()>& work) {
  using torch::profiler::impl::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(
      torch::profiler::impl::ProfilerState::KINETO, /*report_input_shapes=*/true,
      /*profile_memory=*/false, /*with_stack=*/false, /*with_flops=*/true);
  torch::autograd::profiler::prepareProfiler(config, {ActivityType::CPU});
  torch::autograd::profiler::enableProfiler(config, {ActivityType::CPU});
  work();
  const auto result = torch::autograd::profiler::disableProfiler();
  double flops = 0;
  for (const auto& event : result->events()) {
    const std::string name = event.name();
    if (name == "aten::mm" || name == "aten::bmm" || name == "aten::addmm")
      flops += static_cast<double>(event.flops());
  }
  return flops;
}

// The formula of attention computes the pairs that the mask hides, too.
TEST(AccountMeasured, FlopsAreTheProfilers) {
  const ModelConfig config = measured_model("naive");
  Transformer model(config);
  const at::Tensor tokens = at::randint(100, {3, 40}), targets = at::randint(100, {3, 40});
  at::Tensor loss;
  EXPECT_EQ(profiled_flops([&] { loss = cross_entropy(model->forward(tokens), targets); }),
            3 * forward_flops(config, 40, /*causal=*/false).total());
  EXPECT_EQ(profiled_flops([&] { loss.backward(); }),
            step_flops(config, 3, 40, false) - 3 * forward_flops(config, 40, false).total());
}

}  // namespace
}  // namespace flashstep::tools
