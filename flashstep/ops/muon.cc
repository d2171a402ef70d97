#include "flashstep/ops/muon.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/adamw.h"
#include "flashstep/ops/multi_tensor_kernels.h"
#include "flashstep/ops/update_checks.h"
#include "flashstep/products/product.h"

namespace flashstep {
namespace {

using at::Tensor;

// Of a quintic that lifts small singular values fast and keeps those near 1 between 0.7 and 1.2.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kLeastNorm = 1e-7;

void check(const MuonTensors& tensors, const MuonSettings& settings) {
  const size_t count = tensors.parameters.size();
  require(tensors.gradients.size() == count && tensors.momenta.size() == count &&
              tensors.steps.size() == count &&
              (tensors.copies.empty() || tensors.copies.size() == count),
          "[muon] expected lists of ", count, " tensors, one for each parameter, got ",
          tensors.gradients.size(), " gradients, ", tensors.momenta.size(), " momenta, ",
          tensors.steps.size(), " steps and ", tensors.copies.size(), " copies");
  const Tensor& first = tensors.parameters.front();
  for (size_t i = 0; i < count; ++i) {
    const Tensor &parameter = tensors.parameters[i], &gradient = tensors.gradients[i],
                 &momentum = tensors.momenta[i];
    require(parameter.dim() == 2 && parameter.is_floating_point() &&
                parameter.scalar_type() == first.scalar_type() &&
                parameter.device() == first.device() && parameter.is_non_overlapping_and_dense(),
            "[muon] expected floating-point matrices that are dense in memory, of one dtype and "
            "device, got ",
            parameter.scalar_type(), " of shape ", parameter.sizes(), " with strides ",
            parameter.strides(), " on ", parameter.device().str());
    require(gradient.sizes() == parameter.sizes() && gradient.device() == parameter.device() &&
                gradient.layout() == at::kStrided,
            "[muon] expected a dense gradient of shape ", parameter.sizes(), " on ",
            parameter.device().str(), ", got ", gradient.layout(), " of ", gradient.sizes(), " on ",
            gradient.device().str());
    const bool is_short =
        momentum.scalar_type() == at::kBFloat16 && parameter.scalar_type() == at::kFloat;
    require(momentum.sizes() == parameter.sizes() && momentum.strides() == parameter.strides() &&
                momentum.scalar_type() == tensors.momenta.front().scalar_type() &&
                (is_short || momentum.scalar_type() == parameter.scalar_type()),
            "[muon] expected momenta of shape ", parameter.sizes(),
            " and the parameter's strides, ", "all ", parameter.scalar_type(),
            " or, beside float32, all BFloat16, got ", momentum.sizes(), " of ",
            momentum.scalar_type(), " with strides ", momentum.strides());
    internal::check_number("[muon]", tensors.steps[i], "steps", parameter);
  }
  internal::check_copies("[muon]", tensors.copies, tensors.parameters);
  internal::check_settings("[muon]", settings, first, rate_dtype(first));
  require(settings.iterations >= 1, "[muon] expected at least 1 iteration, got ",
          settings.iterations);
}

// So much as an element of AdamW's updates, whose root mean square is about 0.2.
double size_of_update(const Tensor& parameter) {
  return 0.2 * std::sqrt(static_cast<double>(std::max(parameter.size(0), parameter.size(1))));
}

// Upper 16 bits of `wide`, float32, after noise was added to the lower ones: a hash of it, of
// `other`, float32, and of the number of updates.
Tensor rounded_by_chance(const Tensor& wide, const Tensor& other, const Tensor& step) {
  constexpr int64_t kBits = 0xffffffff;
  const auto bits_of = [](const Tensor& x) {
    return x.contiguous().view(at::kInt).to(at::kLong).bitwise_and(kBits);
  };
  const auto mixed = [](const Tensor& bits, int shift, int64_t factor) {
    return bits.bitwise_xor(bits.bitwise_right_shift(shift)).mul(factor).bitwise_and(kBits);
  };
  const Tensor own = bits_of(wide), others = bits_of(other);
  const Tensor turned =
      others.bitwise_left_shift(11).bitwise_or(others.bitwise_right_shift(21)).bitwise_and(kBits);
  Tensor bits = own.bitwise_xor(turned).add(step.to(at::kLong).mul(0x9e3779b9)).bitwise_and(kBits);
  bits = mixed(mixed(bits, 16, 0x85ebca6b), 13, 0xc2b2ae35);
  const Tensor noise = bits.bitwise_xor(bits.bitwise_right_shift(16)).bitwise_and(0xffff);
  const Tensor upper = own.add(noise).bitwise_and(0xffff0000).to(at::kInt).view(at::kFloat);
  return at::where(wide.isfinite(), upper, wide).to(at::kBFloat16);
}

// `wide` into `kept`, which may be narrower, unless `is_skipped`, () bool.
void keep(const Tensor& wide, const Tensor& other, const Tensor& step, bool by_chance,
          const Tensor& is_skipped, const Tensor& kept) {
  const bool is_chance = by_chance && kept.scalar_type() == at::kBFloat16;
  const Tensor value = is_chance ? rounded_by_chance(wide, other, step) : wide;
  kept.copy_(at::where(is_skipped, kept, value.to(kept.scalar_type())));
}

Tensor widened(const Tensor& x) { return x.to(at::promote_types(x.scalar_type(), at::kFloat)); }

// The part of the lists that `indices` name.
MuonTensors part_of(const MuonTensors& tensors, const std::vector<size_t>& indices) {
  MuonTensors part;
  for (const size_t i : indices) {
    part.parameters.push_back(tensors.parameters[i]);
    part.gradients.push_back(tensors.gradients[i]);
    part.momenta.push_back(tensors.momenta[i]);
    part.steps.push_back(tensors.steps[i]);
    if (!tensors.copies.empty()) part.copies.push_back(tensors.copies[i]);
  }
  return part;
}

// Matrices of one shape, as many as are orthogonalized at once.
std::vector<MuonTensors> batches_of(const MuonTensors& tensors) {
  std::map<std::pair<int64_t, int64_t>, std::vector<size_t>> by_shape;
  for (size_t i = 0; i < tensors.parameters.size(); ++i) {
    const Tensor& parameter = tensors.parameters[i];
    if (parameter.numel() > 0) by_shape[{parameter.size(0), parameter.size(1)}].push_back(i);
  }
  std::vector<MuonTensors> batches;
  for (const auto& [shape, indices] : by_shape) {
    const int64_t numel = shape.first * shape.second;
    const auto most = static_cast<size_t>(std::max<int64_t>(1, kMostMuonElements / numel));
    for (size_t begin = 0; begin < indices.size(); begin += most) {
      const size_t end = std::min(begin + most, indices.size());
      batches.push_back(part_of(tensors, {indices.begin() + static_cast<ptrdiff_t>(begin),
                                          indices.begin() + static_cast<ptrdiff_t>(end)}));
    }
  }
  return batches;
}

void reference_of_batch(const MuonTensors& batch, const MuonSettings& settings) {
  const Tensor& first = batch.parameters.front();
  const auto numbers = first.options().dtype(at::kFloat).requires_grad(false);
  const Tensor is_skipped = settings.skip.defined() ? settings.skip.reshape({}).eq(1)
                                                    : at::zeros({}, numbers.dtype(at::kBool));
  const Tensor factor = settings.norm.defined() ? clip_factor(settings.norm, settings.max_norm)
                                                : at::ones({}, numbers);
  std::vector<Tensor> directions;
  for (size_t i = 0; i < batch.parameters.size(); ++i) {
    batch.steps[i].add_(is_skipped.logical_not());
    const Tensor& momentum = batch.momenta[i];
    const Tensor g = batch.gradients[i].to(widened(first).scalar_type()) * factor;
    const double own = 1 - settings.momentum;
    const Tensor m = widened(momentum).mul(settings.momentum).add(g, own);
    directions.push_back(settings.nesterov ? m.mul(settings.momentum).add(g, own) : m);
    const bool by_chance = settings.rounds_by_chance || first.scalar_type() == at::kFloat;
    keep(m, g, batch.steps[i], by_chance, is_skipped, momentum);
  }
  const Tensor stacked = at::stack(directions);
  directions.clear();
  const Tensor o = orthogonalized(stacked, settings.iterations);
  for (size_t i = 0; i < batch.parameters.size(); ++i) {
    const Tensor &parameter = batch.parameters[i], own = o[static_cast<int64_t>(i)];
    Tensor p = widened(parameter);
    const Tensor rate = settings.learning_rate.reshape({}).to(p.scalar_type());
    p = p - rate * settings.weight_decay * p - rate * size_of_update(first) * own;
    keep(p, own, batch.steps[i], settings.rounds_by_chance, is_skipped, parameter);
    if (!batch.copies.empty() && batch.copies[i].defined()) batch.copies[i].copy_(parameter);
  }
}

// A matrix that lies by columns is, transposed, one that lies by rows, and so is its update.
MuonTensors laid_by_rows(MuonTensors tensors) {
  for (size_t i = 0; i < tensors.parameters.size(); ++i) {
    const Tensor& parameter = tensors.parameters[i];
    if (parameter.is_contiguous() || !parameter.t().is_contiguous()) continue;
    for (auto* list :
         {&tensors.parameters, &tensors.gradients, &tensors.momenta, &tensors.copies}) {
      if (i < list->size() && (*list)[i].defined()) (*list)[i] = (*list)[i].t();
    }
  }
  return tensors;
}

bool kernels_take(const MuonTensors& tensors) {
  const auto dtype = tensors.parameters.front().scalar_type();
  const auto& kernels = internal::kCudaMultiTensor;
  return (dtype == at::kFloat || dtype == at::kBFloat16) &&
         std::ranges::all_of(tensors.momenta, [&](const Tensor& momentum) {
           return momentum.is_contiguous() &&
                  kernels.takes(momentum.device(), momentum.scalar_type());
         });
}

void update_by_kernels(MuonTensors batch, const MuonSettings& settings) {
  const auto& kernels = internal::kCudaMultiTensor;
  const Tensor& first = batch.parameters.front();
  std::vector<size_t> copied_after;  // whose copies lie in another order
  for (size_t i = 0; i < batch.parameters.size(); ++i) {
    Tensor& gradient = batch.gradients[i];
    if (!kernels.takes(gradient.device(), gradient.scalar_type()))
      gradient = gradient.to(at::kFloat);
    gradient = gradient.contiguous();
    if (batch.copies.empty() || !batch.copies[i].defined() || batch.copies[i].is_contiguous())
      continue;
    copied_after.push_back(i);
  }
  MuonTensors written = batch;
  for (const size_t i : copied_after) written.copies[i] = Tensor();
  const Tensor directions =
      at::empty({static_cast<int64_t>(batch.parameters.size()), first.size(0), first.size(1)},
                first.options().dtype(at::kBFloat16).requires_grad(false));
  kernels.muon_directions(written, settings, directions);
  const Tensor o = orthogonalized(directions, settings.iterations);
  kernels.muon_update(written, settings, o, size_of_update(first));
  for (const size_t i : copied_after) batch.copies[i].copy_(batch.parameters[i]);
}

// What is above the diagonals of matrices (B, N, N) becomes what is below them.
void mirror(const Tensor& matrices) {
  const bool is_kernels = matrices.scalar_type() == at::kBFloat16 &&
                          internal::kCudaMultiTensor.takes(matrices.device(), at::kBFloat16);
  if (is_kernels) return internal::kCudaMultiTensor.mirror(matrices);
  matrices.copy_(matrices.tril() + matrices.tril(-1).transpose(1, 2));
}

// d (B, N, N) = alpha a b + beta c, where the product a b and c are symmetric.
void symmetric_product(const Tensor& a, const Tensor& b, const Tensor& d, double alpha = 1,
                       const Tensor& c = {}, double beta = 0) {
  const int64_t n = d.size(1), block = muon_block_rows(n);
  if (block == n) return batched_product(a, b, d, alpha, c, beta);
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t rows = std::min(block, n - begin), end = begin + rows;
    const auto part = [&](const Tensor& x) { return x.narrow(1, begin, rows).narrow(2, 0, end); };
    batched_product(a.narrow(1, begin, rows), b.narrow(2, 0, end), part(d), alpha,
                    c.defined() ? part(c) : c, beta);
  }
  mirror(d);
}

}  // namespace

Tensor orthogonalized(const Tensor& matrices, int64_t iterations) {
  const auto dtype = matrices.scalar_type();
  require(matrices.dim() == 3 &&
              (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16),
          "[muon] expected matrices (B, M, N) of float32, float64 or bfloat16, got ",
          matrices.sizes(), " of ", dtype);
  const at::NoGradGuard no_grad;
  if (matrices.numel() == 0) return matrices.clone();
  const auto sums = at::promote_types(dtype, at::kFloat);
  const Tensor norms =
      at::linalg_vector_norm(matrices, 2, at::IntArrayRef{1, 2}, /*keepdim=*/true, sums);
  Tensor x = matrices.contiguous().div(norms.clamp_min(kLeastNorm).to(dtype));
  Tensor next = at::empty_like(x);
  // Of a tall matrix x^T x is the smaller one, and the polynomial stands on the right.
  const bool is_tall = x.size(1) > x.size(2);
  const int64_t least = std::min(x.size(1), x.size(2));
  const Tensor square = at::empty({x.size(0), least, least}, x.options()),
               polynomial = at::empty_like(square);
  for (int64_t i = 0; i < iterations; ++i) {
    const Tensor turned = x.transpose(1, 2);
    symmetric_product(is_tall ? turned : x, is_tall ? x : turned, square);
    symmetric_product(square, square, polynomial, kC, square, kB);
    batched_product(is_tall ? x : polynomial, is_tall ? polynomial : x, next, 1, x, kA);
    std::swap(x, next);
  }
  return x;
}

void muon_reference(const MuonTensors& tensors, const MuonSettings& settings) {
  const at::NoGradGuard no_grad;
  if (tensors.parameters.empty()) return;
  check(tensors, settings);
  for (const MuonTensors& batch : batches_of(tensors)) reference_of_batch(batch, settings);
}

void muon(const MuonTensors& tensors, const MuonSettings& settings) {
  if (tensors.parameters.empty()) return;
  check(tensors, settings);
  const at::NoGradGuard no_grad;
  const MuonTensors laid = laid_by_rows(tensors);
  if (!kernels_take(laid)) return muon_reference(tensors, settings);
  for (const MuonTensors& batch : batches_of(laid)) update_by_kernels(batch, settings);
}

}  // namespace flashstep
