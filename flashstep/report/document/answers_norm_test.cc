// Results that reverse each conclusion about norms turn the text.
#include <gtest/gtest.h>

#include "flashstep/report/document/answers_test.h"

namespace flashstep::report {
namespace {

using namespace for_tests;
using measure::Cell;

// Milliseconds of the forward pass; with the backward pass three times as many.
struct Norms {
  double ours = 1, naive = 4, libtorch = 3, layer_norm = 1.5;
  Cell compiled = 2.0;
  double norm_in_model = 20;  // of 100
};

std::vector<Result> norms(const Norms& n) {
  Rows rows;
  for (const double factor : {1.0, 3.0}) {
    const char* pass = factor == 1 ? "forward" : "forward-backward";
    const auto add = [&](const char* contestant, const Cell& ms) {
      const double* time = std::get_if<double>(&ms.value());
      rows.push_back({50'000, 1024, "fp32", pass, contestant,
                      time == nullptr ? ms : Cell(*time * factor), 80.0});
    };
    add("flashstep", n.ours);
    add("naive", n.naive);
    add("libtorch", n.libtorch);
    add("compiled", n.compiled);
    add("layer_norm", n.layer_norm);
  }
  const auto range = [](const char* path, double forward) {
    return std::vector<Cell>{"small", 128, "fp32", "auto", path, forward, 2 * forward};
  };
  return {
      result_of(
          "norm", "norm_2024",
          {table_of({"rows", "width", "dtype", "pass", "contestant", "median", "of limit"}, rows)}),
      result_of(
          "profile", "profile_n0128_2024",
          {table_of({"model", "context", "precision", "attention", "range", "forward", "backward"},
                    {range("block", 90), range("block > norm", n.norm_in_model - 1),
                     range("norm", 1), range("head", 9)})})};
}

TEST(AnswersNorm, BesideLayerNorm) {
  const std::string text = answer_text("rmsnorm (a)", norms({}));
  EXPECT_SAYS(text, "LayerNorm 1.50 ms, RMSNorm by its formula 4.00 ms");
  EXPECT_SAYS(text, "by its formula it is slower all the same");
  EXPECT_SAYS(text, "(flashstep) is 1.50 times as fast as LayerNorm's");
  EXPECT_SAYS(answer_text("rmsnorm (a)", norms({.layer_norm = 8})),
              "RMSNorm is faster even by its formula");
  EXPECT_SAYS(answer_text("rmsnorm (a)", norms({.layer_norm = 4})), "take the same time");
  EXPECT_SAYS(answer_text("rmsnorm (a)", norms({.layer_norm = 0.5})),
              "is only 0.50 times as fast as LayerNorm's");
}

TEST(AnswersNorm, AFusedKernel) {
  const std::string text = answer_text("rmsnorm (b)", norms({}));
  EXPECT_SAYS(text, "forward: our rms_norm is 4.00 times as fast as the formula");
  EXPECT_SAYS(text, "forward-backward: LibTorch's rms_norm is 1.33 times as fast as the formula");
  EXPECT_SAYS(text, "The faster of the two (flashstep) reaches 80 to 80 %");
  EXPECT_SAYS(text, "Fusing pays");
  const std::string reversed = answer_text("rmsnorm (b)", norms({.ours = 8, .libtorch = 4}));
  EXPECT_SAYS(reversed, "The faster of the two (libtorch)");
  EXPECT_SAYS(reversed, "Fusing does not pay here");
}

TEST(AnswersNorm, Compiled) {
  const std::string text = answer_text("rmsnorm (c)", norms({}));
  EXPECT_SAYS(text, "through torch.compile is 2.00 times as fast as without it");
  EXPECT_SAYS(text, "only 0.50 times as fast as the kernel that was written (flashstep)");
  EXPECT_SAYS(text, "writing one pays");
  EXPECT_SAYS(answer_text("rmsnorm (c)", norms({.compiled = 0.5})), "needs no kernel by hand");
  EXPECT_SAYS(answer_text("rmsnorm (c)", norms({.compiled = "failed"})), "Not measured");
}

TEST(AnswersNorm, InTheModel) {
  const std::string text = answer_text("rmsnorm (d)", norms({}));
  EXPECT_SAYS(text, "norms take 20.0 % of the forward and backward pass");
  EXPECT_SAYS(text, "1.25 times as fast at most");
  EXPECT_SAYS(text, "is seen in the model");
  EXPECT_SAYS(answer_text("rmsnorm (d)", {}), "Not measured: needs `flashstep profile`");
  EXPECT_SAYS(answer_text("rmsnorm (d)", norms({.norm_in_model = 3})), "the model hardly sees it");
}

}  // namespace
}  // namespace flashstep::report
