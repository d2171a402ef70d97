#include "flashstep/model/cost.h"

#include <gtest/gtest.h>

#include "flashstep/model.h"

namespace flashstep {
namespace {

ModelConfig small_model() {
  ModelConfig c;
  c.vocab_size = 100;
  c.context_length = 16;
  c.d_model = 8;
  c.d_ff = 24;
  c.num_layers = 3;
  c.num_heads = 2;
  return c;
}

// By hand: V C = 800; 4 C^2 = 256; 3 C F = 576; norms 7 * 8 = 56.
TEST(ModelCost, CountsParametersByKind) {
  const ParameterCounts counts = parameter_counts(small_model());
  EXPECT_EQ(counts.embedding, 800);
  EXPECT_EQ(counts.attention, 3 * 256);
  EXPECT_EQ(counts.feed_forward, 3 * 576);
  EXPECT_EQ(counts.norms, 56);
  EXPECT_EQ(counts.head, 800);
  EXPECT_EQ(counts.total(), 800 + 768 + 1728 + 56 + 800);
  EXPECT_EQ(block_parameter_count(small_model()), 256 + 576 + 16);
}

TEST(ModelCost, CountsWhatAModelHas) {
  for (const int64_t kv_heads : {0, 1}) {
    ModelConfig config = small_model();
    config.num_kv_heads = kv_heads;
    Transformer model(config);
    int64_t elements = 0, block = 0;
    for (const auto& parameter : model->parameters()) elements += parameter.numel();
    for (const auto& parameter : model->layers[1]->parameters()) block += parameter.numel();
    EXPECT_EQ(parameter_count(config), elements);
    EXPECT_EQ(block_parameter_count(config), block);
    config.tie_embeddings = true;
    EXPECT_EQ(parameter_count(config), elements - 800);
  }
}

// K = 4: 2 C (C + K) = 192 of a block; k and v take half of 1,024 bytes each.
TEST(ModelCost, CountsGroupedQueries) {
  ModelConfig config = small_model();
  config.num_kv_heads = 1;
  EXPECT_EQ(parameter_counts(config).attention, 3 * 192);
  EXPECT_EQ(forward_flops(config, 16).linear, 2.0 * 16 * 3 * (192 + 576));
  EXPECT_EQ(forward_flops(config, 16).attention, forward_flops(small_model(), 16).attention);
  const PassShape shape{.batch_size = 2, .seq_len = 16};
  EXPECT_EQ(block_saved_bytes(small_model(), shape) - block_saved_bytes(config, shape), 1024.0);
}

// The counts that the courses' handouts lead to.
TEST(ModelCost, CountsTheHandoutsModels) {
  EXPECT_EQ(parameter_count(resolved(named_model("xl"))), 1'998'235'200);
  EXPECT_EQ(parameter_count(resolved(named_model("xl26"))), 3'406'809'600);
}

// T = 32 tokens: 2 T L (256 + 576) = 159,744; 4 B C L N (N + 1) / 2 = 4 * 2 * 8 * 3 * 136; 2 T C V.
TEST(ModelCost, CountsFlopsByHand) {
  const ForwardFlops one = forward_flops(small_model(), 16);
  EXPECT_EQ(2 * one.linear, 159'744.0);
  EXPECT_EQ(2 * one.attention, 4.0 * 2 * 8 * 3 * 136);
  EXPECT_EQ(2 * one.head, 2.0 * 32 * 8 * 100);
  ModelConfig windowed = small_model();
  windowed.window = 5;  // 1 + 2 + 3 + 4 + 12 x 5 pairs
  EXPECT_EQ(forward_flops(windowed, 16).attention, 4.0 * 8 * 3 * 70);
  EXPECT_EQ(forward_flops(windowed, 4).attention, forward_flops(small_model(), 4).attention);
  EXPECT_EQ(step_flops(small_model(), 2, 16), 3 * 2 * one.total());
}

// T = 32, C = 8: one (B, N, C) in float32 has 1,024 bytes, one (B, N, F) 3,072.
TEST(ModelCost, AddsUpWhatABlockKeeps) {
  PassShape shape{.batch_size = 2, .seq_len = 16};
  EXPECT_EQ(residual_stream_bytes(small_model(), shape), 1024.0);
  // x, ln1, q, k, v, output, y, ln2; w1 x, w3 x, gated; two 4-byte numbers a row and 2 of
  // logsumexp.
  EXPECT_EQ(block_saved_bytes(small_model(), shape), 8.0 * 1024 + 3 * 3072 + 32 * 4 * (2 + 2));
  // The formula instead of a logsumexp: two (2, 2, 16, 16) and a mask of bytes.
  shape.naive_attention = true;
  EXPECT_EQ(block_saved_bytes(small_model(), shape),
            8.0 * 1024 + 3 * 3072 + 32 * 4 * 2 + 2 * 4 * 2 * 2 * 256 + 256);
}

// In bf16 the residual stream (x and y) keeps 4 bytes; weights have copies of 2 (256 + 576) bytes.
TEST(ModelCost, AddsUpWhatABlockKeepsInBfloat16) {
  PassShape shape{.batch_size = 2, .seq_len = 16, .bf16 = true};
  EXPECT_EQ(block_saved_bytes(small_model(), shape),
            2.0 * 1024 + 6 * 512 + 3 * 1536 + 32 * 4 * (2 + 2) + 2 * 832);
  // The fused block keeps neither the gated values nor weights; and less on request.
  shape.on_gpu = true;
  const double fused = 2.0 * 1024 + 6 * 512 + 2 * 1536 + 32 * 4 * (2 + 2);
  EXPECT_EQ(block_saved_bytes(small_model(), shape), fused);
  shape.float8 = true;  // both norms' outputs take half, attention's once more
  EXPECT_EQ(block_saved_bytes(small_model(), shape), fused - 2 * 256 + 256);
  shape.float8 = false;
  shape.recompute = Recompute::kNorms;
  EXPECT_EQ(block_saved_bytes(small_model(), shape), fused - 2 * 512);
  shape.recompute = Recompute::kInner;
  EXPECT_EQ(block_saved_bytes(small_model(), shape), fused - 2 * 512 - 2 * 1536);
  shape.recompute = Recompute::kNorms;
  shape.short_stream = true;
  EXPECT_EQ(block_saved_bytes(small_model(), shape), fused - 2 * 512 - 2 * 512);
}

// Three blocks, of which two are recomputed: in one group, as soon as it is gone through again.
TEST(ModelCost, AddsUpWhatSomeRecomputedBlocksKeep) {
  const ModelConfig model = small_model();
  KeptBlocks kept{.shape = {.batch_size = 2, .seq_len = 16}, .recomputed = 2, .group = 2};
  const double all = block_saved_bytes(model, kept.shape);
  kept.shape.recompute = Recompute::kBlock;
  EXPECT_EQ(block_saved_bytes(model, kept.shape), 1024.0);
  EXPECT_EQ(kept_bytes(model, kept), 1024 + all);
  EXPECT_EQ(kept_bytes_in_backward(model, kept, 2), 1024 + all);
  EXPECT_EQ(kept_bytes_in_backward(model, kept, 1), 2 * all);
  EXPECT_EQ(kept_bytes_in_backward(model, kept, 0), all);
  kept.group = 1;
  EXPECT_EQ(kept_bytes(model, kept), 2 * 1024 + all);
  EXPECT_EQ(kept_bytes_in_backward(model, kept, 1), 1024 + all);
  kept.shape = {.batch_size = 2, .seq_len = 16, .bf16 = true, .on_gpu = true};
  kept.shape.recompute = Recompute::kInner;
  const double inner = block_saved_bytes(model, kept.shape);
  EXPECT_EQ(kept_bytes_in_backward(model, kept, 1), 2 * inner);
  kept.shape.recompute = Recompute::kNone;
  EXPECT_EQ(kept_bytes(model, {.shape = kept.shape}), 3 * block_saved_bytes(model, kept.shape));
}

// T = 32, C = 8, F = 24, in bf16 on a GPU with a short stream: (T, C) has 512 bytes, (T, F) 1,536.
TEST(ModelCost, AddsUpWhatBackwardMakes) {
  PassShape shape{.batch_size = 2, .seq_len = 16, .bf16 = true, .on_gpu = true};
  shape.short_stream = true;
  EXPECT_EQ(block_backward_bytes(small_model(), shape), 4 * 512.0 + 3 * 1536);
  shape.recompute = Recompute::kInner;
  EXPECT_EQ(block_backward_bytes(small_model(), shape), 5 * 512.0 + 5 * 1536);
  shape.short_stream = false;  // two tensors of twice the size, and each rounded
  EXPECT_EQ(block_backward_bytes(small_model(), shape), 9 * 512.0 + 5 * 1536);
  // One chunk: the stream, 1 / root mean square, output, its gradient, logits, the weight's in
  // bf16, and a weight with rows of zeros (100 is no multiple of 8).
  EXPECT_EQ(head_forward_bytes(small_model(), shape),
            2 * 512.0 + 32 * 4 + 2 * 512 + 32 * 200 + 2 * 1600);
  // Scaled in float32 and rounded again.
  EXPECT_EQ(head_backward_bytes(small_model(), shape, 2),
            2 * 512.0 + 32 * 4 + 512 + 1600 + 512 + 2 * 1600 + 1600);
}

// The same by hand as of a forward pass: three products for each, attention 1 + 2.5 times.
TEST(ModelCost, CountsTheWorkOfAPass) {
  const ModelConfig model = small_model();
  KeptBlocks kept{.shape = {.batch_size = 2, .seq_len = 16, .bf16 = true, .on_gpu = true}};
  const ForwardFlops one = forward_flops(model, 16);
  const PassWork work = pass_work(model, kept);
  EXPECT_EQ(work.product_flops, 3 * 2 * (one.linear + one.head));
  EXPECT_EQ(work.attention_forward_flops, 2 * one.attention);
  EXPECT_EQ(work.attention_backward_flops, 5 * one.attention);
  kept.recomputed = 3;
  kept.shape.recompute = Recompute::kBlock;
  EXPECT_EQ(pass_work(model, kept).product_flops, work.product_flops + 2 * one.linear);
  EXPECT_EQ(pass_work(model, kept).attention_forward_flops, 4 * one.attention);
  kept.shape.recompute = Recompute::kInner;  // two of seven matrices: 2 x 8 x 24 of 832
  EXPECT_DOUBLE_EQ(pass_work(model, kept).product_flops,
                   work.product_flops + 2 * one.linear * 384 / 832);
  EXPECT_GT(pass_work(model, kept).moved_bytes, work.moved_bytes);
}

}  // namespace
}  // namespace flashstep
