// One attention problem with its arrays, and the formula in float64 and in the tested type, for the
// tests of this folder. No torch.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "flashstep/attention/cpu/kernels.h"
#include "flashstep/attention/cpu/tile.h"
#include "flashstep/base/text.h"

namespace flashstep::attention_cpu::testing {

using attention_kernel::Element;
using attention_kernel::Input;
using attention_kernel::Output;

// Rounds to a binary type with `bits` of significand and lowest exponent `low`, ties to even.
inline double round_bits(double x, int bits, int low) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double quantum = std::ldexp(1.0, std::max(std::ilogb(x), low) - bits + 1);
  return std::nearbyint(x / quantum) * quantum;
}

inline double round_to(Element type, double x) {
  if (type == Element::kFloat32) return static_cast<float>(x);
  return type == Element::kBfloat16 ? round_bits(x, 8, -126) : round_bits(x, 11, -14);
}

// Half the distance of neighbours near 1.
inline double unit_of(Element type) {
  return std::ldexp(1.0, type == Element::kFloat32 ? -24 : type == Element::kBfloat16 ? -8 : -11);
}

// A (B, H, rows, D) array; every byte 0xFF (a NaN of each type) until it is set, also those of the
// gaps between rows, which nobody may touch.
class Array {
 public:
  Array(Element type, int64_t batches, int64_t heads, int64_t rows, int dim, bool strided)
      : type_(type), batches_(batches), heads_(heads), rows_(rows), dim_(dim) {
    // Strided: (B, rows, H, D + 3), beginning at an odd element.
    const int64_t gap = strided ? dim + 3 : dim;
    strides_ = strided ? attention_kernel::Strides{rows * heads * gap, gap, heads * gap}
                       : attention_kernel::Strides{heads * rows * gap, rows * gap, gap};
    offset_ = strided ? 1 : 0;
    bytes_.assign(static_cast<size_t>((batches * heads * rows * gap + offset_) * size()), 0xFF);
  }

  Input input() const { return {const_cast<uint8_t*>(bytes_.data()) + offset_ * size(), strides_}; }
  Output output() { return {bytes_.data() + offset_ * size(), strides_}; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

  double get(int64_t b, int64_t h, int64_t r, int d) const {
    const uint8_t* p = bytes_.data() + at(b, h, r, d);
    if (type_ == Element::kFloat32) {
      float value;
      std::memcpy(&value, p, sizeof value);
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return type_ == Element::kBfloat16 ? from_bf16(bits) : from_fp16(bits);
  }

  void set(int64_t b, int64_t h, int64_t r, int d, double value) {
    uint8_t* p = bytes_.data() + at(b, h, r, d);
    if (type_ == Element::kFloat32) {
      const float single = static_cast<float>(value);
      std::memcpy(p, &single, sizeof single);
      return;
    }
    const uint16_t bits = type_ == Element::kBfloat16 ? to_bf16(value) : to_fp16(value);
    std::memcpy(p, &bits, sizeof bits);
  }

  void fill_normal(std::mt19937& random) {
    std::normal_distribution<double> normal;
    for_each([&](int64_t b, int64_t h, int64_t r, int d) {
      set(b, h, r, d, round_to(type_, normal(random)));
    });
  }

  template <typename Body>
  void for_each(const Body& body) const {
    for (int64_t b = 0; b < batches_; ++b)
      for (int64_t h = 0; h < heads_; ++h)
        for (int64_t r = 0; r < rows_; ++r)
          for (int d = 0; d < dim_; ++d) body(b, h, r, d);
  }

  // Whether the bytes outside of the elements are as they were.
  bool gaps_untouched() const {
    auto copy = bytes_;
    for_each([&](int64_t b, int64_t h, int64_t r, int d) {
      std::memset(copy.data() + at(b, h, r, d), 0xFF, static_cast<size_t>(size()));
    });
    return copy == std::vector<uint8_t>(copy.size(), 0xFF);
  }

 private:
  int64_t size() const { return type_ == Element::kFloat32 ? 4 : 2; }
  int64_t at(int64_t b, int64_t h, int64_t r, int d) const {
    return (offset_ + b * strides_.batch + h * strides_.head + r * strides_.row + d) * size();
  }
  static double from_bf16(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  static uint16_t to_bf16(double value) {
    const float single = static_cast<float>(round_to(Element::kBfloat16, value));
    uint32_t bits;
    std::memcpy(&bits, &single, sizeof bits);
    return static_cast<uint16_t>(bits >> 16);
  }
  static double from_fp16(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign *
           (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
  }
  static uint16_t to_fp16(double value) {
    if (std::isnan(value)) return 0x7E00;
    const double rounded = std::abs(round_to(Element::kFloat16, value));
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const int exponent = rounded == 0 ? -15 : std::max(std::ilogb(rounded), -15);
    if (exponent < -14)
      return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(rounded, 24)));
    const int fraction = static_cast<int>(std::ldexp(rounded, 10 - exponent)) - 1024;
    return static_cast<uint16_t>(sign | (exponent + 15) << 10 | fraction);
  }

  Element type_;
  int64_t batches_, heads_, rows_;
  int dim_;
  int64_t offset_ = 0;
  attention_kernel::Strides strides_{};
  std::vector<uint8_t> bytes_;
};

struct Case {
  int64_t n, m;
  int dim = 64;
  bool causal = false;
  int64_t diagonal = 0;
  int64_t window = attention_kernel::kNoWindow;
  int64_t batches = 1, heads = 1, kv_heads = 1;
  float scale = 0;  // 0: 1/sqrt(D)
  bool strided = false;
  bool grad_logsumexp = false;
};

inline std::string to_string(const Case& c) {
  return str("n ", c.n, " m ", c.m, " dim ", c.dim, c.causal ? " causal" : " full", " diagonal ",
             c.diagonal, " window ", c.window, " batches ", c.batches, " heads ", c.heads, "/",
             c.kv_heads, " scale ", c.scale, c.strided ? " strided" : "",
             c.grad_logsumexp ? " grad_logsumexp" : "");
}

inline Problem problem_of(const Case& c, Element type) {
  Problem problem{};
  problem.element = type;
  problem.batches = c.batches;
  problem.heads = c.heads;
  problem.kv_heads = c.kv_heads;
  problem.n = c.n;
  problem.m = c.m;
  problem.head_dim = c.dim;
  problem.scale = c.scale == 0 ? 1 / std::sqrt(static_cast<float>(c.dim)) : c.scale;
  problem.causal = c.causal;
  problem.diagonal = c.diagonal;
  problem.window = c.window;
  problem.deterministic = true;
  return problem;
}

struct Inputs {
  Inputs(const Case& c, Element type)
      : q(type, c.batches, c.heads, c.n, c.dim, c.strided),
        k(type, c.batches, c.kv_heads, c.m, c.dim, c.strided),
        v(k),
        grad_out(q),
        grad_logsumexp(static_cast<size_t>(c.batches * c.heads * c.n)) {
    std::mt19937 random(static_cast<unsigned>(c.n * 1000 + c.m));
    for (auto* x : {&q, &k, &v, &grad_out}) x->fill_normal(random);
    std::normal_distribution<float> normal;
    for (float& x : grad_logsumexp) x = normal(random);
  }
  Array q, k, v, grad_out;
  std::vector<float> grad_logsumexp;
};

struct Results {
  Results(const Case& c, Element type)
      : out(type, c.batches, c.heads, c.n, c.dim, c.strided),
        grad_q(out),
        grad_k(type, c.batches, c.kv_heads, c.m, c.dim, c.strided),
        grad_v(grad_k),
        logsumexp(static_cast<size_t>(c.batches * c.heads * c.n), NAN) {}
  Array out, grad_q, grad_k, grad_v;
  std::vector<float> logsumexp;
};

// The kernels' results.
inline Results run(const Case& c, Element type, const Inputs& in, const Parallel& parallel) {
  const Problem problem = problem_of(c, type);
  Results results(c, type);
  forward({problem, in.q.input(), in.k.input(), in.v.input(), results.out.output(),
           results.logsumexp.data()},
          parallel);
  backward(
      {problem, in.q.input(), in.k.input(), in.v.input(), results.out.input(), in.grad_out.input(),
       results.logsumexp.data(), c.grad_logsumexp ? in.grad_logsumexp.data() : nullptr,
       results.grad_q.output(), results.grad_k.output(), results.grad_v.output()},
      parallel);
  return results;
}

// out, grad_q, grad_k, grad_v and logsumexp by the formula, contiguous, every array that it makes
// rounded by `round`; sums are kept in Real.
template <typename Real, typename Round>
std::vector<std::vector<double>> formula(const Case& c, const Inputs& in, double scale,
                                         const Round& round) {
  const auto dim = static_cast<size_t>(c.dim), n = static_cast<size_t>(c.n),
             m = static_cast<size_t>(c.m);
  const auto heads = static_cast<size_t>(c.batches * c.heads);
  const auto kv_heads = static_cast<size_t>(c.batches * c.kv_heads);
  std::vector<double> out(heads * n * dim), grad_q(out), grad_k(kv_heads * m * dim), grad_v(grad_k);
  std::vector<double> logsumexp(heads * n);
  const auto rows_of = [&](const Array& x, int64_t b, int64_t h, size_t rows) {
    std::vector<Real> values(rows * dim);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] =
          static_cast<Real>(x.get(b, h, static_cast<int64_t>(i / dim), static_cast<int>(i % dim)));
    }
    return values;
  };
  const int64_t group = c.heads / c.kv_heads;
  for (size_t head = 0; head < heads; ++head) {
    const int64_t b = static_cast<int64_t>(head) / c.heads,
                  h = static_cast<int64_t>(head) % c.heads;
    const size_t kv_head = static_cast<size_t>(b * c.kv_heads + h / group);
    const auto q = rows_of(in.q, b, h, n), k = rows_of(in.k, b, h / group, m);
    const auto v = rows_of(in.v, b, h / group, m), g = rows_of(in.grad_out, b, h, n);
    std::vector<Real> dk(m * dim), dv(m * dim), p(m), dp(m);
    for (size_t i = 0; i < n; ++i) {
      size_t first = 0, seen = 0;  // keys first..seen - 1, counted one by one
      for (size_t j = 0; j < m; ++j) {
        const int64_t last = static_cast<int64_t>(i) + c.diagonal, key = static_cast<int64_t>(j);
        const bool sees = !c.causal || (key <= last && last - key < c.window);
        if (sees && seen == 0) first = j;
        if (sees) seen = j + 1;
      }
      Real top = -INFINITY, total = 0, delta = 0;
      for (size_t j = first; j < seen; ++j) {
        Real s = 0;
        for (size_t d = 0; d < dim; ++d) s += q[i * dim + d] * k[j * dim + d];
        p[j] = round(round(s) * static_cast<Real>(scale));
        top = std::max(top, p[j]);
      }
      for (size_t j = first; j < seen; ++j) total += std::exp(p[j] - top);
      logsumexp[head * n + i] = seen ? top + std::log(total) : -INFINITY;
      std::vector<Real> o(dim), dq(dim);
      for (size_t j = first; j < seen; ++j) {
        p[j] = round(std::exp(p[j] - top) / total);
        dp[j] = 0;
        for (size_t d = 0; d < dim; ++d) {
          o[d] += p[j] * v[j * dim + d];
          dp[j] += g[i * dim + d] * v[j * dim + d];
          dv[j * dim + d] += p[j] * g[i * dim + d];
        }
        dp[j] = round(dp[j]);
        delta += p[j] * dp[j];
      }
      if (c.grad_logsumexp) delta -= in.grad_logsumexp[head * n + i];
      for (size_t j = first; j < seen; ++j) {
        const Real ds = round(round(p[j] * (dp[j] - delta)) * static_cast<Real>(scale));
        for (size_t d = 0; d < dim; ++d) {
          dq[d] += ds * k[j * dim + d];
          dk[j * dim + d] += ds * q[i * dim + d];
        }
      }
      for (size_t d = 0; d < dim; ++d) {
        out[(head * n + i) * dim + d] = round(o[d]);
        grad_q[(head * n + i) * dim + d] = round(dq[d]);
      }
    }
    for (size_t i = 0; i < m * dim; ++i) {
      grad_k[kv_head * m * dim + i] =
          round(static_cast<Real>(grad_k[kv_head * m * dim + i]) + round(dk[i]));
      grad_v[kv_head * m * dim + i] =
          round(static_cast<Real>(grad_v[kv_head * m * dim + i]) + round(dv[i]));
    }
  }
  return {out, grad_q, grad_k, grad_v, logsumexp};
}

}  // namespace flashstep::attention_cpu::testing
