// Packed documents on a CPU: their spans, and attention that does not look across.
#include <ATen/Parallel.h>

#include "flashstep/attention/attention_test.h"

namespace flashstep {
namespace {

using at::Tensor;
using attention_testing::expect_right;
using attention_testing::masks_of_documents;
using attention_testing::random_inputs;
using attention_testing::Results;
using attention_testing::run;
using attention_testing::unit_of;

// Each document is what it is by itself, whichever its neighbours.
TEST(Documents, AreApart) {
  torch::manual_seed(6);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const double length : {1.5, 30.0}) {
      const auto inputs = random_inputs({{2, 4}, 2, 97, 97, 24}, dtype, at::kCPU);
      for (AttentionOptions options : masks_of_documents({2, 97}, length, at::kCPU)) {
        const auto got = run(inputs, options, "naive", at::kDouble);
        AttentionOptions alone = options;
        alone.documents = Tensor();
        for (int64_t first = 0; first < 97;
             first = options.documents[1][1][first].item<int64_t>()) {
          const int64_t rows = options.documents[1][1][first].item<int64_t>() - first;
          const auto part = [&](const Tensor& x) {
            return x.narrow(0, 1, 1).narrow(2, first, rows);
          };
          const auto expected = run({part(inputs.q), part(inputs.k), part(inputs.v),
                                     part(inputs.grad_out), part(inputs.grad_logsumexp)},
                                    alone, "naive", at::kDouble);
          for (const auto member : {&Results::out, &Results::logsumexp, &Results::grad_q,
                                    &Results::grad_k, &Results::grad_v}) {
            EXPECT_TRUE(testing::close(part(got.*member), expected.*member, 1e-12)) << first;
          }
        }
        for (const auto& name : attention_implementations()) {
          if (name == "naive" || name == "cuda" || (name == "cpu" && dtype == at::kDouble))
            continue;
          options.implementation = name;
          if (name != "sdpa") {
            expect_right(inputs, options, name, str("length ", length),
                         /*with_grad_logsumexp=*/true);
          } else {
            const auto out = attention(inputs.q, inputs.k, inputs.v, options);
            options.implementation = "naive";
            const auto naive = attention(inputs.q, inputs.k, inputs.v, options);
            EXPECT_TRUE(testing::within_twice_naive(out, naive, got.out, unit_of(dtype, 24)));
          }
        }
      }
    }
  }
}

// One that is most of the work by all threads, and others side by side.
TEST(Documents, LongAndShortOnes) {
  torch::manual_seed(8);
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  AttentionOptions options;
  options.causal = true;
  options.documents = document_spans(
      (at::arange(300) - 200).clamp_min(0).div(9, "floor").unsqueeze(0).to(at::kLong));
  expect_right(random_inputs({{1, 2}, 0, 300, 300, 16}, at::kFloat, at::kCPU), options, "cpu",
               "long and short", /*with_grad_logsumexp=*/true);
  at::set_num_threads(threads);
}

TEST(Documents, OfManyLeadingDimensions) {
  torch::manual_seed(7);
  const auto inputs = random_inputs({{2, 3, 2}, 0, 40, 40, 8}, at::kFloat, at::kCPU);
  for (const auto& options : masks_of_documents({2, 3, 40}, 8, at::kCPU)) {
    for (const std::string name : {"tiled", "cpu"}) expect_right(inputs, options, name, "rank 5");
    AttentionOptions other = options;
    other.implementation = "sdpa";
    EXPECT_TRUE(testing::close(attention(inputs.q, inputs.k, inputs.v, other),
                               attention(inputs.q, inputs.k, inputs.v, options), 1e-5));
  }
}

TEST(Documents, Spans) {
  const auto ids = torch::tensor({{7, 7, 2, 7, 7, 7}, {0, 0, 0, 0, 0, 0}});
  EXPECT_TRUE(testing::same_bits(document_spans(ids),
                                 torch::tensor({{{0, 0, 2, 3, 3, 3}, {0, 0, 0, 0, 0, 0}},
                                                {{2, 2, 3, 6, 6, 6}, {6, 6, 6, 6, 6, 6}}},
                                               at::kInt)));
  EXPECT_EQ(document_spans(torch::zeros({3, 0}, at::kLong)).sizes(), at::IntArrayRef({2, 3, 0}));
  const auto one = document_spans(torch::tensor({5}));
  EXPECT_TRUE(testing::same_bits(one, torch::tensor({{0}, {1}}, at::kInt)));
  EXPECT_TRUE(testing::same_bits(document_spans(torch::tensor({4, 9, 9, 4, 4}), 9),
                                 torch::tensor({{0, 0, 2, 3, 3}, {2, 2, 3, 5, 5}}, at::kInt)));
}

}  // namespace
}  // namespace flashstep
