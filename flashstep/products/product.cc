#include "flashstep/products/product.h"

#include <algorithm>
#include <atomic>

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "flashstep/error.h"
#include "flashstep/products/cpu_product.h"
#include "flashstep/products/lt.h"

namespace flashstep {
namespace {

using at::Tensor;

// As it lies, where rows or columns are dense and do not overlap; else a copy.
Tensor dense(const Tensor& x) {
  const auto are_dense = [&](int64_t along, int64_t across) {
    return x.stride(along) == 1 && (x.size(across) <= 1 || x.stride(across) >= x.size(along));
  };
  return are_dense(1, 0) || are_dense(0, 1) ? x : x.contiguous();
}

// In a message, which is all that it is made for.
struct Described {
  const Tensor& x;
  friend std::ostream& operator<<(std::ostream& out, const Described& described) {
    const Tensor& x = described.x;
    return out << x.sizes() << " of " << x.scalar_type() << " with strides " << x.strides()
               << " on " << x.device();
  }
};

// Of product() and scaled_product(), (M, N) = shape.
void check_result(at::IntArrayRef shape, const Tensor& a, at::ScalarType type, const char* name,
                  const Tensor& d, const Tensor& c) {
  require(d.sizes() == shape && (d.scalar_type() == type || d.scalar_type() == at::kFloat) &&
              d.device() == a.device() && (d.stride(1) == 1 || d.size(1) == 1),
          "[product] expected d of shape ", shape, " of ", name, " or float32 on ", a.device(),
          " with dense rows, got ", Described{d});
  require(!c.defined() || (c.sizes() == d.sizes() && c.strides() == d.strides() &&
                           c.scalar_type() == d.scalar_type() && c.device() == d.device()),
          "[product] expected c like d, ", Described{d}, ", got ", Described{c});
}

void check(const Tensor& a, const Tensor& b, const Tensor& d, const Tensor& c) {
  const auto dtype = a.scalar_type();
  require(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
          "[product] expected a and b of float32, bfloat16 or float16, got ", dtype);
  require(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) &&
              a.scalar_type() == b.scalar_type() && a.device() == b.device(),
          "[product] expected a (M, K) and b (K, N) of one dtype and device, got ", Described{a},
          " and ", Described{b});
  check_result({a.size(0), b.size(1)}, a, dtype, "a's dtype", d, c);
}

std::atomic<Float32Products> float32_way = Float32Products::kExact;

// Where splitting the operands costs less than it saves.
constexpr int64_t kLeastSplit = 64;

bool is_split(const Tensor& a, const Tensor& b) {
  return std::min({a.size(0), a.size(1), b.size(1)}) >= kLeastSplit && internal::splits_products(a);
}

// What cuBLASLt takes as it lies.
bool are_strided_matrices(const Tensor& x, bool by_rows) {
  const auto are_dense = [&](int64_t along, int64_t across) {
    return x.stride(along) == 1 && x.stride(across) >= x.size(along);
  };
  return are_dense(2, 1) || (!by_rows && are_dense(1, 2));
}

}  // namespace

void set_float32_products(Float32Products how) { float32_way = how; }
Float32Products float32_products() { return float32_way; }

bool internal::splits_products(const Tensor& a) {
  return a.scalar_type() == at::kFloat && float32_products() == Float32Products::kSplit &&
         lt_takes(a);
}

bool internal::rounds_to_tf32() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

void product(const Tensor& a, const Tensor& b, const Tensor& d, const Tensor& c) {
  check(a, b, d, c);
  if (d.numel() == 0) return;
  if (a.is_cpu() && d.scalar_type() == a.scalar_type() && a.scalar_type() == at::kFloat) {
    if (c.defined() && !c.is_same(d)) d.copy_(c);
    return internal::cpu_product(a, b, d, /*adds=*/c.defined());
  }
  RECORD_FUNCTION("flashstep::mm", std::vector<c10::IValue>({a, b}));  // a name that profilers know
  if (is_split(a, b)) return internal::split_product(dense(a), dense(b), d, c);
  if (a.size(1) > 0 && internal::lt_takes(a)) return internal::lt_product(dense(a), dense(b), d, c);
  const auto wide = at::mm(a.to(at::kFloat), b.to(at::kFloat));
  d.copy_(c.defined() ? wide + c : wide);
}

bool has_scaled_products(const at::Device& device) {
  return device.is_cuda() && internal::lt_takes_float8(device.index());
}

bool takes_scaled_product(const Tensor& d) {
  return reinterpret_cast<uintptr_t>(d.const_data_ptr()) % 16 == 0 &&
         d.stride(0) * d.element_size() % 16 == 0;
}

void scaled_product(const ScaledMatrix& a, const ScaledMatrix& b, const Tensor& d,
                    const Tensor& c) {
  const auto is_float8 = [](const Tensor& x) {
    return x.scalar_type() == at::kFloat8_e4m3fn || x.scalar_type() == at::kFloat8_e5m2;
  };
  const auto fits = [&](const ScaledMatrix& x) {
    return x.values.dim() == 2 && is_float8(x.values) && x.values.is_contiguous() &&
           x.values.size(1) % 16 == 0 && x.scale.numel() == 1 &&
           x.scale.scalar_type() == at::kFloat && x.scale.device() == x.values.device() &&
           x.values.device() == a.values.device();
  };
  require(fits(a) && fits(b) && a.values.size(1) == b.values.size(1) && b.values.size(0) % 16 == 0,
          "[product] expected dense a (M, K) and b (N, K) of float8, N and K multiples of 16, with "
          "scales on one device, got ",
          Described{a.values}, " and ", Described{b.values});
  require(
      a.values.scalar_type() == at::kFloat8_e4m3fn || b.values.scalar_type() == at::kFloat8_e4m3fn,
      "[product] expected float8_e4m3fn in a or in b, got float8_e5m2 in both");
  require(has_scaled_products(a.values.device()),
          "[product] expected a GPU of compute capability 8.9 or higher for float8, got ",
          a.values.device());
  check_result({a.values.size(0), b.values.size(0)}, a.values, at::kBFloat16, "bfloat16", d, c);
  if (d.numel() == 0) return;
  require(a.values.size(1) > 0, "[product] expected K of 16 or more, got 0");
  for (const Tensor& x : {a.values, b.values, d, c.defined() ? c : d}) {
    require(takes_scaled_product(x), "[product] expected rows at multiples of 16 bytes, got ",
            Described{x});
  }
  RECORD_FUNCTION("flashstep::mm", std::vector<c10::IValue>({a.values, b.values.t()}));
  internal::lt_scaled_product(a, b, d, c);
}

void batched_product(const Tensor& a, const Tensor& b, const Tensor& d, double alpha,
                     const Tensor& c, double beta) {
  require(a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.size(2) == b.size(1) &&
              a.scalar_type() == b.scalar_type() && a.device() == b.device(),
          "[product] expected a (B, M, K) and b (B, K, N) of one dtype and device, got ",
          Described{a}, " and ", Described{b});
  const std::vector<int64_t> shape = {a.size(0), a.size(1), b.size(2)};
  require(d.sizes() == shape && d.scalar_type() == a.scalar_type() && d.device() == a.device(),
          "[product] expected d of shape ", at::IntArrayRef(shape), " like a, got ", Described{d});
  require(!c.defined() || (c.sizes() == d.sizes() && c.strides() == d.strides() &&
                           c.scalar_type() == d.scalar_type() && c.device() == d.device()),
          "[product] expected c like d, ", Described{d}, ", got ", Described{c});
  if (d.numel() == 0) return;
  const bool is_short = a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf;
  if (is_short && a.size(2) > 0 && internal::lt_takes(a) && are_strided_matrices(a, false) &&
      are_strided_matrices(b, false) && are_strided_matrices(d, /*by_rows=*/true)) {
    RECORD_FUNCTION("flashstep::bmm", std::vector<c10::IValue>({a, b}));
    return internal::lt_product(a, b, d, c, alpha, beta);
  }
  const at::NoGradGuard no_grad;
  Tensor result = d;
  at::baddbmm_out(result, c.defined() ? c : d, a, b, c.defined() ? beta : 0, alpha);
}

}  // namespace flashstep
