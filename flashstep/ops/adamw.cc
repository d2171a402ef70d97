#include "flashstep/ops/adamw.h"

#include <bit>
#include <cmath>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "flashstep/error.h"
#include "flashstep/ops.h"
#include "flashstep/ops/multi_tensor_kernels.h"
#include "flashstep/ops/update_checks.h"

namespace flashstep {
namespace {

using at::Tensor;

// The kernels walk over both by the same index.
void check_strides(const Tensor& moment, const Tensor& parameter) {
  require(moment.strides() == parameter.strides(), "[adamw] expected moments with strides ",
          parameter.strides(), ", those of the parameter of shape ", parameter.sizes(), ", got ",
          moment.strides());
}

void check_tensors(const AdamWTensors& tensors, const AdamWSettings& settings) {
  const size_t count = tensors.parameters.size();
  const auto fits = [&](const std::vector<Tensor>& list) { return list.size() == count; };
  require(fits(tensors.gradients) && fits(tensors.exp_avgs) && fits(tensors.exp_avg_sqs) &&
              fits(tensors.steps) && (tensors.copies.empty() || fits(tensors.copies)) &&
              tensors.max_exp_avg_sqs.size() == (settings.amsgrad ? count : 0),
          "[adamw] expected lists of ", count, " tensors, one for each parameter, got ",
          tensors.gradients.size(), " gradients, ", tensors.exp_avgs.size(), " and ",
          tensors.exp_avg_sqs.size(), " moments, ", tensors.max_exp_avg_sqs.size(),
          " largest moments, ", tensors.steps.size(), " steps and ", tensors.copies.size(),
          " copies");
  for (size_t i = 0; i < count; ++i) {
    const Tensor &parameter = tensors.parameters[i], &gradient = tensors.gradients[i];
    require(gradient.sizes() == parameter.sizes() && gradient.device() == parameter.device(),
            "[adamw] expected a gradient of shape ", parameter.sizes(), " on ",
            parameter.device().str(), ", got ", gradient.sizes(), " on ", gradient.device().str());
    require(parameter.is_floating_point() && parameter.is_non_overlapping_and_dense(),
            "[adamw] expected floating-point parameters that are dense in memory, got ",
            parameter.scalar_type(), " of shape ", parameter.sizes(), " with strides ",
            parameter.strides());
    require(gradient.layout() == at::kStrided, "[adamw] expected dense gradients, got ",
            gradient.layout(), " for the parameter of shape ", parameter.sizes());
    internal::check_number("[adamw]", tensors.steps[i], "steps", parameter);
    const auto kept = tensors.exp_avgs.front().scalar_type();
    for (const Tensor& moment : {tensors.exp_avgs[i], tensors.exp_avg_sqs[i]}) {
      const bool is_short = kept == at::kBFloat16 && parameter.scalar_type() == at::kFloat;
      require(moment.sizes() == parameter.sizes() && moment.scalar_type() == kept &&
                  (kept == parameter.scalar_type() || (is_short && !settings.amsgrad)),
              "[adamw] expected moments of shape ", parameter.sizes(), ", all ",
              parameter.scalar_type(),
              " or, beside float32 and without amsgrad, all BFloat16, got ", moment.sizes(), " of ",
              moment.scalar_type());
      check_strides(moment, parameter);
    }
    if (settings.amsgrad) check_strides(tensors.max_exp_avg_sqs[i], parameter);
  }
  internal::check_copies("[adamw]", tensors.copies, tensors.parameters);
  const Tensor& first = tensors.parameters.front();
  internal::check_settings("[adamw]", settings, first, rate_dtype(first));
}

Tensor in_layout_of(const Tensor& parameter, const Tensor& gradient, at::ScalarType dtype) {
  if (gradient.strides() == parameter.strides() && gradient.scalar_type() == dtype) return gradient;
  return at::empty_like(parameter, parameter.options().dtype(dtype).requires_grad(false))
      .copy_(gradient);
}

bool is_rounded_by_chance(const AdamWTensors& tensors, const AdamWSettings& settings) {
  return !tensors.exp_avgs.empty() && tensors.exp_avgs.front().scalar_type() == at::kBFloat16 &&
         (settings.rounds_by_chance || tensors.parameters.front().scalar_type() == at::kFloat);
}

// ---- Stochastic rounding, as ops/cuda/adamw.cu has it

uint32_t noise_of(float parameter, float exp_avg, float exp_avg_sq, uint32_t step) {
  const auto rotated = [](float x, int bits) {
    return std::rotl(std::bit_cast<uint32_t>(x), bits);
  };
  uint32_t bits = rotated(parameter, 0) ^ rotated(exp_avg, 11) ^ rotated(exp_avg_sq, 22);
  bits += step * 0x9e3779b9U;
  bits = (bits ^ (bits >> 16)) * 0x85ebca6bU;  // MurmurHash3's finalizer
  bits = (bits ^ (bits >> 13)) * 0xc2b2ae35U;
  return bits ^ (bits >> 16);
}

at::BFloat16 rounded_by_chance(float x, uint32_t noise) {
  if (!std::isfinite(x)) return x;
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + noise) >> 16),
          at::BFloat16::from_bits()};
}

// Wide moments after an update into those that it began with, and a wide parameter into `p`, if
// that is defined; all on the CPU.
void round_by_chance(const Tensor& parameter, const Tensor& step, const Tensor& exp_avg,
                     const Tensor& exp_avg_sq, const Tensor& p, const Tensor& m, const Tensor& v) {
  const auto count = static_cast<uint32_t>(step.item<float>());
  const float *wide_p = parameter.const_data_ptr<float>(),
              *wide_m = exp_avg.const_data_ptr<float>(),
              *wide_v = exp_avg_sq.const_data_ptr<float>();
  auto* const short_p = p.defined() ? p.mutable_data_ptr<at::BFloat16>() : nullptr;
  auto *short_m = m.mutable_data_ptr<at::BFloat16>(), *short_v = v.mutable_data_ptr<at::BFloat16>();
  constexpr int64_t kGrain = 1 << 14;
  at::parallel_for(0, parameter.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t noise = noise_of(wide_p[i], wide_m[i], wide_v[i], count);
      short_m[i] = rounded_by_chance(wide_m[i], noise & 0xffffU);
      short_v[i] = rounded_by_chance(wide_v[i], noise >> 16);
      if (short_p != nullptr)
        short_p[i] = rounded_by_chance(wide_p[i], (noise * 0x9e3779b1U) >> 16);
    }
  });
}

void round_by_chance_anywhere(const Tensor& parameter, const Tensor& step, const Tensor& exp_avg,
                              const Tensor& exp_avg_sq, const Tensor& p, const Tensor& m,
                              const Tensor& v) {
  if (parameter.is_cpu()) return round_by_chance(parameter, step, exp_avg, exp_avg_sq, p, m, v);
  const Tensor host_p = p.defined() ? p.cpu() : p, host_m = m.cpu(), host_v = v.cpu();
  round_by_chance(parameter.cpu(), step, exp_avg.cpu(), exp_avg_sq.cpu(), host_p, host_m, host_v);
  if (p.defined()) p.copy_(host_p);
  m.copy_(host_m);
  v.copy_(host_v);
}

void write_copies(const AdamWTensors& tensors) {
  for (size_t i = 0; i < tensors.copies.size(); ++i) {
    if (tensors.copies[i].defined()) tensors.copies[i].copy_(tensors.parameters[i]);
  }
}

bool kernel_takes(const AdamWTensors& tensors, const AdamWSettings& settings) {
  for (size_t i = 0; i < tensors.parameters.size(); ++i) {
    const Tensor& parameter = tensors.parameters[i];
    if (!adamw_clips_in_passing(parameter, settings.amsgrad, settings.rounds_by_chance))
      return false;
    for (const Tensor& moment : {tensors.exp_avgs[i], tensors.exp_avg_sqs[i]}) {
      if (moment.device() != parameter.device()) return false;
    }
  }
  return true;
}

}  // namespace

at::ScalarType rate_dtype(const Tensor& parameter) {
  return parameter.is_cpu() && parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

bool adamw_clips_in_passing(const Tensor& parameter, bool amsgrad, bool rounds_by_chance) {
  const bool is_short = rounds_by_chance && parameter.scalar_type() == at::kBFloat16;
  return !amsgrad && (is_short || parameter.scalar_type() == at::kFloat) &&
         parameter.is_non_overlapping_and_dense() &&
         internal::kCudaMultiTensor.takes(parameter.device(), at::kFloat);
}

void adamw_reference(const AdamWTensors& tensors, const AdamWSettings& settings) {
  const at::NoGradGuard no_grad;
  if (is_rounded_by_chance(tensors, settings)) {
    AdamWTensors wide = tensors;
    for (Tensor& p : wide.parameters) p = p.to(at::kFloat);
    for (Tensor& m : wide.exp_avgs) m = m.to(at::kFloat);
    for (Tensor& v : wide.exp_avg_sqs) v = v.to(at::kFloat);
    wide.copies.clear();
    adamw_reference(wide, settings);
    // Of a skipped update, values that bfloat16 holds: noise of 16 bits leaves them.
    for (size_t i = 0; i < wide.parameters.size(); ++i) {
      const bool is_same = wide.parameters[i].is_same(tensors.parameters[i]);
      round_by_chance_anywhere(wide.parameters[i], wide.steps[i], wide.exp_avgs[i],
                               wide.exp_avg_sqs[i], is_same ? Tensor() : tensors.parameters[i],
                               tensors.exp_avgs[i], tensors.exp_avg_sqs[i]);
    }
    return write_copies(tensors);
  }
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < tensors.parameters.size(); ++i) {
    const Tensor& parameter = tensors.parameters[i];
    gradients.push_back(in_layout_of(parameter, tensors.gradients[i], parameter.scalar_type()));
  }
  if (settings.norm.defined())
    gradients = at::_foreach_mul(gradients, clip_factor(settings.norm, settings.max_norm));
  const auto skip = settings.skip.defined() ? std::make_optional(settings.skip) : std::nullopt;
  // PyTorch's kernel takes the step counts as they are after this update; a skipped one is taken
  // back.
  at::_foreach_add_(tensors.steps, 1);
  at::_fused_adamw_(tensors.parameters, gradients, tensors.exp_avgs, tensors.exp_avg_sqs,
                    tensors.max_exp_avg_sqs, tensors.steps, settings.learning_rate, settings.beta1,
                    settings.beta2, settings.weight_decay, settings.eps, settings.amsgrad,
                    /*maximize=*/false, /*grad_scale=*/std::nullopt, skip);
  if (skip) at::_foreach_sub_(tensors.steps, std::vector<Tensor>(tensors.steps.size(), *skip));
  write_copies(tensors);
}

void adamw(const AdamWTensors& tensors, const AdamWSettings& settings) {
  if (tensors.parameters.empty()) return;
  check_tensors(tensors, settings);
  if (!kernel_takes(tensors, settings)) return adamw_reference(tensors, settings);
  const at::NoGradGuard no_grad;
  const auto& kernels = internal::kCudaMultiTensor;
  AdamWTensors laid = tensors;
  std::vector<size_t> copied_after;  // whose copies lie in another order
  for (size_t i = 0; i < laid.parameters.size(); ++i) {
    const Tensor& gradient = laid.gradients[i];
    const bool is_kernels = kernels.takes(gradient.device(), gradient.scalar_type());
    laid.gradients[i] = in_layout_of(laid.parameters[i], gradient,
                                     is_kernels ? gradient.scalar_type() : at::kFloat);
    if (laid.copies.empty() || !laid.copies[i].defined()) continue;
    if (laid.copies[i].strides() == laid.parameters[i].strides()) continue;
    copied_after.push_back(i);
    laid.copies[i] = Tensor();
  }
  kernels.adamw(laid, settings);
  for (const size_t i : copied_after) tensors.copies[i].copy_(tensors.parameters[i]);
}

}  // namespace flashstep
