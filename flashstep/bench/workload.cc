#include "flashstep/bench/workload.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "flashstep/attention/implementation_names.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/schema.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/machine.h"
#include "flashstep/measure/memory.h"
#include "flashstep/model/cost.h"
#include "flashstep/ops.h"
#include "flashstep/ops/internal.h"
#include "flashstep/train/cost.h"

namespace flashstep::tools {
namespace {

constexpr int64_t kMost = int64_t{1} << 31;
constexpr int64_t kHandoutVocabulary = 10'000, kHandoutBatch = 4;

// What two cores train in a second or two.
struct SmallSize {
  const char *name, *numbers;  // as in model_by_numbers()
  int64_t context_length, batch_size;
};
constexpr int64_t kSmallVocabulary = 4096;
constexpr SmallSize kSmallSizes[] = {{"tiny", "128/384/4/4", 128, 32},
                                     {"mini", "256/704/4/8", 256, 16},
                                     {"base", "512/1376/6/8", 256, 8}};

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

std::string default_stream(const Workload& w) {
  return w.device == "cuda" && is_in_bf16(w.precision) ? "bf16" : "fp32";
}

void override_with(const ModelConfig& given, ModelConfig& model) {
  for (int64_t ModelConfig::*field :
       {&ModelConfig::vocab_size, &ModelConfig::context_length, &ModelConfig::d_model,
        &ModelConfig::d_ff, &ModelConfig::num_layers, &ModelConfig::num_heads,
        &ModelConfig::num_kv_heads, &ModelConfig::window}) {
    if (given.*field != 0) model.*field = given.*field;
  }
  model.tie_embeddings = given.tie_embeddings;
  model.rope_theta = given.rope_theta;
  model.rope_scaling = given.rope_scaling;
  model.norm_epsilon = given.norm_epsilon;
}

// Without what a name does not say: fewer heads of keys, and ties.
std::string base_name(const ModelConfig& model) {
  // The size that was named comes first: two handouts have the same one under different names.
  if (!model.size.empty() && same_sizes(resolved({.size = model.size}), resolved(model)))
    return model.size;
  for (const SmallSize& size : kSmallSizes) {
    if (same_sizes(model_by_name(size.name), model)) return size.name;
  }
  return str(model.d_model, '/', model.d_ff, '/', model.num_layers, '/', model.num_heads);
}

}  // namespace

void Workload::visit(FieldVisitor& v) {
  v.section("model", model, "the Transformer");
  v.field("batch_size", batch_size, {0, kMost}, "rows; 0: the size's");
  v.field("mode", mode, workload_modes(), "how much of a step");
  v.field("precision", precision, workload_precisions(),
          "bf16: autocast; bf16-fp8: and train.bf16_products fp8");
  v.field("device", device, {"cpu", "cuda"}, "where it computes");
  v.field("max_norm", max_norm, {0, 1e30}, "gradients are clipped to it; 0: only measured");
  v.field("moments", moments, {"fp32", "bf16"}, "AdamW's");
  v.field("stream", stream, {"auto", "fp32", "bf16"}, "the residual stream's, as train.stream");
  v.field("recompute", recompute, recompute_names(), "in backward");
  v.field("recompute_group", recompute_group, {1, kMost}, "blocks that are recomputed at once");
  v.field("recompute_blocks", recompute_blocks, {0, kMost}, "of the first so many; 0: of all");
  v.field("seed", seed, {0, kMost}, "of weights and tokens");
}

std::vector<std::string> workload_modes() { return {"forward", "forward-backward", "step"}; }

std::vector<std::string> workload_precisions() {
  return {"fp32", "fp32-split", "tf32", "bf16", "bf16-fp8"};
}

bool has_backward(const Workload& workload) { return workload.mode != "forward"; }

bool has_update(const Workload& workload) { return workload.mode == "step"; }

std::vector<std::string> sizes_named(const std::vector<std::string>& names) {
  std::vector<std::string> sizes;
  for (const std::string& name : names) {
    if (name == "all")
      sizes.insert(sizes.end(), {"small", "medium", "large", "xl", "2.7B"});
    else
      sizes.push_back(name);
  }
  return sizes;
}

std::vector<std::string> workload_size_names() {
  std::vector<std::string> names;
  for (const SmallSize& size : kSmallSizes) names.emplace_back(size.name);
  for (std::string& name : model_size_names()) names.push_back(std::move(name));
  return names;
}

ModelConfig model_by_name(const std::string& name) {
  ModelConfig model;
  if (contains(model_size_names(), name)) {
    model.size = name;
    return model;
  }
  const SmallSize* small = small_size(name);
  if (small == nullptr) return model_by_numbers(name);
  model = model_by_numbers(small->numbers);
  model.vocab_size = kSmallVocabulary;
  return model;
}

std::string model_name(const ModelConfig& model) {
  std::string name = base_name(model);
  if (model.kv_heads() != model.num_heads) name += str("/kv", model.kv_heads());
  if (model.window > 0) name += str("/window", model.window);
  return model.tie_embeddings ? name + "/tied" : name;
}

std::string without_slashes(std::string name) {
  std::replace(name.begin(), name.end(), '/', '-');
  return name;
}

Workload resolved_workload(const Workload& given) {
  Workload workload;
  read_json(workload, write_json(given), "the workload");  // its words are those of visit()
  workload.model = given.model;
  const SmallSize* small = small_size(base_name(given.model));
  if (small != nullptr && workload.model.context_length == 0)
    workload.model.context_length = small->context_length;
  workload.model = resolved(workload.model);
  if (workload.batch_size == 0)
    workload.batch_size = small != nullptr ? small->batch_size : kHandoutBatch;
  if (workload.stream == "auto") workload.stream = default_stream(workload);
  const std::string& precision = workload.precision;
  const std::vector<std::string> attentions = attention_implementations();
  require(contains(attentions, workload.model.attention), "[workload] expected attention ",
          join(attentions), ", got \"", workload.model.attention, "\"");
  require(workload.device == "cuda" || precision == "fp32" || precision == "bf16",
          "[workload] expected precision fp32 or bf16 on a CPU, got ", precision);
  if (precision == "bf16-fp8") check_float8_widths(workload.model);
  require(workload.stream == "fp32" || is_in_bf16(precision),
          "[workload] expected a stream of fp32 with precision ", precision, ", got bf16");
  require(workload.device == "cpu" || !measure::list_gpus().empty(),
          "[workload] expected a GPU for device cuda, got none");
  return workload;
}

std::string mode_text(const Workload& w) {
  std::string text = w.mode;
  if (w.moments != "fp32") text += ", " + w.moments + " moments";
  // Results that name none are of versions that had an fp32 stream only.
  const bool is_known = w.stream == "bf16" || (w.stream == "fp32" && default_stream(w) == "bf16");
  if (is_known) text += ", " + w.stream + " stream";
  if (w.recompute != "none") text += ", recompute " + w.recompute;
  if (w.recompute == "block" && w.recompute_group > 1) text += str("s by ", w.recompute_group);
  if (w.recompute != "none" && w.recompute_blocks > 0)
    text += str(" (first ", w.recompute_blocks, ")");
  return text;
}

std::string describe(const Workload& w) {
  return str(model_name(w.model), ", batch ", w.batch_size, ", context ", w.model.context_length,
             ", ", w.precision, ", ", mode_text(w));
}

PassShape pass_shape(const Workload& w) {
  PassShape shape;
  shape.batch_size = w.batch_size;
  shape.seq_len = w.model.context_length;
  shape.bf16 = is_in_bf16(w.precision);
  shape.naive_attention = w.model.attention == "naive";
  shape.on_gpu = w.device == "cuda";
  if (w.recompute != "block") shape.recompute = recompute_by_name(w.recompute);
  shape.short_stream = w.stream == "bf16";
  shape.float8 = w.precision == "bf16-fp8";
  shape.weight_copies = w.device != "cpu" || cpu_multiplies(at::kBFloat16);
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
  return workloads;
}

void StepTimes::add_to(Record& record, const std::string& prefix) const {
  for (const auto& [part, seconds] :
       {std::pair("forward", forward), std::pair("backward", backward),
        std::pair("optimizer", optimizer), std::pair("total", total)}) {
    if (seconds > 0) record.samples[prefix + part].push_back(seconds);
  }
}

double total_memory_bytes(const std::string& device) {
  const measure::Machine machine = measure::describe_machine();
  return static_cast<double>(device == "cuda" ? machine.gpus.at(0).memory_bytes
                                              : machine.memory_bytes);
}

double free_memory_bytes(const std::string& device) {
  return device == "cuda" ? total_memory_bytes(device)
                          : static_cast<double>(measure::available_bytes());
}

NeededBytes needed_bytes(const Workload& w) {
  const StateBytes state = state_bytes(static_cast<double>(parameter_count(w.model)),
                                       {.moment = w.moments == "bf16" ? 2.0 : 4.0});
  const PassShape shape = pass_shape(w);
  double saved = 0;
  for (const SavedTensor& tensor : head_saved_tensors(w.model, shape)) saved += tensor.bytes;
  ModelConfig model = w.model;
  if (!has_backward(w)) model.num_layers = 1;  // without a graph one block is there at a time
  KeptBlocks kept{.shape = shape, .recomputed = model.num_layers, .group = w.recompute_group};
  kept.shape.recompute = recompute_by_name(w.recompute);
  if (w.recompute == "none") kept.recomputed = 0;
  if (w.recompute_blocks > 0) kept.recomputed = std::min(w.recompute_blocks, kept.recomputed);
  // When backward begins, or when it comes to the blocks that are recomputed.
  saved += std::max(kept_bytes_in_backward(model, kept, model.num_layers - 1),
                    kept_bytes_in_backward(model, kept, std::max<int64_t>(kept.recomputed - 1, 0)));
  const double least = state.parameters + (has_backward(w) ? state.gradients : 0) +
                       (has_update(w) ? state.optimizer : 0);
  return {least, least + saved};
}

int64_t fitting_layers(const Workload& workload, double available_bytes, double factor) {
  Workload fewer = workload;
  while (--fewer.model.num_layers > 0) {
    if (factor * needed_bytes(fewer).about <= available_bytes) break;
  }
  return fewer.model.num_layers;
}

Outcome too_large(const Workload& workload) {
  const double least = needed_bytes(workload).least, there = total_memory_bytes(workload.device);
  if (least <= there) return {};
  return {Status::kOutOfMemory, str("what lives through a step takes ", fixed(least / kGiB, 1),
                                    " GiB of ", fixed(there / kGiB, 1))};
}

Outcome too_large_for_now(const Workload& workload, double more_bytes) {
  if (workload.device != "cpu") return {};
  const auto there = static_cast<double>(measure::available_bytes());
  const double about = needed_bytes(workload).about + more_bytes;
  if (there == 0 || about <= there) return {};
  return {Status::kOutOfMemory, str("about ", fixed(about / kGiB, 1), " GiB are needed, ",
                                    fixed(there / kGiB, 1), " GiB are there")};
}

}  // namespace flashstep::tools
