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
  Transformer model(small_model());
  int64_t elements = 0, block = 0;
  for (const auto& parameter : model->parameters()) elements += parameter.numel();
  for (const auto& parameter : model->layers[1]->parameters()) block += parameter.numel();
  EXPECT_EQ(parameter_count(small_model()), elements);
  EXPECT_EQ(block_parameter_count(small_model()), block);
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
  shape.recompute = Recompute::kNorms;
  EXPECT_EQ(block_saved_bytes(small_model(), shape), fused - 2 * 512);
  shape.recompute = Recompute::kInner;
  EXPECT_EQ(block_saved_bytes(small_model(), shape), fused - 2 * 512 - 2 * 1536);
  shape.recompute = Recompute::kNorms;
  shape.short_stream = true;
  EXPECT_EQ(block_saved_bytes(small_model(), shape), fused - 2 * 512 - 2 * 512);
}

}  // namespace
}  // namespace flashstep
