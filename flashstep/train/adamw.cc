#include "flashstep/ops/adamw.h"

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_set>

#include <ATen/ATen.h>
#include <torch/optim/serialize.h>

#include "flashstep/error.h"
#include "flashstep/ops/compute_copy.h"
#include "flashstep/ops/kinds.h"
#include "flashstep/ops/muon.h"
#include "flashstep/optim.h"
#include "flashstep/parallel/optimizer_state.h"
#include "flashstep/train/optimizer_options.h"

namespace flashstep {
namespace {

using torch::Tensor;
using torch::optim::AdamWOptions;

void check_options(const AdamWOptions& options) {
  const auto [beta1, beta2] = options.betas();
  require(options.lr() >= 0, "[AdamW] expected a learning rate of at least 0, got ", options.lr());
  require(options.eps() >= 0, "[AdamW] expected eps of at least 0, got ", options.eps());
  require(beta1 >= 0 && beta1 < 1, "[AdamW] expected beta1 in [0, 1), got ", beta1);
  require(beta2 >= 0 && beta2 < 1, "[AdamW] expected beta2 in [0, 1), got ", beta2);
  require(options.weight_decay() >= 0, "[AdamW] expected a weight decay of at least 0, got ",
          options.weight_decay());
}

void check_muon_options(const MuonOptions& options) {
  require(options.momentum() >= 0 && options.momentum() < 1,
          "[Muon] expected a momentum in [0, 1), got ", options.momentum());
  require(options.iterations() >= 1, "[Muon] expected at least 1 iteration, got ",
          options.iterations());
  require(!options.amsgrad(), "[Muon] expected no amsgrad, got it");
}

void check_matrices(const std::vector<Tensor>& parameters) {
  for (const Tensor& parameter : parameters) {
    require(parameter.dim() == 2,
            "[Muon] expected whole matrices, not pieces of them, got a parameter of shape ",
            parameter.sizes());
  }
}

void check_parameter(const Tensor& parameter) {
  require(parameter.defined() && at::isFloatingType(parameter.scalar_type()),
          "[AdamW] expected parameters of a floating-point type, got ",
          parameter.defined() ? c10::toString(parameter.scalar_type()) : "an undefined tensor");
  require(parameter.layout() == at::kStrided && parameter.is_non_overlapping_and_dense(),
          "[AdamW] expected parameters that are dense in memory, got strides ", parameter.strides(),
          " for shape ", parameter.sizes());
}

const Tensor& gradient_of(const Tensor& parameter) {
  const Tensor& gradient = parameter.grad();
  require(gradient.layout() == at::kStrided,
          "[AdamW] expected a dense gradient, got a sparse one for the parameter of shape ",
          parameter.sizes());
  return gradient;
}

// The lists of `batch` get one more parameter.
void add_to(AdamWTensors& batch, const Tensor& parameter, const AdamWState& state, bool amsgrad) {
  const Tensor& gradient = gradient_of(parameter);
  batch.parameters.push_back(parameter);
  batch.gradients.push_back(gradient);
  batch.exp_avgs.push_back(state.exp_avg);
  batch.exp_avg_sqs.push_back(state.exp_avg_sq);
  if (amsgrad) batch.max_exp_avg_sqs.push_back(state.max_exp_avg_sq);
  batch.steps.push_back(state.step);
  batch.copies.push_back(internal::copy_written_with(parameter));
}
void add_to(MuonTensors& batch, const Tensor& parameter, const AdamWState& state, bool) {
  const Tensor& gradient = gradient_of(parameter);
  batch.parameters.push_back(parameter);
  batch.gradients.push_back(gradient);
  batch.momenta.push_back(state.exp_avg);
  batch.steps.push_back(state.step);
  batch.copies.push_back(internal::copy_written_with(parameter));
}

void update_batch(const AdamWTensors& batch, const AdamWSettings& settings) {
  adamw(batch, settings);
}
void update_batch(const MuonTensors& batch, const MuonSettings& settings) { muon(batch, settings); }

AdamWSettings settings_of(const AdamWOptions& options) {
  AdamWSettings settings;
  std::tie(settings.beta1, settings.beta2) = options.betas();
  settings.weight_decay = options.weight_decay();
  settings.eps = options.eps();
  settings.amsgrad = options.amsgrad();
  return settings;
}
MuonSettings settings_of(const MuonOptions& options) {
  MuonSettings settings;
  settings.momentum = options.momentum();
  settings.weight_decay = options.weight_decay();
  settings.nesterov = options.nesterov();
  settings.iterations = options.iterations();
  return settings;
}

}  // namespace

void AdamWState::serialize(torch::serialize::OutputArchive& archive) const {
  archive.write("step", c10::IValue(step.item<int64_t>()));  // as torch's AdamW has it
  archive.write("exp_avg", exp_avg, /*is_buffer=*/true);
  if (exp_avg_sq.defined()) archive.write("exp_avg_sq", exp_avg_sq, /*is_buffer=*/true);
  if (max_exp_avg_sq.defined()) archive.write("max_exp_avg_sq", max_exp_avg_sq, /*is_buffer=*/true);
}

void AdamWState::serialize(torch::serialize::InputArchive& archive) {
  // Attributes or, in archives of earlier versions, buffers, with a tensor for a step.
  const auto read = [&archive](const char* key) {
    c10::IValue value;
    archive.read(key, value);
    return value;
  };
  exp_avg = read("exp_avg").toTensor();
  c10::IValue square, largest;
  if (archive.try_read("exp_avg_sq", square)) exp_avg_sq = square.toTensor();
  if (archive.try_read("max_exp_avg_sq", largest)) max_exp_avg_sq = largest.toTensor();
  const c10::IValue count = read("step");
  step = count.isTensor() ? count.toTensor()
                          : at::full({}, count.toInt(), exp_avg.options().dtype(at::kFloat));
}

AdamW::AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups, AdamWOptions defaults)
    : Optimizer(groups, std::make_unique<AdamWOptions>(defaults)) {
  check_options(defaults);
  check_parameters();
}

AdamW::AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
             const MuonOptions& defaults)
    : Optimizer(groups, std::make_unique<MuonOptions>(defaults)) {
  check_parameters();
}

AdamW::AdamW(std::vector<Tensor> parameters, const MuonOptions& defaults)
    : AdamW({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

void AdamW::check_parameters() const {
  check_groups();
  for (const auto& group : param_groups_) {
    for (const Tensor& parameter : group.params()) check_parameter(parameter);
    if (muon_options_of(group) != nullptr) check_matrices(group.params());
  }
}

AdamW::AdamW(std::vector<Tensor> parameters, AdamWOptions defaults)
    : AdamW({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

void AdamW::check_groups() const {
  for (const auto& group : param_groups_) {
    check_options(options_of(group));
    if (const auto* const muon = muon_options_of(group)) check_muon_options(*muon);
  }
}

AdamWState& AdamW::state_of(const Tensor& parameter, size_t group) {
  const bool amsgrad = options_of(param_groups_[group]).amsgrad();
  const bool is_muon = muon_options_of(param_groups_[group]) != nullptr;
  auto& slot = state_[parameter.unsafeGetTensorImpl()];
  if (!slot) {
    auto state = std::make_unique<AdamWState>();
    state->step = at::zeros({}, parameter.options().dtype(at::kFloat).requires_grad(false));
    const auto options = parameter.options().requires_grad(false).dtype(moment_dtype(parameter));
    state->exp_avg = at::zeros_like(parameter, options);
    if (!is_muon) state->exp_avg_sq = at::zeros_like(parameter, options);
    slot = std::move(state);
  }
  auto& state = static_cast<AdamWState&>(*slot);
  require(is_muon || state.exp_avg_sq.defined(),
          "[AdamW] expected exp_avg_sq in the state of the parameter of shape ", parameter.sizes(),
          ", got none: its group had MuonOptions before");
  if (amsgrad && !state.max_exp_avg_sq.defined()) state.max_exp_avg_sq = at::zeros_like(parameter);
  // What was loaded, or made before the parameter got another layout.
  for (Tensor* moment : {&state.exp_avg, &state.exp_avg_sq, &state.max_exp_avg_sq}) {
    if (moment->defined() && moment->strides() != parameter.strides() &&
        moment->sizes() == parameter.sizes())
      *moment = at::empty_like(parameter, moment->options()).copy_(*moment);
  }
  return state;
}

at::ScalarType AdamW::moment_dtype(const Tensor& parameter) const {
  return parameter.scalar_type() == at::kFloat ? moments_ : parameter.scalar_type();
}

void AdamW::keep_moments_in(at::ScalarType dtype) {
  require(dtype == at::kFloat || dtype == at::kBFloat16,
          "[AdamW] expected moments in float32 or bfloat16, got ", dtype);
  for (const auto& group : param_groups_) {
    require(dtype == at::kFloat || !options_of(group).amsgrad(),
            "[AdamW] expected float32 moments for amsgrad, got ", dtype);
  }
  moments_ = dtype;
  round_moments();
}

void AdamW::round_moments() {
  for (const auto& group : param_groups_) {
    for (const Tensor& parameter : group.params()) {
      const auto found = state_.find(parameter.unsafeGetTensorImpl());
      if (found == state_.end() || found->second == nullptr) continue;  // null: load_repeated's
      auto& state = static_cast<AdamWState&>(*found->second);
      state.exp_avg = state.exp_avg.to(moment_dtype(parameter));
      if (state.exp_avg_sq.defined())
        state.exp_avg_sq = state.exp_avg_sq.to(moment_dtype(parameter));
    }
  }
}

void AdamW::allocate_state() {
  torch::NoGradGuard no_grad;
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    for (const Tensor& parameter : param_groups_[group].params()) {
      if (parameter.requires_grad()) state_of(parameter, group);
    }
  }
}

torch::Tensor AdamW::learning_rate(size_t group, const Tensor& parameter) {
  const double value = param_groups_[group].options().get_lr();
  const auto options = at::TensorOptions(parameter.device()).dtype(rate_dtype(parameter));
  auto [slot, is_new] = learning_rates_.try_emplace({group, internal::kind_of(parameter)});
  LearningRate& rate = slot->second;
  if (is_new) {
    rate = {value, at::full({}, value, options)};
  } else if (rate.value != value) {
    rate.value = value;
    rate.tensor.fill_(value);
  }
  return rate.tensor;
}

void AdamW::refresh_learning_rates() {
  torch::NoGradGuard no_grad;
  check_groups();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    std::set<std::string> kinds;
    for (const Tensor& parameter : param_groups_[group].params()) {
      if (kinds.insert(internal::kind_of(parameter)).second) learning_rate(group, parameter);
    }
  }
}

template <typename Tensors, typename Options>
void AdamW::update_group(size_t index, const Options& options, const Tensor& found_inf,
                         const Clipping* clipping, std::unordered_set<void*>& seen) {
  std::map<std::string, Tensors> batches;  // by kind, which one call takes
  for (const Tensor& parameter : param_groups_[index].params()) {
    if (!parameter.grad().defined()) continue;
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    add_to(batches[internal::kind_of(parameter)], parameter, state_of(parameter, index),
           options.amsgrad());
  }
  auto settings = settings_of(options);
  settings.rounds_by_chance = moments_ == at::kBFloat16;
  for (const auto& [kind, batch] : batches) {
    const torch::Device device = batch.parameters.front().device();
    settings.learning_rate = learning_rate(index, batch.parameters.front());
    if (found_inf.defined()) settings.skip = found_inf.to(device);
    if (clipping != nullptr) {
      settings.norm = clipping->norm.to(device);
      settings.max_norm = clipping->max_norm;
    }
    update_batch(batch, settings);
    for (size_t i = 0; i < batch.parameters.size(); ++i)
      internal::copy_is_written(batch.parameters[i], batch.copies[i], copies_writer_);
  }
}

void AdamW::update(const Tensor& found_inf, const Clipping* clipping) {
  torch::NoGradGuard no_grad;
  check_groups();
  std::unordered_set<void*> seen;
  for (size_t index = 0; index < param_groups_.size(); ++index) {
    const auto& group = param_groups_[index];
    if (const MuonOptions* const options = muon_options_of(group)) {
      update_group<MuonTensors>(index, *options, found_inf, clipping, seen);
    } else {
      update_group<AdamWTensors>(index, options_of(group), found_inf, clipping, seen);
    }
  }
}

bool AdamW::clips_in_passing() const {
  return std::ranges::all_of(param_groups_, [this](const auto& group) {
    if (muon_options_of(group) != nullptr) return true;
    const bool amsgrad = options_of(group).amsgrad();
    return std::ranges::all_of(group.params(), [&](const Tensor& parameter) {
      return adamw_clips_in_passing(parameter, amsgrad, moments_ == at::kBFloat16);
    });
  });
}

torch::Tensor AdamW::step(LossClosure closure) {
  Tensor loss;
  if (closure) {
    torch::AutoGradMode with_grad(true);
    loss = closure();
  }
  update({}, nullptr);
  return loss;
}

void AdamW::step_unless(const Tensor& found_inf) { update(found_inf, nullptr); }

void AdamW::step_clipped_unless(const Tensor& found_inf, const Clipping& clipping,
                                const std::vector<Tensor>& gradients) {
  if (clips_in_passing()) {
    update(found_inf, &clipping);
  } else {
    SkippableOptimizer::step_clipped_unless(found_inf, clipping, gradients);
  }
}

void AdamW::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdamWState, AdamWOptions>(archive, *this);
}

void AdamW::load(torch::serialize::InputArchive& archive) {
  const bool has_muon = std::ranges::any_of(
      param_groups_, [](const auto& group) { return muon_options_of(group) != nullptr; });
  if (has_muon) {
    load_with_muon(archive);
  } else {
    load_repeated(*this,
                  [&] { torch::optim::serialize<AdamWState, AdamWOptions>(archive, *this); });
  }
  std::unordered_set<void*> seen;
  for (const auto& group : param_groups_) {
    const bool is_muon = muon_options_of(group) != nullptr;
    for (const Tensor& parameter : group.params()) {
      const auto found = state_.find(parameter.unsafeGetTensorImpl());
      const bool is_first = seen.insert(parameter.unsafeGetTensorImpl()).second;
      if (is_muon || !is_first || found == state_.end() || found->second == nullptr) continue;
      require(static_cast<const AdamWState&>(*found->second).exp_avg_sq.defined(),
              "[AdamW] expected an archive with exp_avg_sq of the parameter of shape ",
              parameter.sizes(), ", got one without");
    }
  }
  round_moments();
}

// LibTorch assigns options of one class to all groups, whatever they have: the larger ones
// meanwhile.
void AdamW::load_with_muon(torch::serialize::InputArchive& archive) {
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> before;
  for (auto& group : param_groups_) {
    before.push_back(std::as_const(group).options().clone());
    options_of(group);  // or an error, before anything is changed
  }
  for (auto& group : param_groups_)
    group.set_options(std::make_unique<MuonOptions>(options_of(group)));
  std::vector<MuonOptions> loaded;
  try {
    load_repeated(*this, [&] { torch::optim::serialize<AdamWState, MuonOptions>(archive, *this); });
    for (const auto& group : param_groups_) loaded.push_back(*muon_options_of(group));
  } catch (...) {
    for (size_t i = 0; i < before.size(); ++i) param_groups_[i].set_options(std::move(before[i]));
    throw;
  }
  for (size_t i = 0; i < before.size(); ++i) param_groups_[i].set_options(std::move(before[i]));
  for (size_t i = 0; i < loaded.size(); ++i) {
    const bool is_muon = muon_options_of(param_groups_[i]) != nullptr;
    const bool was_muon = loaded[i].iterations() > 0;  // 0: of an archive that says nothing of it
    require(is_muon == was_muon, "[AdamW] expected an archive with ",
            is_muon ? "MuonOptions" : "AdamWOptions", " in group ", i, ", got ",
            was_muon ? "MuonOptions" : "AdamWOptions");
    if (is_muon) {
      param_groups_[i].set_options(std::make_unique<MuonOptions>(loaded[i]));
    } else {
      param_groups_[i].set_options(std::make_unique<AdamWOptions>(loaded[i]));
    }
  }
}

}  // namespace flashstep
