#include "flashstep/products/product.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "flashstep/base/error.h"
#include "flashstep/products/lt.h"

namespace flashstep {
namespace {

using at::Tensor;

bool rows_or_columns_are_dense(const Tensor& x) { return x.stride(0) == 1 || x.stride(1) == 1; }

void check(const Tensor& a, const Tensor& b, const Tensor& d, const Tensor& c) {
  require(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) &&
              a.scalar_type() == b.scalar_type() && a.device() == b.device(),
          "[product] expected a (M, K) and b (K, N) of one dtype and device, got ", a.sizes(),
          " of ", a.scalar_type(), " and ", b.sizes(), " of ", b.scalar_type());
  require(rows_or_columns_are_dense(a) && rows_or_columns_are_dense(b),
          "[product] expected dense rows or columns, got strides ", a.strides(), " and ",
          b.strides());
  const std::vector<int64_t> shape = {a.size(0), b.size(1)};
  require(d.sizes() == shape &&
              (d.scalar_type() == a.scalar_type() || d.scalar_type() == at::kFloat) &&
              d.device() == a.device() && (d.stride(1) == 1 || d.size(1) == 1),
          "[product] expected d of shape ", at::IntArrayRef(shape), " with dense rows, got ",
          d.sizes(), " of ", d.scalar_type());
  require(!c.defined() || (c.sizes() == d.sizes() && c.strides() == d.strides() &&
                           c.scalar_type() == d.scalar_type() && c.device() == d.device()),
          "[product] expected c like d");
}

}  // namespace

void product(const Tensor& a, const Tensor& b, const Tensor& d, const Tensor& c) {
  check(a, b, d, c);
  if (d.numel() == 0) return;
  RECORD_FUNCTION("flashstep::mm", std::vector<c10::IValue>({a, b}));  // a name that profilers know
  if (a.size(1) > 0 && internal::lt_takes(a)) return internal::lt_product(a, b, d, c);
  const auto wide = at::mm(a.to(at::kFloat), b.to(at::kFloat));
  d.copy_(c.defined() ? wide + c : wide);
}

}  // namespace flashstep
