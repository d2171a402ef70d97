// Which steps of a norm suffer in 16 bits.
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include "flashstep/error.h"
#include "flashstep/profile/account_table.h"
#include "flashstep/profile/precision.h"

namespace flashstep::tools {
namespace {

using at::Tensor;

enum Step : unsigned {
  kMeanInDtype = 1 << 0,
  kMeanRounded = 1 << 1,
  kDifference = 1 << 2,
  kSquare = 1 << 3,
  kMeanSquareInDtype = 1 << 4,
  kMeanSquareRounded = 1 << 5,
  kRoot = 1 << 6,
  kNormalize = 1 << 7,
  kWeight = 1 << 8,
  kResult = 1 << 9,
};

constexpr double kEpsilon = 1e-5;  // as torch::nn::LayerNorm's

struct NormRow {
  const char* name;
  unsigned steps;        // in 16 bits
  bool layer_norm_only;  // RMSNorm has no mean
};
constexpr unsigned kElementwise = kDifference | kSquare | kRoot | kNormalize | kWeight;
constexpr NormRow kNormRows[] = {
    {"result rounded", kResult, false},
    {"mean, summed in 16 bits", kMeanInDtype, true},
    {"mean, summed in float32", kMeanRounded, true},
    {"x - mean", kDifference, true},
    {"square", kSquare, false},
    {"mean square, summed in 16 bits", kMeanSquareInDtype, false},
    {"mean square, summed in float32", kMeanSquareRounded, false},
    {"1 / sqrt(. + epsilon)", kRoot, false},
    {"times 1 / sqrt", kNormalize, false},
    {"times weight, plus bias", kWeight, false},
    {"all, summed in float32", kElementwise | kMeanRounded | kMeanSquareRounded, false},
    {"all, summed in 16 bits", kElementwise | kMeanInDtype | kMeanSquareInDtype, false},
};

struct Input {
  const char* name;   // of a column
  const char* words;  // in a sentence
  double mean, deviation;
};
constexpr Input kNormInputs[] = {
    {"sd 1", "standard deviation 1", 0, 1},
    // Squares up to 10^6: float16 ends at 65,504.
    {"sd 300", "standard deviation 300", 0, 300},
    // Squares of 10^-8: float16's smallest step is 6e-8.
    {"sd 1e-4", "standard deviation 1e-4", 0, 1e-4},
    // A difference leaves a hundredth of what it is taken from.
    {"mean 100", "mean 100 and standard deviation 1", 100, 1},
};
constexpr std::pair<at::ScalarType, const char*> kDtypes[] = {{at::kHalf, "fp16"},
                                                              {at::kBFloat16, "bf16"}};

struct Normed {
  Tensor y;                 // float64
  bool overflowed = false;  // a step gave what is not finite, whatever became of it
};

struct Norm {
  const char* name;
  bool is_layer_norm;
  Tensor weight, bias;

  // Of rows x (R, C) in float64, except for `steps`, which take and give `dtype`.
  Normed operator()(const Tensor& x, unsigned steps, at::ScalarType dtype) const {
    bool overflowed = false;
    const auto seen = [&](const Tensor& value) {
      overflowed = overflowed || !at::isfinite(value).all().item<bool>();
      return value;
    };
    const auto in = [&](Step step, const auto& compute, const auto&... inputs) {
      return seen(steps & step ? compute(seen(inputs.to(dtype))...).to(at::kDouble)
                               : compute(inputs...));
    };
    Tensor centered = x;
    if (is_layer_norm) {
      const Tensor mean = seen(mean_of(x, steps & kMeanInDtype, steps & kMeanRounded, dtype));
      centered = in(kDifference, std::minus<>(), x, mean);
    }
    const Tensor squares = in(
        kSquare, [](const Tensor& a) { return a * a; }, centered);
    const Tensor mean_square =
        seen(mean_of(squares, steps & kMeanSquareInDtype, steps & kMeanSquareRounded, dtype));
    const Tensor root = in(
        kRoot, [&](const Tensor& a) { return (a + kEpsilon).rsqrt(); }, mean_square);
    const Tensor normalized = in(kNormalize, std::multiplies<>(), centered, root);
    const Tensor y = in(
        kWeight, [&](const Tensor& a, const Tensor& w, const Tensor& b) { return a * w + b; },
        normalized, weight, bias);
    const Tensor result = in(kResult, std::identity(), y);
    return {result, overflowed};
  }

  // Over the last dimension, kept. In the dtype: one addition after the other.
  static Tensor mean_of(const Tensor& x, bool in_dtype, bool rounded, at::ScalarType dtype) {
    if (in_dtype) {
      const Tensor columns = x.to(dtype).t().contiguous();
      Tensor sum = at::zeros({x.size(0)}, columns.options());
      for (int64_t i = 0; i < x.size(1); ++i) sum += columns[i];
      return (sum / static_cast<double>(x.size(1))).to(at::kDouble).unsqueeze(1);
    }
    if (rounded) return x.to(at::kFloat).mean(-1, true).to(dtype).to(at::kDouble);
    return x.mean(-1, true);
  }
};

// The largest error as a share of the root mean square; infinite where something overflowed.
double error_of(const Normed& normed, const Tensor& expected) {
  if (normed.overflowed) return std::numeric_limits<double>::infinity();
  const double worst = (normed.y - expected).abs().max().item<double>();
  return worst / expected.square().mean().sqrt().item<double>();
}

// Fills one norm's rows; the errors of a column stand below each other. Says which steps suffer.
void add_norm(const Norm& norm, const Tensor& noise, measure::Table& table) {
  std::vector<NormRow> rows(std::begin(kNormRows), std::end(kNormRows));
  if (!norm.is_layer_norm) std::erase_if(rows, [](const NormRow& r) { return r.layer_norm_only; });
  std::vector<std::vector<measure::Cell>> lines;
  for (const NormRow& row : rows) lines.push_back({norm.name, row.name});
  for (const Input& input : kNormInputs) {
    for (const auto& [dtype, dtype_name] : kDtypes) {
      const Tensor x = (noise * input.deviation + input.mean).to(dtype).to(at::kDouble);
      const Tensor expected = norm(x, 0, dtype).y;
      std::vector<std::string> suffering;
      double rounding = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        const NormRow& row = rows[i];
        const double error = error_of(norm(x, row.steps, dtype), expected);
        lines[i].push_back(std::isfinite(error) ? measure::Cell(error) : measure::Cell("overflow"));
        if (row.steps == kResult) rounding = error;
        const bool single = (row.steps & (row.steps - 1)) == 0;
        if (!single || error <= kSufferingFactor * rounding) continue;
        suffering.push_back(str(row.name, std::isfinite(error)
                                              ? str(" (x ", number(error / rounding, 2), ")")
                                              : " (overflow)"));
      }
      derive(table, norm.name, " in ", dtype_name, ", ", input.words, ": ",
             suffering.empty() ? "no step suffers" : join(suffering, "; "));
    }
  }
  for (auto& line : lines) table.add_row(std::move(line));
}

}  // namespace

measure::Table precision_norms(const NormOptions& options) {
  require(options.rows >= 1 && options.width >= 2,
          "[precision] expected 1 row or more and a width of 2 or more, got ", options.rows,
          " and ", options.width);
  measure::Table table =
      empty_table(str("Norms with one step at a time in 16 bits: ", options.rows, " rows of ",
                      options.width, ", largest error over root mean square"),
                  {measure::text_column("norm"), measure::text_column("in 16 bits")});
  for (const Input& input : kNormInputs) {
    for (const auto& [dtype, name] : kDtypes)
      table.columns.push_back(error_column(str(name, " ", input.name)));
  }
  auto generator = at::make_generator<at::CPUGeneratorImpl>(/*seed=*/1);
  const auto random = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::kDouble);
  };
  const Tensor noise = random({options.rows, options.width});
  const Tensor weight = 1 + 0.1 * random({options.width});
  const Tensor bias = 0.1 * random({options.width});
  add_norm({"LayerNorm", true, weight, bias}, noise, table);
  add_norm({"RMSNorm", false, weight, at::zeros_like(bias)}, noise, table);
  derive(table, "A step suffers when its error is more than ", kSufferingFactor,
         " times that of rounding the exact result (x: how many times), or when it overflows.");
  return table;
}

}  // namespace flashstep::tools
