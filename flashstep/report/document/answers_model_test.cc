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
  double half_mean = 1e-3;
  Cell half_square = "overflow", brain_square = 1e-3;
  double small_gain = 1.2, medium_gain = 1.5, large_gain = 1.8;
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
  const auto norms =
      table_of({"norm", "in 16 bits", "fp16 sd 1", "bf16 sd 1", "fp16 sd 300", "bf16 sd 300"},
               {{"LayerNorm", "result rounded", 1e-3, 1e-3, 1e-3, 1e-3},
                {"LayerNorm", "mean", p.half_mean, 1e-3, p.half_mean, 1e-3},
                {"LayerNorm", "square", 1e-3, 1e-3, p.half_square, p.brain_square},
                {"LayerNorm", "all, summed in 16 bits", 1.0, 1.0, 1.0, 1.0}});
  const auto size = [](const char* model, double gain) {
    return std::vector<Cell>{model, 10.0, 20.0, 10 / gain, 20 / gain, gain, gain, 1e-3, 1e-2, 1e-2};
  };
  const auto sizes = table_of(
      {"model", "fp32 forward", "fp32 backward", "bf16 forward", "bf16 backward", "gain forward",
       "gain backward", "loss error", "logits error", "gradient error"},
      {size("small", p.small_gain), size("medium", p.medium_gain), size("large", p.large_gain)});
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
  EXPECT_SAYS(answer_text(name, precision({})),
              "In float16 these steps of LayerNorm err more than 4 times");
  EXPECT_SAYS(answer_text(name, precision({})), ": square (sd 300: overflow).");
  EXPECT_SAYS(answer_text(name, precision({.half_mean = 1.0})), ": mean (sd 1, sd 300); square (");
  EXPECT_SAYS_NOT(answer_text(name, precision({})), "all, summed");
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
  EXPECT_SAYS(answer_text(name, precision({.medium_gain = 1.1, .large_gain = 0.7})),
              "gain of backward falls: 1.20 to 0.70");
  EXPECT_SAYS(answer_text(name, precision({.medium_gain = 1.21, .large_gain = 1.21})),
              "gain of backward is the same within 2 %");
  EXPECT_SAYS(answer_text(name, precision({.large_gain = 0.7})),
              "backward slower than fp32 (0.70 times its speed).");
  EXPECT_SAYS(answer_text(name, precision({})), "backward 1.80 times as fast as fp32.");
  const std::string between = answer_text(name, precision({.medium_gain = 0.86}));
  EXPECT_SAYS(between, "lowest with medium (0.86) and highest with large (1.80)");
  EXPECT_SAYS_NOT(between, "grows:");
}

struct Memory {
  double forward = 100, step = 300, bf16 = 60, measured = 10, saved = 50, gradients = 30,
         logits = 20, optimizer = 0;
  double bf16_activations = 35, bf16_parameters = 20;
};

std::vector<Result> memory(const Memory& m) {
  const auto row = [](const char* mode, const char* precision, double peak, const char* in,
                      double activations, double gradients, double parameters = 20,
                      double optimizer = 0) {
    return std::vector<Cell>{"2.7B",     128,       mode,      precision,   peak,
                             parameters, gradients, optimizer, activations, in};
  };
  return {result_of(
      "memory", "memory_2025",
      {table_of(
           {"size", "context", "mode", "precision", "peak", "parameters", "gradients",
            "optimizer state", "activations", "peak in"},
           {row("forward", "fp32", m.forward, "forward", 70, 0),
            row("step", "fp32", m.step, "optimizer", 10, 90, 20, m.optimizer),
            row("forward", "bf16", m.bf16, "forward", m.bf16_activations, 0, m.bf16_parameters)}),
       table_of({"size", "context", "derivation", "formula", "measured"},
                {{"2.7B", 128, "4 x 128 x 2560 x 4 bytes", 10.0, m.measured}}),
       table_of({"size", "context", "precision", "mode", "bytes", "count", "kind", "shape", "range",
                 "made by", "source"},
                {{"2.7B", 128, "fp32", "forward", 100.0, 32, "parameters", "(10240, 2560)", "",
                  "empty", "a.cc:1"},
                 {"2.7B", 128, "fp32", "forward", 90.0, 1, "parameters", "(9, 9)", "", "empty",
                  "a.cc:1"},
                 {"2.7B", 128, "fp32", "forward", 32.0, 1, "other", "", "warm-up/forward/head",
                  "mm", "b.cc:1"},
                 {"2.7B", 128, "fp32", "step", 30.0, 1, "gradients", "(8, 8)", "backward/head",
                  "mm", "b.cc:1"},
                 {"2.7B", 128, "fp32", "forward", m.logits, 2, "temporaries", "(4, 128, 10000)",
                  "forward/head", "mm", "b.cc:2"},
                 {"2.7B", 256, "fp32", "forward", 40.0, 2, "temporaries", "(4, 256, 10000)",
                  "forward/head", "mm", "b.cc:2"}}),
       table_of({"size", "context", "precision", "attention", "block", "saved", "formula",
                 "gradients", "expected"},
                {{"2.7B", 128, "fp32", "auto", 0, m.saved, 50.0, m.gradients, 30.0}}),
       table_of({"size", "context", "precision", "attention", "operator", "saved", "share"},
                {{"2.7B", 128, "fp32", "auto", "linear", 40.0, 80.0},
                 {"2.7B", 128, "fp32", "auto", "mul", 5.0, 10.0},
                 {"2.7B", 128, "bf16", "auto", "copy", 30.0, 60.0},
                 {"2.7B", 256, "fp32", "auto", "silu", 40.0, 70.0}})})};
}

// Peaks in fp32 and bf16 at two contexts: what the passes make, and the float32 state.
struct Precisions {
  double fp32_made = 100, bf16_made = 600;    // temporaries, context 128
  double fp32_saved = 900, bf16_saved = 500;  // activations, context 512
  double bf16_unknown = 0;                    // of no kind, context 128
  double state = 1000;
  double step = 3000;
};

std::vector<Result> precisions(const Precisions& p) {
  const auto row = [&](int context, const char* mode, const char* precision, double peak,
                       Cell activations, Cell temporaries) {
    return std::vector<Cell>{"2.7B",  context,     mode,        precision, peak,
                             p.state, activations, temporaries, "forward"};
  };
  return {result_of(
      "memory", "memory_2025",
      {table_of(
          {"size", "context", "mode", "precision", "peak", "parameters", "activations",
           "temporaries", "peak in"},
          {row(128, "forward", "fp32", p.state + p.fp32_made, Cell(), p.fp32_made),
           row(128, "forward", "bf16", p.state + p.bf16_made + p.bf16_unknown, Cell(), p.bf16_made),
           row(512, "forward", "fp32", p.state + p.fp32_saved, p.fp32_saved, Cell()),
           row(512, "forward", "bf16", p.state + p.bf16_saved, p.bf16_saved, Cell()),
           row(128, "step", "fp32", p.step, Cell(), Cell()),
           row(512, "step", "fp32", p.step, Cell(), Cell())})})};
}

TEST(AnswersMemory, PeaksAndTheirPass) {
  EXPECT_SAYS(answer_text("memory_profiling (a)", memory({})), "comes in optimizer");
  EXPECT_SAYS(answer_text("memory_profiling (a)", memory({})), "3.00 times as high");
  EXPECT_SAYS(answer_text("memory_profiling (a)", memory({.step = 90})), "no higher");
  const auto held = [](const Memory& m) { return answer_text("memory_profiling (a)", memory(m)); };
  EXPECT_SAYS(held({}), "activations (70.0 MiB) hold most of it.");
  EXPECT_SAYS(held({.forward = 150}), "activations (70.0 MiB) hold the largest part of it.");
  EXPECT_SAYS(held({.optimizer = 200}), "optimizer state (200 MiB) holds most of it.");
  EXPECT_SAYS(held({.optimizer = 149}), "optimizer state (149 MiB) holds the largest part of it.");
  EXPECT_SAYS(answer_text("memory_profiling (b)", memory({})), "step, fp32: 300.00 MiB");
}

TEST(AnswersMemory, MixedPrecision) {
  const auto text = [](const Memory& m) { return answer_text("memory_profiling (c)", memory(m)); };
  EXPECT_SAYS(text({}), "(40 % less)");
  EXPECT_SAYS(text({.bf16 = 101}), "in fp32 (the same within 2 %).");
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

TEST(AnswersMemory, EveryContextOfThePeaks) {
  const auto text = [](const Precisions& p) {
    return answer_text("memory_profiling (a)", precisions(p));
  };
  EXPECT_SAYS(text({}), "2.7B, context 128, forward, fp32: the peak of 1,100 MiB");
  EXPECT_SAYS(text({}), "2.7B, context 512, forward, fp32: the peak of 1,900 MiB");
  EXPECT_SAYS(text({}), "2.73 (2.7B, context 128), 1.58 (2.7B, context 512) times as high as");
  EXPECT_SAYS(text({.step = 1500}), "peaks 1.36 (2.7B, context 128) times as high as");
  EXPECT_SAYS(text({.step = 1500}), "; in the other cases no higher.");
}

TEST(AnswersMemory, WhyMixedPrecisionChangesThePeaks) {
  const auto text = [](const Precisions& p) {
    return answer_text("memory_profiling (c)", precisions(p));
  };
  const char* rises = "Where it rises: autocast makes 16-bit copies of the weights";
  const char* falls = "Where it falls: 16-bit activations save more";
  EXPECT_SAYS(text({}), rises);
  EXPECT_SAYS(text({}), "(500 MiB).");
  EXPECT_SAYS(text({}), falls);
  EXPECT_SAYS(text({}), "400 MiB less");
  EXPECT_SAYS_NOT(text({.bf16_saved = 1200}), falls);
  EXPECT_SAYS_NOT(text({.bf16_made = 50}), rises);
  // It rises, but not by what the pass is known to make.
  EXPECT_SAYS_NOT(text({.bf16_made = 100, .bf16_unknown = 500}), rises);
  EXPECT_SAYS(text({.bf16_made = 101}), "(the same within 2 %: nearly all of both are parameters");
  EXPECT_SAYS_NOT(text({.bf16_made = 101, .state = 500}), "nearly all");
}

TEST(AnswersMemory, TensorsAgainstFormulas) {
  EXPECT_SAYS(answer_text("memory_profiling (d)", memory({})), "has just that");
  EXPECT_SAYS(answer_text("memory_profiling (d)", memory({.measured = 20})), "INSTEAD");
  const std::string largest = answer_text("memory_profiling (e)", memory({.logits = 20}));
  EXPECT_SAYS(largest,
              "2.7B, context 128, forward, fp32. The largest, made before the pass: 100 MiB, 32 "
              "times: parameters of shape (10240, 2560)");
  EXPECT_SAYS(largest, "Made by the pass: 20.0 MiB, 2 times: temporaries of shape (4, 128, 10000)");
  EXPECT_SAYS(largest, "(b.cc:2) in forward/head");
  for (const char* other : {"(4, 256, 10000)", "(9, 9)", "warm-up", "gradients"})
    EXPECT_EQ(largest.find(other), std::string::npos) << largest;
  EXPECT_SAYS(answer_text("memory_profiling (f)", memory({})), "as the formula says (50.0 MiB)");
  EXPECT_SAYS(answer_text("memory_profiling (f)", memory({.saved = 51.9})),
              "51.9 MiB for backward, 3.8 % more than the formula's 50.0 MiB;");
  EXPECT_SAYS(answer_text("memory_profiling (f)", memory({.saved = 48})),
              "4.0 % less than the formula's 50.0 MiB;");
  EXPECT_SAYS(answer_text("memory_profiling (f)", memory({})), "as expected");
  EXPECT_SAYS(
      answer_text("memory_profiling (f)", memory({})),
      "2.7B, context 128, fp32, attention auto: most is saved by linear 80.00 %, mul 10.00 %.");
  EXPECT_SAYS(answer_text("memory_profiling (f)", memory({})),
              "context 128, bf16, attention auto: most is saved by copy 60.00 %.");
  EXPECT_SAYS(answer_text("memory_profiling (f)", memory({.saved = 90})),
              "NOT what the formula says (50.0 MiB) but 80.0 % more");
  EXPECT_SAYS(answer_text("memory_profiling (f)", memory({.gradients = 90})),
              "NOT what one expects (30.0 MiB) but 200.0 % more");
}

}  // namespace
}  // namespace flashstep::report
