#include "flashstep/bench/model_run.h"

#include <optional>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include "flashstep/amp.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/memory.h"
#include "flashstep/profiling.h"

namespace flashstep::tools {
namespace {

using at::Tensor;

// LibTorch's own generator is left alone.
ParameterFill drawn_on(at::Device device, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return [generator](const Tensor& parameter, double standard_deviation, double bound,
                     const std::string&) {
    const double most = bound * standard_deviation;
    parameter.detach().normal_(0, standard_deviation, generator).clamp_(-most, most);
  };
}

void set_determinism(bool algorithms, bool warn_only, bool cudnn) {
  at::globalContext().setDeterministicAlgorithms(algorithms, warn_only);
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // as flashstep train
  at::globalContext().setDeterministicCuDNN(cudnn);
}

}  // namespace

TokenRows random_rows(const ModelConfig& model, int64_t batch_size, uint64_t seed,
                      at::Device device) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto tokens = [&] {
    return at::randint(model.vocab_size, {batch_size, model.context_length}, generator, at::kLong)
        .to(device);
  };
  Tensor inputs = tokens();
  return {std::move(inputs), tokens()};
}

Tensor loss_of(TransformerImpl& model, const TokenRows& rows, const std::string& precision) {
  std::optional<AutocastGuard> autocast;
  if (is_in_bf16(precision)) autocast.emplace(rows.inputs.device().type(), at::kBFloat16);
  return model.loss(rows.inputs, rows.targets);
}

at::Device current_device(const std::string& type) {
  const at::Device device(type);
  return device.is_cpu() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

Transformer make_model(const ModelConfig& config, uint64_t seed, at::Device device) {
  const torch::TensorOptions options(device);
  if (!device.is_cuda()) return Transformer(config, seed, options);
  Transformer model(config, std::nullopt, options);
  model->initialize(drawn_on(device, seed));
  return model;
}

Determinism::Determinism(bool wanted, bool warn_only)
    : was_(at::globalContext().deterministicAlgorithms()),
      cudnn_was_(at::globalContext().deterministicCuDNN()) {
  set_determinism(wanted, warn_only, wanted);
}
Determinism::~Determinism() { set_determinism(was_, /*warn_only=*/false, cudnn_was_); }

ModelRun::ModelRun(const Workload& workload)
    : workload_(resolved_workload(workload)),
      device_(current_device(workload_.device)),
      products_(workload_.precision),
      model_(make_model(workload_.model, static_cast<uint64_t>(workload_.seed), device_)),
      rows_(random_rows(workload_.model, workload_.batch_size,
                        static_cast<uint64_t>(workload_.seed), device_)),
      optimizer_(model_->parameters(), torch::optim::AdamWOptions(kLearningRate)),
      step_(
          model_->parameters(), optimizer_,
          [this](int64_t, int64_t) {
            const Tensor loss = this->loss();
            if (after_) after_(Part::kForward);
            return loss;
          },
          {.accumulation_steps = 1,
           .max_norm = workload_.max_norm,
           .precision = Precision::kFloat32},
          {}, [](int64_t, int64_t) {}) {  // the rows stay where they are
  // As flashstep train has it.
  if (workload_.moments == "bf16") optimizer_.keep_moments_in(at::kBFloat16);
  model_->set_short_stream(workload_.stream == "bf16");
  model_->set_float8_products(workload_.precision == "bf16-fp8");
  model_->set_recompute(recompute_by_name(workload_.recompute), workload_.recompute_group,
                        workload_.recompute_blocks);
  if (device_.is_cuda() && is_in_bf16(workload_.precision))
    keep_gradients_in(at::kBFloat16, model_->parameters());
}

Tensor ModelRun::forward() {
  const ScopedRange range("forward");
  return loss();
}

Tensor ModelRun::loss() {
  const at::AutoGradMode graph(has_backward(workload_));
  return loss_of(*model_, rows_, workload_.precision);
}

void ModelRun::pass(const std::function<void(Part)>& after) {
  const auto end = [&](Part part) {
    if (after) after(part);
  };
  if (!has_backward(workload_)) {
    forward();
    return end(Part::kForward);
  }
  {
    after_ = after;
    const auto forget = c10::make_scope_exit([this] { after_ = {}; });
    step_.add_micro_batch(0, 0);
  }
  end(Part::kBackward);
  if (!has_update(workload_)) return;
  step_.finish();
  end(Part::kUpdate);
}

void ModelRun::start_replaying() {
  recorded_ = std::make_unique<RecordedStep>(step_, GraphMode::kOn);
  while (!recorded_->is_recorded()) recorded_->run(0);
}

StepTimes ModelRun::timed_replay() {
  synchronize(device_);
  const double begin = measure::steady_seconds();
  recorded_->run(0);
  synchronize(device_);
  return {.total = measure::steady_seconds() - begin};
}

StepTimes ModelRun::timed_pass() {
  Marks marks(device_);
  synchronize(device_);
  const double begin = measure::steady_seconds();
  marks.set();
  pass([&](Part) { marks.set(); });
  synchronize(device_);
  StepTimes times;
  times.total = measure::steady_seconds() - begin;
  const std::vector<double> seconds = marks.seconds();
  double* const parts[] = {&times.forward, &times.backward, &times.optimizer};
  for (size_t i = 0; i < seconds.size(); ++i) *parts[i] = seconds[i];
  return times;
}

double memory_bytes(c10::Device device) {
  return static_cast<double>(device.is_cuda() ? measure::gpu_allocated_bytes(device.index())
                                              : measure::resident_bytes());
}

double peak_memory_bytes(c10::Device device) {
  return static_cast<double>(device.is_cuda() ? measure::gpu_peak_allocated_bytes(device.index())
                                              : measure::peak_resident_bytes());
}

void reset_peak_memory(c10::Device device) {
  if (device.is_cuda()) {
    measure::reset_gpu_peak_allocated(device.index());
  } else {
    measure::reset_peak_resident();
  }
}

}  // namespace flashstep::tools
