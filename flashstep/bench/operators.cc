// What `bench ops` measures: each operator's inputs, ours, PyTorch's and the formula, and the work.
#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "flashstep/bench/ops.h"
#include "flashstep/ops.h"
#include "flashstep/ops/adamw.h"
#include "flashstep/ops/cost.h"
#include "flashstep/ops/muon.h"

namespace flashstep::tools {
namespace {

using at::Tensor;
using List = std::vector<Tensor>;

constexpr double kRotaryTheta = 10'000;
constexpr int64_t kOpHeadDim = 64, kOpPositions = 256;
constexpr int64_t kOpMatrices = 12;  // (C, C) each: the parameters of a block

OpInputs rows_of_width(const OpSize& s, std::vector<Tensor> tensors, int64_t width,
                       size_t row_tensors) {
  return {std::move(tensors), s.draw({s.rows, width}).detach(), row_tensors};
}

// The value's own gradient is 1.
OpInputs loss_of(const OpSize& s, std::vector<Tensor> tensors) {
  return {std::move(tensors), at::ones({}, at::TensorOptions(at::kFloat).device(s.device))};
}

Tensor rotate(const List& in, Tensor (*rotation)(const Tensor&, const RotaryTables&)) {
  static const RotaryTables tables = rotary_tables(kOpPositions, kOpHeadDim, kRotaryTheta);
  return rotation(in[0], tables.to(in[0].device()));
}

Tensor torch_cross_entropy(const Tensor& logits, const Tensor& targets) {
  return at::cross_entropy_loss(logits.to(at::promote_types(logits.scalar_type(), at::kFloat)),
                                targets);
}

// Lists of one length, one behind the other: parameters, gradients, both moments, numbers of
// updates.
AdamWTensors adamw_lists(const List& all) {
  const auto list = [&](int64_t i) {
    return List(all.begin() + i * kOpMatrices, all.begin() + (i + 1) * kOpMatrices);
  };
  return {.parameters = list(0),
          .gradients = list(1),
          .exp_avgs = list(2),
          .exp_avg_sqs = list(3),
          .max_exp_avg_sqs = {},
          .steps = list(4),
          .copies = {}};
}

using Update = void (*)(const AdamWTensors&, const AdamWSettings&);
template <Update kUpdate>
Tensor updated(const List& all) {
  AdamWSettings settings;
  settings.learning_rate = at::full({}, 1e-3, all.back().options().dtype(at::kFloat));
  kUpdate(adamw_lists(all), settings);
  return all.front();
}

void adamw_formula(const AdamWTensors& t, const AdamWSettings& s) {
  for (size_t i = 0; i < t.parameters.size(); ++i) {
    const Tensor g = t.gradients[i], m = t.exp_avgs[i], v = t.exp_avg_sqs[i], n = t.steps[i];
    n.add_(1);
    t.parameters[i].mul_(1 - s.learning_rate * s.weight_decay);
    m.mul_(s.beta1).add_(g * (1 - s.beta1));
    v.mul_(s.beta2).add_(g * g * (1 - s.beta2));
    const Tensor root = (v / (1 - at::pow(s.beta2, n))).sqrt();
    t.parameters[i].sub_(s.learning_rate / (1 - at::pow(s.beta1, n)) * m / (root + s.eps));
  }
}

// Parameters, gradients, momenta, numbers of updates.
MuonTensors muon_lists(const List& all) {
  const auto list = [&](int64_t i) {
    return List(all.begin() + i * kOpMatrices, all.begin() + (i + 1) * kOpMatrices);
  };
  return {.parameters = list(0),
          .gradients = list(1),
          .momenta = list(2),
          .steps = list(3),
          .copies = {}};
}

using MuonUpdate = void (*)(const MuonTensors&, const MuonSettings&);
template <MuonUpdate kUpdate>
Tensor updated_by_muon(const List& all) {
  MuonSettings settings;
  settings.learning_rate = at::full({}, 1e-3, all.back().options().dtype(at::kFloat));
  kUpdate(muon_lists(all), settings);
  return all.front();
}

// As torch.optim.Muon has it: a matrix at a time, orthogonalized in bfloat16; float64 as it is.
void muon_formula(const MuonTensors& t, const MuonSettings& s) {
  for (size_t i = 0; i < t.parameters.size(); ++i) {
    const Tensor m = t.momenta[i], g = t.gradients[i].to(m.scalar_type());
    t.steps[i].add_(1);
    m.mul_(s.momentum).add_(g * (1 - s.momentum));
    Tensor x = m * s.momentum + g * (1 - s.momentum);
    if (x.scalar_type() != at::kDouble) x = x.to(at::kBFloat16);
    x = x / x.norm();
    for (int64_t n = 0; n < s.iterations; ++n) {
      const Tensor square = at::mm(x, x.t());
      x = at::addmm(x, at::addmm(square, square, square, -4.7750, 2.0315), x, 3.4445);
    }
    const double size = 0.2 * std::sqrt(std::max(m.size(0), m.size(1)));
    t.parameters[i].mul_(1 - s.learning_rate * s.weight_decay);
    t.parameters[i].sub_(s.learning_rate * size * x.to(m.scalar_type()));
  }
}

Tensor grad_norm_formula(const List& gradients) {
  List squares;
  for (const Tensor& x : gradients) squares.push_back(x.square().sum());
  return at::stack(squares).sum().sqrt();
}

OpInputs update_inputs(const OpSize& s, const std::vector<std::string>& lists) {
  OpInputs in;
  in.in_place = true;
  const auto wide = at::TensorOptions(at::kFloat).device(s.device);
  for (const std::string& name : lists) {
    for (int64_t i = 0; i < kOpMatrices; ++i) {
      Tensor x = name == "steps" ? at::zeros({}, wide) : at::randn({s.width, s.width}, wide) * 0.1;
      if (name == "gradients") x = s.draw({s.width, s.width}).detach();
      in.tensors.push_back(name == "second" ? x.square() : x);
    }
  }
  return in;
}

}  // namespace

const std::vector<Operator>& operators() {
  static const std::vector<Operator> all = {
      {"rms_norm", kDifferentiable,
       [](const OpSize& s) {
         return rows_of_width(s, {s.draw({s.rows, s.width}), s.draw({s.width}, 0.1, 1)}, s.width,
                              1);
       },
       [](const List& in) { return rms_norm(in[0], in[1], kOpEpsilon); },
       [](const List& in) { return at::rms_norm(in[0], {in[0].size(-1)}, in[1], kOpEpsilon); },
       [](const List& in) { return rms_norm_reference(in[0], in[1], kOpEpsilon); },
       [](const OpSize& s, bool backward) {
         const int64_t e = element_bytes(s.dtype);
         return Work{norm_forward_bytes(s.rows, s.width, e) +
                     (backward ? norm_backward_bytes(s.rows, s.width, e) : 0)};
       }},
      {"rope", kDifferentiable,
       [](const OpSize& s) -> OpInputs {
         const int64_t shape[] = {s.rows / kOpPositions, s.width / kOpHeadDim, kOpPositions,
                                  kOpHeadDim};
         return {{s.draw(shape)}, s.draw(shape).detach(), /*row_tensors=*/1};
       },
       [](const List& in) { return rotate(in, rope); },
       [](const List& in) { return rotate(in, rope_reference); },
       [](const List& in) { return rotate(in, rope_reference); },
       [](const OpSize& s, bool backward) {
         return Work{rope_bytes(s.rows * s.width, element_bytes(s.dtype), backward)};
       }},
      {"swiglu", kDifferentiable,
       [](const OpSize& s) {
         return rows_of_width(s, {s.draw({s.rows, s.d_ff}), s.draw({s.rows, s.d_ff})}, s.d_ff, 2);
       },
       [](const List& in) { return swiglu(in[0], in[1]); },
       [](const List& in) { return at::silu(in[0]) * in[1]; },
       [](const List& in) { return swiglu_reference(in[0], in[1]); },
       [](const OpSize& s, bool backward) {
         return Work{swiglu_bytes(s.rows * s.d_ff, element_bytes(s.dtype), backward)};
       }},
      {"embedding", kDifferentiable,
       [](const OpSize& s) {
         return rows_of_width(s, {s.draw({s.vocab, s.width}), s.ids()}, s.width, 0);
       },
       [](const List& in) { return flashstep::embedding(in[0], in[1]); },
       [](const List& in) { return at::embedding(in[0], in[1]); },
       [](const List& in) { return at::embedding(in[0], in[1]); },
       [](const OpSize& s, bool backward) {
         return Work{embedding_bytes(s.rows, s.width, s.vocab, element_bytes(s.dtype), backward)};
       }},
      {"cross_entropy", kDifferentiable,
       [](const OpSize& s) {
         return loss_of(s, {s.draw({s.rows, s.vocab}), s.ids()});
       },
       [](const List& in) { return cross_entropy(in[0], in[1]); },
       [](const List& in) { return torch_cross_entropy(in[0], in[1]); },
       [](const List& in) { return cross_entropy_reference(in[0], in[1]); },
       [](const OpSize& s, bool backward) {
         return Work{cross_entropy_bytes(s.rows * s.vocab, element_bytes(s.dtype), backward)};
       }},
      {"linear_cross_entropy", kDifferentiable,
       [](const OpSize& s) {
         return loss_of(s, {s.draw({s.rows, s.width}), s.draw({s.vocab, s.width}, 0.02), s.ids()});
       },
       [](const List& in) { return linear_cross_entropy(in[0], in[1], in[2]); },
       [](const List& in) { return torch_cross_entropy(at::linear(in[0], in[1]), in[2]); },
       [](const List& in) { return cross_entropy_reference(at::linear(in[0], in[1]), in[2]); },
       [](const OpSize& s, bool backward) {
         return Work{
             linear_cross_entropy_bytes(s.rows, s.width, s.vocab, element_bytes(s.dtype), backward),
             linear_cross_entropy_flops(s.rows, s.width, s.vocab, backward)};
       }},
      {"grad_norm",
       {kForwardPass},
       [](const OpSize& s) {
         OpInputs in;
         for (int64_t i = 0; i < kOpMatrices; ++i)
           in.tensors.push_back(s.draw({s.width, s.width}).detach());
         return in;
       },
       grad_norm,
       grad_norm_reference,
       grad_norm_formula,
       [](const OpSize& s, bool) {
         return Work{grad_norm_bytes(kOpMatrices * s.width * s.width, element_bytes(s.dtype))};
       }},
      {"adamw",
       {kUpdatePass},
       [](const OpSize& s) {
         return update_inputs(s, {"parameters", "gradients", "first", "second", "steps"});
       },
       updated<adamw>,
       updated<adamw_reference>,
       updated<adamw_formula>,
       [](const OpSize& s, bool) {
         return Work{adamw_bytes(kOpMatrices * s.width * s.width, element_bytes(s.dtype), 0)};
       }},
      {"muon",
       {kUpdatePass},
       [](const OpSize& s) {
         return update_inputs(s, {"parameters", "gradients", "momenta", "steps"});
       },
       updated_by_muon<muon>,
       updated_by_muon<muon_formula>,
       updated_by_muon<muon_formula>,
       [](const OpSize& s, bool) {
         return Work{muon_bytes(kOpMatrices * s.width * s.width, element_bytes(s.dtype), 0),
                     kOpMatrices * muon_flops(s.width, s.width)};
       }},
  };
  return all;
}

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const Operator& op : operators()) names.push_back(op.name);
  return names;
}

}  // namespace flashstep::tools
