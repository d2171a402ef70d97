#include "flashstep/report/workload.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "flashstep/attention/attention.h"
#include "flashstep/base/error.h"
#include "flashstep/base/text.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/ranges.h"
#include "flashstep/ops/cross_entropy.h"
#include "flashstep/train/precision.h"

namespace flashstep::report {
namespace {

using at::Tensor;

constexpr int64_t kMost = int64_t{1} << 31;
constexpr int64_t kHandoutVocabulary = 10'000, kHandoutBatch = 4;
constexpr double kLearningRate = 1e-4;  // of AdamW: its value costs nothing

// What two cores train in a second or two.
struct SmallSize {
  const char* name;
  int64_t d_model, d_ff, num_layers, num_heads, context_length, batch_size;
};
constexpr int64_t kSmallVocabulary = 4096;
constexpr SmallSize kSmallSizes[] = {{"tiny", 128, 384, 4, 4, 128, 32},
                                     {"mini", 256, 704, 4, 8, 256, 16},
                                     {"base", 512, 1376, 6, 8, 256, 8}};

bool is_one_of(const std::string& word, const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

ModelConfig model_by_numbers(const std::string& text) {
  ModelConfig model;
  model.vocab_size = kHandoutVocabulary;
  std::istringstream in(text);
  int64_t* const fields[] = {&model.d_model, &model.d_ff, &model.num_layers, &model.num_heads};
  bool good = true;
  for (int64_t* field : fields) {
    if (field != fields[0]) good = good && in.get() == '/';
    good = good && in >> *field && *field > 0;
  }
  require(good && in.peek() == std::istringstream::traits_type::eof(),
          "[workload] expected a size of ", join(workload_size_names()),
          " or d_model/d_ff/layers/heads, such as 1600/6400/48/25, got \"", text, "\"");
  return model;
}

bool same_sizes(const ModelConfig& a, const ModelConfig& b) {
  return a.d_model == b.d_model && a.d_ff == b.d_ff && a.num_layers == b.num_layers &&
         a.num_heads == b.num_heads;
}

const SmallSize* small_size(const std::string& name) {
  for (const SmallSize& size : kSmallSizes) {
    if (name == size.name) return &size;
  }
  return nullptr;
}

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

void override_with(const ModelConfig& given, ModelConfig& model) {
  for (int64_t ModelConfig::*field :
       {&ModelConfig::vocab_size, &ModelConfig::context_length, &ModelConfig::d_model,
        &ModelConfig::d_ff, &ModelConfig::num_layers, &ModelConfig::num_heads}) {
    if (given.*field != 0) model.*field = given.*field;
  }
  model.rope_theta = given.rope_theta;
  model.norm_epsilon = given.norm_epsilon;
}

}  // namespace

void Workload::visit(FieldVisitor& v) {
  v.section("model", model, "the Transformer");
  v.field("batch_size", batch_size, {0, kMost}, "rows; 0: the size's");
  v.field("mode", mode, workload_modes(), "how much of a step");
  v.field("precision", precision, workload_precisions(), "bf16: autocast");
  v.field("device", device, {"cpu", "cuda"}, "where it computes");
  v.field("max_norm", max_norm, {0, 1e30}, "gradients are clipped to it; 0: only measured");
  v.field("seed", seed, {0, kMost}, "of weights and tokens");
}

std::vector<std::string> workload_modes() { return {"forward", "forward-backward", "step"}; }

std::vector<std::string> workload_precisions() { return {"fp32", "tf32", "bf16"}; }

bool has_backward(const Workload& workload) { return workload.mode != "forward"; }

bool has_update(const Workload& workload) { return workload.mode == "step"; }

std::vector<std::string> handout_sizes(const std::string& year) {
  if (year == "2026") return {"small", "medium", "large", "xl26", "10B"};
  require(year == "2024" || year == "2025",
          "[workload] expected a handout of 2024, 2025 or 2026, got \"", year, "\"");
  return {"small", "medium", "large", "xl", "2.7B"};
}

std::vector<std::string> workload_size_names() {
  std::vector<std::string> names;
  for (const SmallSize& size : kSmallSizes) names.emplace_back(size.name);
  for (std::string& name : model_size_names()) names.push_back(std::move(name));
  return names;
}

ModelConfig model_by_name(const std::string& name) {
  ModelConfig model;
  if (is_one_of(name, model_size_names())) {
    model.size = name;
    return model;
  }
  const SmallSize* small = small_size(name);
  if (small == nullptr) return model_by_numbers(name);
  model.vocab_size = kSmallVocabulary;
  model.d_model = small->d_model;
  model.d_ff = small->d_ff;
  model.num_layers = small->num_layers;
  model.num_heads = small->num_heads;
  return model;
}

std::string model_name(const ModelConfig& model) {
  // The size that was named comes first: two handouts have the same one under different names.
  if (!model.size.empty() && same_sizes(resolved({.size = model.size}), resolved(model)))
    return model.size;
  for (const SmallSize& size : kSmallSizes) {
    if (same_sizes(model_by_name(size.name), model)) return size.name;
  }
  return str(model.d_model, '/', model.d_ff, '/', model.num_layers, '/', model.num_heads);
}

ModelConfig resolved_model(const ModelConfig& given) {
  ModelConfig model = given;
  const SmallSize* small = small_size(model_name(given));
  if (small != nullptr && model.context_length == 0) model.context_length = small->context_length;
  return resolved(model);
}

Workload resolved_workload(const Workload& given) {
  Workload workload = given;
  workload.model = resolved_model(given.model);
  if (workload.batch_size == 0) {
    const SmallSize* small = small_size(model_name(workload.model));
    workload.batch_size = small != nullptr ? small->batch_size : kHandoutBatch;
  }
  const auto known = [](const char* what, const std::string& word,
                        const std::vector<std::string>& words) {
    require(is_one_of(word, words), "[workload] expected ", what, " ", join(words), ", got \"",
            word, "\"");
  };
  known("mode", workload.mode, workload_modes());
  known("precision", workload.precision, workload_precisions());
  known("attention", workload.model.attention, attention_implementations());
  known("device", workload.device, {"cpu", "cuda"});
  require(workload.precision != "tf32" || workload.device == "cuda",
          "[workload] expected precision fp32 or bf16 on a CPU, got tf32");
  require(workload.device == "cpu" || !measure::list_gpus().empty(),
          "[workload] expected a GPU for device cuda, got none");
  return workload;
}

std::string describe(const Workload& w) {
  return str(model_name(w.model), ", batch ", w.batch_size, ", context ", w.model.context_length,
             ", ", w.precision, ", ", w.mode);
}

PassShape pass_shape(const Workload& w) {
  PassShape shape;
  shape.batch_size = w.batch_size;
  shape.seq_len = w.model.context_length;
  shape.bf16 = w.precision == "bf16";
  shape.naive_attention = w.model.attention == "naive";
  shape.fused_ops = w.device == "cpu";
  return shape;
}

double pass_flops(const Workload& w) {
  if (has_backward(w)) return step_flops(w.model, w.batch_size, w.model.context_length);
  return static_cast<double>(w.batch_size) * forward_flops(w.model, w.model.context_length).total();
}

std::vector<Workload> workloads_of(const WorkloadAxes& axes) {
  std::vector<Workload> workloads;
  for (const std::string& size : axes.sizes) {
    for (const int64_t context : axes.contexts) {
      for (const std::string& precision : axes.precisions) {
        for (const std::string& attention : axes.attentions) {
          for (const std::string& mode : axes.modes) {
            Workload workload = axes.common;
            workload.model = model_by_name(size);
            workload.model.context_length = context;
            override_with(axes.common.model, workload.model);
            workload.model.attention = attention;
            workload.precision = precision;
            workload.mode = mode;
            workloads.push_back(resolved_workload(workload));
          }
        }
      }
    }
  }
  require(!workloads.empty(),
          "[workload] expected sizes, contexts, precisions, attentions and modes, got none of one");
  return workloads;
}

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
  std::optional<train::AutocastGuard> autocast;
  if (precision == "bf16") autocast.emplace(rows.inputs.device().type(), at::kBFloat16);
  return cross_entropy(model.forward(rows.inputs), rows.targets);
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

ModelRun::ModelRun(const Workload& workload)
    : workload_(resolved_workload(workload)),
      device_(current_device(workload_.device)),
      tf32_(workload_.precision == "tf32"),
      model_(make_model(workload_.model, static_cast<uint64_t>(workload_.seed), device_)),
      rows_(random_rows(workload_.model, workload_.batch_size,
                        static_cast<uint64_t>(workload_.seed), device_)),
      optimizer_(model_->parameters(), torch::optim::AdamWOptions(kLearningRate)),
      step_(model_->parameters(), optimizer_, [this](int64_t, int64_t) { return forward(); },
            {.accumulation_steps = 1,
             .max_norm = workload_.max_norm,
             .precision = train::Precision::kFloat32}) {}

Tensor ModelRun::forward() {
  const measure::ScopedRange range("forward");
  const at::AutoGradMode graph(has_backward(workload_));
  return loss_of(*model_, rows_, workload_.precision);
}

void ModelRun::backward(const Tensor& loss) {
  const measure::ScopedRange range("backward");
  loss.backward();
}

void ModelRun::update(const Tensor& loss) { step_.finish(loss.detach()); }

void ModelRun::pass(Marks& marks) {
  marks.set();
  if (has_backward(workload_)) optimizer_.zero_grad();
  const Tensor loss = forward();
  marks.set();
  if (!has_backward(workload_)) return;
  backward(loss);
  marks.set();
  if (!has_update(workload_)) return;
  update(loss);
  marks.set();
}

void ModelRun::pass() {
  Marks unread(device_);
  pass(unread);
}

StepTimes ModelRun::timed_pass() {
  Marks marks(device_);
  synchronize(device_);
  const double begin = measure::steady_seconds();
  pass(marks);
  synchronize(device_);
  StepTimes times;
  times.total = measure::steady_seconds() - begin;
  const std::vector<double> seconds = marks.seconds();
  double* const parts[] = {&times.forward, &times.backward, &times.optimizer};
  for (size_t i = 0; i < seconds.size(); ++i) *parts[i] = seconds[i];
  return times;
}

}  // namespace flashstep::report
