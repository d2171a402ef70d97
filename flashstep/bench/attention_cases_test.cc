#include "flashstep/bench/attention_cases.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "flashstep/attention.h"

namespace flashstep::tools {
namespace {

TEST(BenchAttentionCases, HandoutIsTheCoursesTable) {
  const auto preset = attention_preset("handout");
  EXPECT_EQ(preset.cases.size(), 80u);  // 10 lengths x 4 head dims x 2 dtypes
  EXPECT_EQ(preset.passes.size(), 3u);
  std::set<std::string> different;
  for (const auto& c : preset.cases) {
    different.insert(describe(c));
    EXPECT_TRUE(c.causal && c.batch == 1 && c.heads == 1 && c.n == c.m) << describe(c);
    EXPECT_TRUE(c.n >= 128 && c.n <= 65536) << describe(c);
  }
  EXPECT_EQ(different.size(), 80u);
}

TEST(BenchAttentionCases, OtherPresetsAreThere) {
  EXPECT_EQ(attention_preset("throughput").cases.size(), 12u);
  EXPECT_EQ(attention_preset("cpu").cases.size(), 64u);
  const auto leaderboard = attention_preset("leaderboard");
  ASSERT_EQ(leaderboard.cases.size(), 1u);
  EXPECT_EQ(describe(leaderboard.cases[0]), "bf16 B 1 H 16 N 16384 D 64 causal");
  EXPECT_EQ(leaderboard.passes, std::vector<std::string>{"both"});
  for (const auto& name : attention_presets()) EXPECT_EQ(attention_preset(name).name, name);
}

TEST(BenchAttentionCases, SweepTakesPairs) {
  const auto own = attention_preset("sweep", {{128, 64}, {256, 128}});
  ASSERT_EQ(own.cases.size(), 4u);  // two dtypes
  EXPECT_EQ(own.cases[0].n, 128);
  EXPECT_EQ(own.cases[0].m, 64);
  const auto cases = attention_preset("sweep").cases;
  EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [](const auto& c) { return c.n > c.m; }));
  EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [](const auto& c) { return c.n < c.m; }));
}

TEST(BenchAttentionCases, FiltersLeaveWhatTheyName) {
  AttentionFilter filter;
  filter.dtypes = {"bf16"};
  filter.lengths = {128, 1024};
  filter.head_dims = {64};
  filter.passes = {"backward"};
  const auto preset = filtered(attention_preset("handout"), filter);
  EXPECT_EQ(preset.cases.size(), 2u);
  EXPECT_EQ(preset.passes.size(), 1u);
  filter.window = 500;
  const auto windowed = filtered(attention_preset("throughput"), filter);
  EXPECT_EQ(windowed.cases.size(), 1u);  // the causal one of 1024
  EXPECT_EQ(describe(windowed.cases[0]), "bf16 B 4 H 16 N 1024 D 64 causal window 500");
  EXPECT_EQ(pass_flops(windowed.cases[0], "forward"),
            4.0 * 4 * 16 * 64 * (500 * 501 / 2 + 524 * 500));
  filter.documents = 100;
  const AttentionCase of_documents = filtered(attention_preset("throughput"), filter).cases[0];
  EXPECT_EQ(describe(of_documents), "bf16 B 4 H 16 N 1024 D 64 causal window 500 documents 100");
  const auto seen = hidden_keys(of_documents, 0, 1024, 1024, at::kCPU).logical_not();
  EXPECT_NEAR(pass_flops(of_documents, "forward"), 4.0 * 4 * 16 * 64 * seen.sum().item<double>(),
              1);
  EXPECT_LT(seen.sum().item<int64_t>(), 500 * 501 / 2);
  filter.lengths = {100};
  EXPECT_TRUE(filtered(attention_preset("handout"), filter).cases.empty());
}

TEST(BenchAttentionCases, CountsWork) {
  const AttentionCase c{"bf16", 2, 0, 4, 4, 8, true};  // no heads count as one
  EXPECT_EQ(pass_flops(c, "forward"), 4.0 * 2 * 10 * 8);
  EXPECT_EQ(pass_flops(c, "both"), 3.5 * 4 * 2 * 10 * 8);
  EXPECT_EQ(pass_bytes(c, "forward"), 2.0 * 4 * (2 * 4 * 8) + 4 * 2 * 4);
  EXPECT_EQ(pass_bytes(c, "both"), pass_bytes(c, "forward") + pass_bytes(c, "backward"));
}

using Counts = std::array<int64_t, 4>;

AttentionOutcome plain_outcome(const AttentionInputs& inputs, bool causal, int64_t window = 100) {
  at::Tensor hidden;
  const auto all = at::ones({inputs.q.size(-2), inputs.k.size(-2)}, at::kBool);
  if (causal) hidden = all.triu(1).logical_or(all.tril(-window));
  return outcome_of(
      [&](const auto& q, const auto& k, const auto& v) { return plain_attention(q, k, v, hidden); },
      leaves_of(inputs), /*gradients=*/true);
}

TEST(AttentionReference, FindsTheFormulaRight) {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    for (const int64_t window : {0, 7, 100}) {  // of keys; 0: without a mask
      const bool causal = window > 0;
      const AttentionCase c{dtype, 2, 3, 33, causal ? 33 : 20, 16, causal, window % 100};
      const auto inputs = random_inputs(c, at::kCPU, 1);
      const AttentionReference reference(c, inputs, true);
      EXPECT_EQ(reference.errors(plain_outcome(inputs, causal, window)).wrong, Counts{}) << dtype;
      EXPECT_EQ(reference.checked_heads(), 6);
    }
  }
}

TEST(AttentionReference, KnowsDocuments) {
  const AttentionCase c{"fp32", 2, 3, 150, 150, 8, true, 0, 20};
  const auto inputs = random_inputs(c, at::kCPU, 1);
  const AttentionReference reference(c, inputs, true);
  const auto with = [&](AttentionOptions options) {
    options.causal = true;
    return outcome_of(
        [&](const auto& q, const auto& k, const auto& v) { return attention(q, k, v, options); },
        leaves_of(inputs), /*gradients=*/true);
  };
  EXPECT_EQ(reference.errors(with({.documents = documents_of(c, at::kCPU)})).wrong, Counts{});
  for (const int64_t wrong : reference.errors(with({})).wrong) EXPECT_GT(wrong, 1000);
}

TEST(AttentionReference, CountsWhatIsWrongAndWhatIsMissing) {
  const AttentionCase c{"fp32", 1, 2, 20, 20, 8, true};
  const auto inputs = random_inputs(c, at::kCPU, 2);
  const AttentionReference reference(c, inputs, true);
  auto outcome = plain_outcome(inputs, true);
  outcome[0] = outcome[0].clone();
  outcome[0][0][1][3][5] += 1e-3;
  outcome[0][0][0][19][7] = NAN;
  outcome[2] = outcome[2].clone();
  outcome[2][0][0][0][0] = INFINITY;
  EXPECT_EQ(reference.errors(outcome).wrong, (Counts{2, 0, 1, 0}));
  outcome[1] = at::Tensor();
  outcome[3] = outcome[3].narrow(2, 0, 19);
  EXPECT_EQ(reference.errors(outcome).wrong, (Counts{2, 2 * 20 * 8, 1, 2 * 20 * 8}));
}

// The last rows average 2000 values: 1/45 of the first row's size. One tile of 64 keys less in them
// changes less than a rounding of the first.
TEST(AttentionReference, SeesALostTileInLateRows) {
  const AttentionCase c{"bf16", 1, 1, 2048, 2048, 16, true};
  const auto inputs = random_inputs(c, at::kCPU, 7);
  const AttentionReference reference(c, inputs, false);
  const auto hidden = at::ones({2048, 2048}, at::kBool).triu(1);
  const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
  const auto out_of = [&](const at::Tensor& mask) {
    return plain_attention(wide(inputs.q), wide(inputs.k), wide(inputs.v), mask).to(at::kBFloat16);
  };
  EXPECT_EQ(reference.errors({out_of(hidden)}).wrong[0], 0);
  auto lost = hidden.clone();
  lost.slice(0, 1920).slice(1, 1024, 1088).fill_(true);
  EXPECT_GT(reference.errors({out_of(lost)}).wrong[0], 0);
}

TEST(AttentionReference, LooksAtTheOutputAloneWhereThereAreNoGradients) {
  const AttentionCase c{"fp32", 1, 1, 16, 16, 8, false};
  const auto inputs = random_inputs(c, at::kCPU, 3);
  const AttentionReference reference(c, inputs, false);
  EXPECT_EQ(reference.errors({plain_outcome(inputs, false)[0]}).wrong, Counts{});
}

// 16 heads and 8192 keys: some 64 queries a block.
TEST(AttentionReference, BlocksOfQueriesAddUp) {
  const AttentionCase c{"fp32", 1, 16, 150, 8192, 8, false};
  const auto inputs = random_inputs(c, at::kCPU, 4);
  const AttentionReference reference(c, inputs, true);
  EXPECT_EQ(reference.errors(plain_outcome(inputs, false)).wrong, Counts{});
}

// 2^25 pairs are two heads of 4096 x 4096 and, with a mask, four: the first and the last among
// them.
TEST(AttentionReference, TakesSomeOfManyHeads) {
  const AttentionCase c{"fp32", 1, 16, 4096, 4096, 8, true};
  const auto inputs = random_inputs(c, at::kCPU, 5);
  const AttentionReference reference(c, inputs, false);
  EXPECT_EQ(reference.checked_heads(), 3);
  auto out = at::scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, {}, 0, true);
  EXPECT_EQ(reference.errors({out}).wrong[0], 0);
  out[0][0][4095][0] += 1;
  out[0][15][0][7] += 1;
  EXPECT_EQ(reference.errors({out}).wrong[0], 2);
}

TEST(RandomInputs, AreDrawnAsOthersDrawThem) {
  const AttentionCase c{"bf16", 1, 2, 5, 7, 8, false};
  const auto inputs = random_inputs(c, at::kCPU, 9);
  torch::manual_seed(9);
  const auto q = torch::randn({1, 2, 5, 8}), k = torch::randn({1, 2, 7, 8});
  EXPECT_TRUE(at::equal(inputs.q, q.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(inputs.k, k.to(at::kBFloat16)));
  EXPECT_EQ(inputs.grad_out.sizes(), inputs.q.sizes());
}

}  // namespace

}  // namespace flashstep::tools
