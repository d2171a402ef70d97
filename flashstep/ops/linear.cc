#include <algorithm>
#include <cctype>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/differentiable_once.h"
#include "flashstep/ops/internal.h"
#include "flashstep/products/cpu_product.h"
#include "flashstep/products/product.h"

namespace flashstep {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows that are widened together: few enough for the cache, and enough for the product's own
// blocks.
int64_t rows_at_a_time(int64_t rows, int64_t width) {
  constexpr int64_t kElements = 1 << 20, kLeast = 512;
  return std::min(rows, std::max(kLeast, kElements / std::max<int64_t>(width, 1)));
}

// d = a b, computed in the first rows of `wide`, of float32 as a and b.
void rounded_product(const Tensor& a, const Tensor& b, const Tensor& wide, const Tensor& d) {
  const Tensor product = wide.narrow(0, 0, d.size(0));
  internal::cpu_product(a, b, product);
  d.copy_(product);
}

class WidenedLinear : public torch::autograd::Function<WidenedLinear> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x_any, const Tensor& weight,
                        at::ScalarType dtype) {
    const int64_t width = weight.size(1), out = weight.size(0);
    const auto x = x_any.to(dtype).reshape({-1, width});
    const int64_t rows = x.size(0), chunk = rows_at_a_time(rows, std::max(width, out));
    const auto transposed = weight.to(at::kFloat).t();
    auto shape = x_any.sizes().vec();
    shape.back() = out;
    const auto y = at::empty(shape, x.options());
    const auto y_rows = y.view({rows, out});
    const auto wide_y = at::empty({chunk, out}, transposed.options());
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const int64_t count = std::min(chunk, rows - begin);
      const auto part = x.narrow(0, begin, count).to(at::kFloat);
      rounded_product(part, transposed, wide_y, y_rows.narrow(0, begin, count));
    }
    context->save_for_backward({x, weight});
    context->saved_data["shape"] = x_any.sizes().vec();
    context->saved_data["x_dtype"] = static_cast<int64_t>(x_any.scalar_type());
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    internal::refuse_create_graph("linear");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const bool wants_x = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);
    const int64_t rows = x.size(0), width = x.size(1), out = weight.size(0);
    const auto dy = gradients[0].reshape({rows, out});
    const int64_t chunk = rows_at_a_time(rows, std::max(width, out));
    const auto wide_weight = weight.to(at::kFloat);
    const Tensor dx = wants_x ? at::empty_like(x) : Tensor();
    const Tensor wide_dx = wants_x ? at::empty({chunk, width}, wide_weight.options()) : Tensor();
    Tensor dweight = wants_weight ? at::zeros({out, width}, wide_weight.options()) : Tensor();
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const int64_t count = std::min(chunk, rows - begin);
      const auto part = dy.narrow(0, begin, count).to(at::kFloat);
      if (wants_x) rounded_product(part, wide_weight, wide_dx, dx.narrow(0, begin, count));
      if (wants_weight) {
        const auto x_part = x.narrow(0, begin, count).to(at::kFloat);
        internal::cpu_product(part.t(), x_part, dweight, /*adds=*/true);
      }
    }
    const auto x_dtype = static_cast<at::ScalarType>(context->saved_data["x_dtype"].toInt());
    return {wants_x ? dx.to(x_dtype).view(context->saved_data["shape"].toIntVector()) : Tensor(),
            wants_weight ? dweight.to(weight.scalar_type()) : Tensor(), Tensor()};
  }
};

// By product(), of float32: split, as set_float32_products() says, or on a CPU by who is faster
// than MKL.
class ProductLinear : public torch::autograd::Function<ProductLinear> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
    auto shape = x.sizes().vec();
    shape.back() = weight.size(0);
    const Tensor y = at::empty(shape, x.options());
    const Tensor rows = x.reshape({-1, x.size(-1)});
    product(rows, weight.t(), y.view({rows.size(0), weight.size(0)}));
    context->save_for_backward({x, weight});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const Tensor rows = x.reshape({-1, x.size(-1)});
    const Tensor dy = gradients[0].reshape({rows.size(0), weight.size(0)});
    const bool wants_x = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);
    if (x.is_cpu() && at::GradMode::is_enabled()) {  // create_graph: what can be differentiated
      return {wants_x ? at::mm(dy, weight).view(x.sizes()) : Tensor(),
              wants_weight ? at::mm(dy.t(), rows) : Tensor()};
    }
    internal::refuse_create_graph(
        "linear", "split products have no second derivatives (set_float32_products)");
    Tensor dx, dweight;
    if (wants_x) {
      dx = at::empty(rows.sizes(), x.options());
      product(dy, weight, dx);
      dx = dx.view(x.sizes());
    }
    if (wants_weight) {
      dweight = at::empty(weight.sizes(), weight.options());
      product(dy.t(), rows, dweight);
    }
    return {dx, dweight};
  }
};

// Whether at::linear() would compute it by the slower library.
bool by_cpu_product(const Tensor& x, const Tensor& weight) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  return x.is_cpu() &&
         internal::cpu_multiplier(rows, width, weight.size(0)) != internal::CpuMultiplier::kMkl;
}

bool has_instructions(at::ScalarType dtype) {
#if defined(__x86_64__)
  // The compiler's run-time library says so only where the system saves the registers, too.
  if (dtype == at::kBFloat16) {
    return __builtin_cpu_supports("avx512bf16") || __builtin_cpu_supports("amx-bf16");
  }
  return __builtin_cpu_supports("avx512fp16");
#else
  return true;  // LibTorch's choice on other processors
#endif
}

}  // namespace

namespace internal {

Tensor widened_linear(const Tensor& x, const Tensor& weight, at::ScalarType dtype) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return WidenedLinear::apply(x, weight, dtype);
}

bool isa_multiplies(const std::string& isa, at::ScalarType dtype) {
  std::string name = isa;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const auto is_one_of = [&](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const bool is_before_bf16 = is_one_of(
      {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"});
  const bool is_before_fp16 = is_before_bf16 || name == "AVX512_CORE_BF16";
  return dtype == at::kBFloat16 ? !is_before_bf16 : !is_before_fp16;
}

}  // namespace internal

bool cpu_multiplies(at::ScalarType dtype) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return true;
  const auto look = [](at::ScalarType type) {
    return has_instructions(type) && internal::isa_multiplies(internal::onednn_isa(), type);
  };
  static const bool has_bf16 = look(at::kBFloat16), has_fp16 = look(at::kHalf);
  return dtype == at::kBFloat16 ? has_bf16 : has_fp16;
}

std::string products_note(at::ScalarType dtype) {
  if (cpu_multiplies(dtype)) return "";
  const bool is_bf16 = dtype == at::kBFloat16;
  return str("this CPU has no products of ", is_bf16 ? "bf16" : "fp16", " (",
             is_bf16 ? "avx512_bf16, amx_bf16" : "avx512_fp16",
             "): flashstep's layers keep values in it and multiply in fp32; LibTorch's own layers "
             "can take 100 times fp32's time");
}

Tensor linear(const Tensor& x, const Tensor& weight) {
  require(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1),
          "[linear] expected x (..., C) and weight (R, C), got ", x.sizes(), " and ",
          weight.sizes());
  const bool is_float32 = x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat &&
                          weight.device() == x.device() && x.numel() > 0 && weight.numel() > 0;
  if (is_float32 && (internal::splits_products(x) || by_cpu_product(x, weight)) &&
      !at::autocast::is_autocast_enabled(x.device().type()))
    return ProductLinear::apply(x, weight);
  if (x.is_cuda() || !weight.is_cpu() || !x.is_cpu()) return at::linear(x, weight);
  const bool lowered =
      at::autocast::is_autocast_enabled(at::kCPU) && x.scalar_type() != at::kDouble;
  const auto dtype = lowered ? at::autocast::get_autocast_dtype(at::kCPU) : x.scalar_type();
  const bool fits =
      (weight.scalar_type() == dtype || (lowered && weight.scalar_type() == at::kFloat)) &&
      x.is_floating_point();
  if (cpu_multiplies(dtype) || !fits || x.numel() == 0) return at::linear(x, weight);
  return internal::widened_linear(x, weight, dtype);
}

}  // namespace flashstep
