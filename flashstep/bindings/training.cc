// Norms of gradients, updates of AdamW and Muon, learning rates and first values of parameters for
// Python.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "flashstep/base/called_back.h"
#include "flashstep/bindings/definitions.h"
#include "flashstep/bindings/interrupt.h"
#include "flashstep/bindings/registrations.h"
#include "flashstep/error.h"
#include "flashstep/model/init.h"
#include "flashstep/ops.h"
#include "flashstep/ops/adamw.h"
#include "flashstep/ops/kinds.h"
#include "flashstep/ops/muon.h"
#include "flashstep/optim.h"
#include "flashstep/version.h"

namespace flashstep::bindings {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor gradient_norm(Tensors gradients) { return grad_norm(gradients); }

void clip(Tensors gradients, const Tensor& norm, double max_norm) {
  clip_to_norm(gradients, norm, max_norm);
}

// A rate of the CPU is filled in as a number; one of a GPU is read there when the update runs, so
// that replays of a graph follow it.
Tensor rate_beside(const Tensor& parameter, const Tensor& rate) {
  const auto options = at::TensorOptions(parameter.device()).dtype(rate_dtype(parameter));
  if (rate.is_cpu()) return at::full({}, rate.item<double>(), options);
  return rate.detach().to(options).reshape(at::IntArrayRef());
}

// One update of parameters of any devices and dtypes; steps (), float32, on their devices.
void adamw_update(Tensors parameters, Tensors gradients, Tensors exp_avgs, Tensors exp_avg_sqs,
                  Tensors max_exp_avg_sqs, Tensors steps, const Tensor& learning_rate, double beta1,
                  double beta2, double eps, double weight_decay) {
  const at::NoGradGuard no_grad;
  require(learning_rate.numel() == 1,
          "[AdamW] expected an lr of one number, got a tensor of shape ", learning_rate.sizes());
  const bool amsgrad = !max_exp_avg_sqs.empty();
  std::map<std::string, AdamWTensors> batches;  // by kind, which one call takes
  for (size_t i = 0; i < parameters.size(); ++i) {
    AdamWTensors& batch = batches[internal::kind_of(parameters[i])];
    batch.parameters.push_back(parameters[i]);
    batch.gradients.push_back(gradients.at(i));
    batch.exp_avgs.push_back(exp_avgs.at(i));
    batch.exp_avg_sqs.push_back(exp_avg_sqs.at(i));
    if (amsgrad) batch.max_exp_avg_sqs.push_back(max_exp_avg_sqs.at(i));
    batch.steps.push_back(steps.at(i));
  }
  for (const auto& [kind, batch] : batches) {
    AdamWSettings settings;
    settings.learning_rate = rate_beside(batch.parameters[0], learning_rate);
    settings.beta1 = beta1;
    settings.beta2 = beta2;
    settings.eps = eps;
    settings.weight_decay = weight_decay;
    settings.amsgrad = amsgrad;
    adamw(batch, settings);
  }
}

// The same by Muon, of matrices.
void muon_update(Tensors parameters, Tensors gradients, Tensors momenta, Tensors steps,
                 const Tensor& learning_rate, double momentum, double weight_decay, bool nesterov,
                 int64_t iterations) {
  const at::NoGradGuard no_grad;
  require(learning_rate.numel() == 1, "[Muon] expected an lr of one number, got a tensor of shape ",
          learning_rate.sizes());
  std::map<std::string, MuonTensors> batches;
  for (size_t i = 0; i < parameters.size(); ++i) {
    MuonTensors& batch = batches[internal::kind_of(parameters[i])];
    batch.parameters.push_back(parameters[i]);
    batch.gradients.push_back(gradients.at(i));
    batch.momenta.push_back(momenta.at(i));
    batch.steps.push_back(steps.at(i));
  }
  for (const auto& [kind, batch] : batches) {
    MuonSettings settings;
    settings.learning_rate = rate_beside(batch.parameters[0], learning_rate);
    settings.momentum = momentum;
    settings.weight_decay = weight_decay;
    settings.nesterov = nesterov;
    settings.iterations = iterations;
    muon(batch, settings);
  }
}

double cosine_learning_rate(int64_t step, double learning_rate, double min_learning_rate,
                            int64_t warmup_steps, int64_t cosine_steps) {
  return learning_rate_at({learning_rate, min_learning_rate, warmup_steps, cosine_steps}, step);
}

void initialize(const Tensor& parameter, double standard_deviation, double bound, int64_t seed,
                std::string_view name) {
  fill_truncated_normal(parameter, standard_deviation, bound, static_cast<uint64_t>(seed),
                        std::string(name));
}

// From now on what autograd calls of ours ends in a backward() of Python's.
// And what waits lets Python's handlers of signals run.
void called_by_python() {
  set_rethrow(rethrow_for_ranks);
  set_wants_to_stop(python_wants_to_stop);
}

std::string version() {
  return str(FLASHSTEP_VERSION_MAJOR, ".", FLASHSTEP_VERSION_MINOR, ".", FLASHSTEP_VERSION_PATCH);
}

}  // namespace

void register_training(torch::Library& library) {
  Definitions definitions(library);
  definitions.plain("called_by_python() -> ()", &called_by_python);
  definitions.plain("version() -> str", &version);
  // Python's: calls the update that it keeps under a number (fully_sharded.cc).
  library.def("call_update(int number) -> ()");
  // Python's: its handlers of signals, those that are due (interrupt.cc).
  library.def("run_handlers() -> ()");
  definitions.plain("grad_norm(Tensor[] gradients) -> Tensor", &gradient_norm);
  definitions.plain("clip_to_norm_(Tensor(a!)[] gradients, Tensor norm, float max_norm) -> ()",
                    &clip);
  definitions.plain(
      "adamw_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] exp_avgs, "
      "Tensor(c!)[] exp_avg_sqs, Tensor(d!)[] max_exp_avg_sqs, Tensor(e!)[] steps, *, "
      "Tensor learning_rate, float beta1, float beta2, float eps, float weight_decay) -> ()",
      &adamw_update);
  definitions.plain(
      "muon_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] momenta, "
      "Tensor(c!)[] steps, *, Tensor learning_rate, float momentum, float weight_decay, "
      "bool nesterov, int iterations) -> ()",
      &muon_update);
  definitions.plain(
      "cosine_learning_rate(int step, *, float learning_rate, float min_learning_rate, "
      "int warmup_steps, int cosine_steps) -> float",
      &cosine_learning_rate);
  definitions.plain(
      "initialize_(Tensor(a!) parameter, float standard_deviation, float bound, int seed, "
      "str name) -> ()",
      &initialize);
}

}  // namespace flashstep::bindings
