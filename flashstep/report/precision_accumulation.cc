#include <cmath>

#include <torch/types.h>

#include "flashstep/report/account_text.h"
#include "flashstep/report/precision.h"

namespace flashstep::report {
namespace {

constexpr int kAdditions = 1000;
constexpr double kAddend = 0.01;

struct Loop {
  const char* name;
  at::ScalarType sum, addend;
  bool cast;  // the addend is cast to the sum's dtype before it is added
};

constexpr Loop kLoops[] = {
    {"float32 + float32", at::kFloat, at::kFloat, false},
    {"float16 + float16", at::kHalf, at::kHalf, false},
    {"float32 + float16", at::kFloat, at::kHalf, false},
    {"float32 + float16 cast to float32", at::kFloat, at::kHalf, true},
    {"bfloat16 + bfloat16", at::kBFloat16, at::kBFloat16, false},
    {"float32 + bfloat16", at::kFloat, at::kBFloat16, false},
};

at::Tensor scalar(double value, at::ScalarType dtype) { return at::full({}, value, dtype); }

double run(const Loop& loop) {
  at::Tensor sum = scalar(0, loop.sum);
  for (int i = 0; i < kAdditions; ++i) {
    const at::Tensor addend = scalar(kAddend, loop.addend);
    sum += loop.cast ? addend.to(loop.sum) : addend;
  }
  return sum.item<double>();
}

// Half of the distance between neighbouring numbers of `dtype` at `value`: what one addition can
// round away there.
double half_spacing(double value, at::ScalarType dtype) {
  const int bits = dtype == at::kHalf ? 11 : dtype == at::kBFloat16 ? 8 : 24;  // of the significand
  return std::ldexp(1.0, std::ilogb(value) - bits);
}

const char* summed_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf ? "float16" : dtype == at::kBFloat16 ? "bfloat16" : "float32";
}

}  // namespace

Account precision_accumulation() {
  Account account{.name = "accumulation", .table = {}, .derivation = {}};
  account.table.title = str("Sum of ", kAdditions, " x ", kAddend);
  account.table.columns = {
      measure::text_column("sum + addend"), measure::number_column("result", "", 4),
      measure::number_column("error", "%", 4), measure::number_column("from the addend", "%", 4),
      measure::number_column("from the sum", "%", 4)};
  const double exact = kAdditions * kAddend;
  for (const Loop& loop : kLoops) {
    const double result = run(loop);
    // Exact additions of the rounded addend: what is left is the sum's own rounding.
    const double of_addend = kAdditions * scalar(kAddend, loop.addend).item<double>();
    account.table.add_row({loop.name, result, 100 * (result - exact) / exact,
                           100 * (of_addend - exact) / exact, 100 * (result - of_addend) / exact});
  }
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    account.derivation.push_back(str(kAddend, " in ", summed_dtype(dtype), " is ",
                                     number(scalar(kAddend, dtype).item<double>(), 8),
                                     "; a sum near 8 rounds each addition to a multiple of ",
                                     number(2 * half_spacing(8, dtype), 4), ", so that up to ",
                                     number(half_spacing(8, dtype), 4), " is lost or gained, at ",
                                     kAddend, " an addition"));
  }
  account.derivation.emplace_back(
      "Casting the addend first changes nothing: float32 + float16 is computed in float32 anyway.");
  return account;
}

}  // namespace flashstep::report
