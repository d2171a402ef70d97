// Results that reverse each conclusion about one model on one device turn the text.
#include <gtest/gtest.h>

#include "flashstep/report/document/answers_test.h"

namespace flashstep::report {
namespace {

using namespace for_tests;
using measure::Cell;

struct Step {
  double deviation = 1, cold_mean = 300, one_mean = 110, warm_mean = 100;
  double eager = 1000, compiled = 1500;
};

std::vector<Result> step(const Step& s) {
  const std::vector<std::string> columns = {
      "model", "parameters", "context", "precision", "attention", "mode",  "warm-up",
      "mean",  "deviation",  "forward", "backward",  "tokens",    "eager", "compiled"};
  const auto row = [&](const char* model, int warmup, Cell mean) {
    return std::vector<Cell>{model, 128.0,       128,  "fp32", "auto", "step",  warmup,
                             mean,  s.deviation, 30.0, 60.0,   2000.0, s.eager, s.compiled};
  };
  std::vector<Cell> no_room = {"2.7B", 2700.0, 128, "fp32", "auto", "step", 5, "OOM"};
  no_room.resize(columns.size());
  return {result_of("step", "step_2025", {table_of(columns, {row("small", 5, 100.0), no_room})}),
          result_of("step", "step_warmup_2025",
                    {table_of(columns, {row("small", 0, s.cold_mean), row("small", 1, s.one_mean),
                                        row("small", 5, s.warm_mean)})})};
}

TEST(AnswersStep, TimesAndTheirSpread) {
  const char* name = "benchmarking_script (b)";
  EXPECT_SAYS(answer_text(name, step({})), "backward 60.0 ms (2.0 times forward)");
  EXPECT_SAYS(answer_text(name, step({})), "the times hardly vary");
  EXPECT_SAYS(answer_text(name, step({})), "1 case did not fit into memory");
  EXPECT_SAYS(answer_text(name, step({.deviation = 30})), "the times vary from step to step");
  EXPECT_SAYS(answer_text("benchmarking_script (a)", step({})), "4 of 5 cases were timed");
}

TEST(AnswersStep, WhetherWarmupMatters) {
  const char* name = "benchmarking_script (c)";
  EXPECT_SAYS(answer_text(name, step({})), "3.00 times that with the most; from 5 on");
  EXPECT_SAYS(answer_text(name, step({.one_mean = 101})), "times that with the most; from 1 on");
  EXPECT_SAYS(answer_text(name, step({})), "What is done once falls into the first steps");
  EXPECT_SAYS(answer_text(name, step({.cold_mean = 101})),
              "cost no more than the others vary anyway");
}

TEST(AnswersStep, WhetherCompilingPays) {
  EXPECT_SAYS(answer_text("torch_compile (b)", step({})), "1.50 times as fast");
  EXPECT_SAYS(answer_text("torch_compile (b)", step({})), "fusing element-wise operations pays");
  EXPECT_SAYS(answer_text("torch_compile (b)", step({.compiled = 500})), "does not pay here");
}

struct Precision {
  double half_error = 0.47, half_from_sum = -0.49, mixed = 10.0021, cast = 10.0021;
  Cell half_square = "overflow", brain_square = 1e-3;
  double small_gain = 1.2, large_gain = 1.8;
  const char* cuda_logits = "float16";
};

std::vector<Result> precision(const Precision& p) {
  const auto loop = [](const char* name, double result, double error, double addend, double sum) {
    return std::vector<Cell>{name, result, error, addend, sum};
  };
  const auto sum = table_of({"sum + addend", "result", "error", "from the addend", "from the sum"},
                            {loop("float16 + float16", 9.9531, p.half_error, 0.02, p.half_from_sum),
                             loop("float32 + float16", p.mixed, 0.02, 0.02, 0),
                             loop("float32 + float16 cast to float32", p.cast, 0.02, 0.02, 0)});
  const auto dtypes = table_of({"tensor", "CPU, float16", "CPU, bfloat16", "CUDA, float16"},
                               {{"logits", "float16", "bfloat16", p.cuda_logits}});
  const auto norms = table_of({"norm", "in 16 bits", "fp16 sd 300", "bf16 sd 300"},
                              {{"LayerNorm", "result rounded", 1e-3, 1e-3},
                               {"LayerNorm", "square", p.half_square, p.brain_square}});
  const auto size = [](const char* model, double gain) {
    return std::vector<Cell>{model, 10.0, 20.0, 10 / gain, 20 / gain, gain, gain, 1e-3, 1e-2, 1e-2};
  };
  const auto sizes =
      table_of({"model", "fp32 forward", "fp32 backward", "bf16 forward", "bf16 backward",
                "gain forward", "gain backward", "loss error", "logits error", "gradient error"},
               {size("small", p.small_gain), size("large", p.large_gain)});
  return {result_of("precision", "precision_2025", {sum, dtypes, norms, sizes})};
}

TEST(AnswersPrecision, Accumulation) {
  const char* name = "mixed_precision_accumulation";
  EXPECT_SAYS(answer_text(name, precision({})), "the sum must be kept in float32");
  EXPECT_SAYS(answer_text(name, precision({})), "the sum's own rounding is the larger part");
  EXPECT_SAYS(answer_text(name, precision({})), "Casting the addend first changes nothing");
  EXPECT_SAYS(answer_text(name, precision({.half_error = 0.001})), "which is no better here");
  EXPECT_SAYS(answer_text(name, precision({.half_from_sum = 0})),
              "rounding the addend once is the larger part");
  EXPECT_SAYS(answer_text(name, precision({.cast = 10.5})), "first changes the result");
}

TEST(AnswersPrecision, DtypesOfBothDevices) {
  const char* name = "benchmarking_mixed_precision (a)";
  EXPECT_SAYS(answer_text(name, precision({})), "have the same rules");
  EXPECT_SAYS(answer_text(name, precision({.cuda_logits = "float32"})), "differ in logits");
}

TEST(AnswersPrecision, WhichStepsOfANormSuffer) {
  const char* name = "benchmarking_mixed_precision (b)";
  EXPECT_SAYS(answer_text(name, precision({})), "In float16 these steps");
  EXPECT_SAYS(answer_text(name, precision({})), "bfloat16 has float32's range");
  EXPECT_SAYS(answer_text(name, precision({})), "needs no special treatment");
  const std::string reversed =
      answer_text(name, precision({.half_square = 1e-3, .brain_square = 1.0}));
  EXPECT_SAYS(reversed, "In float16 no step");
  EXPECT_SAYS(reversed, "stay in float32 with it too");
  EXPECT_SAYS(reversed, "does not behave better in range");
}

TEST(AnswersPrecision, TrendOverSizes) {
  const char* name = "benchmarking_mixed_precision (c)";
  EXPECT_SAYS(answer_text(name, precision({})), "gain of backward grows: 1.20 to 1.80");
  EXPECT_SAYS(answer_text(name, precision({.large_gain = 0.7})), "gain of backward does not grow");
  EXPECT_SAYS(answer_text(name, precision({.large_gain = 1.21})), "gain of backward does not grow");
  EXPECT_SAYS(answer_text(name, precision({.large_gain = 0.7})), "only 0.70 times as fast as fp32");
}

struct Memory {
  double forward = 100, step = 300, bf16 = 60, measured = 10, saved = 50, gradients = 30,
         logits = 20;
  double bf16_activations = 35, bf16_parameters = 20;
};

std::vector<Result> memory(const Memory& m) {
  const auto row = [](const char* mode, const char* precision, double peak, const char* in,
                      double activations, double gradients, double parameters = 20) {
    return std::vector<Cell>{"2.7B",     128,       mode, precision,   peak,
                             parameters, gradients, 0.0,  activations, in};
  };
  return {result_of(
      "memory", "memory_2025",
      {table_of(
           {"size", "context", "mode", "precision", "peak", "parameters", "gradients",
            "optimizer state", "activations", "peak in"},
           {row("forward", "fp32", m.forward, "forward", 70, 0),
            row("step", "fp32", m.step, "optimizer", 10, 90),
            row("forward", "bf16", m.bf16, "forward", m.bf16_activations, 0, m.bf16_parameters)}),
       table_of({"size", "context", "derivation", "formula", "measured"},
                {{"2.7B", 128, "4 x 128 x 2560 x 4 bytes", 10.0, m.measured}}),
       table_of(
           {"size", "mode", "bytes", "count", "kind", "shape", "range", "made by", "source"},
           {{"2.7B", "forward", 100.0, 32, "parameters", "(10240, 2560)", "", "empty", "a.cc:1"},
            {"2.7B", "forward", 90.0, 1, "parameters", "(9, 9)", "", "empty", "a.cc:1"},
            {"2.7B", "forward", 32.0, 1, "other", "", "warm-up/forward/head", "mm", "b.cc:1"},
            {"2.7B", "step", 30.0, 1, "gradients", "(8, 8)", "backward/head", "mm", "b.cc:1"},
            {"2.7B", "forward", m.logits, 2, "temporaries", "(4, 128, 10000)", "forward/head", "mm",
             "b.cc:2"}}),
       table_of({"size", "context", "precision", "attention", "block", "saved", "formula",
                 "gradients", "expected"},
                {{"2.7B", 128, "fp32", "auto", 0, m.saved, 50.0, m.gradients, 30.0}}),
       table_of({"size", "operator", "saved", "share"}, {{"2.7B", "linear", 40.0, 80.0}})})};
}

TEST(AnswersMemory, PeaksAndTheirPass) {
  EXPECT_SAYS(answer_text("memory_profiling (a)", memory({})), "comes in optimizer");
  EXPECT_SAYS(answer_text("memory_profiling (a)", memory({})), "3.00 times as high");
  EXPECT_SAYS(answer_text("memory_profiling (a)", memory({.step = 90})), "no higher");
  EXPECT_SAYS(answer_text("memory_profiling (b)", memory({})), "step, fp32: 300.00 MiB");
}

TEST(AnswersMemory, MixedPrecision) {
  const auto text = [](const Memory& m) { return answer_text("memory_profiling (c)", memory(m)); };
  EXPECT_SAYS(text({}), "(40 % less)");
  EXPECT_SAYS(text({}), "The peak is lower, by 40 % at most;");
  EXPECT_SAYS(text({.bf16 = 30}), "The peak is lower, by 70 % at most;");
  EXPECT_SAYS(text({.bf16 = 120}), "The peak is higher;");
  EXPECT_SAYS(text({.bf16 = 99}), "The peak is the same within 2 %;");
  EXPECT_SAYS(text({}),
              "activations take 50 % of the bytes that they take in fp32, parameters, "
              "gradients and AdamW's state 100 %.");
  EXPECT_SAYS(text({.bf16_activations = 77, .bf16_parameters = 10}),
              "activations take 110 % of the bytes that they take in fp32, parameters, gradients "
              "and AdamW's state 50 %.");
}

TEST(AnswersMemory, TensorsAgainstFormulas) {
  EXPECT_SAYS(answer_text("memory_profiling (d)", memory({})), "has just that");
  EXPECT_SAYS(answer_text("memory_profiling (d)", memory({.measured = 20})), "INSTEAD");
  const std::string largest = answer_text("memory_profiling (e)", memory({.logits = 20}));
  EXPECT_SAYS(largest, "before the pass: 100 MiB, 32 times: parameters of shape (10240, 2560)");
  EXPECT_SAYS(largest, "Made by the pass: 20.0 MiB, 2 times: temporaries of shape (4, 128, 10000)");
  EXPECT_SAYS(largest, "(b.cc:2) in forward/head");
  for (const char* other : {"(9, 9)", "warm-up", "gradients"})
    EXPECT_EQ(largest.find(other), std::string::npos) << largest;
  EXPECT_SAYS(answer_text("memory_profiling (f)", memory({})), "as the formula says");
  EXPECT_SAYS(answer_text("memory_profiling (f)", memory({})), "as expected");
  EXPECT_SAYS(answer_text("memory_profiling (f)", memory({})), "linear 80.00 %");
  EXPECT_SAYS(answer_text("memory_profiling (f)", memory({.saved = 90})), "NOT what the formula");
  EXPECT_SAYS(answer_text("memory_profiling (f)", memory({.gradients = 90})), "where one expects");
}

}  // namespace
}  // namespace flashstep::report
