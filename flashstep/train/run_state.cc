#include "flashstep/train/run_state.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "flashstep/comm/agreement.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/train/checkpoint_state.h"
#include "flashstep/train/module_tensors.h"
#include "flashstep/train/optimizer_options.h"
#include "flashstep/train/optimizer_tensors.h"
#include "flashstep/train/rank_buffers.h"

namespace flashstep {
namespace {

using torch::Tensor;
using OrderedJson = nlohmann::ordered_json;

torch::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return parameters.empty() ? torch::Device(torch::kCPU) : parameters.front().device();
}

std::string hex(const Tensor& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (int64_t i = 0; i < bytes.numel(); ++i) {
    const uint8_t byte = bytes.const_data_ptr<uint8_t>()[i];
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

Tensor from_hex(const std::string& text) {
  Tensor bytes = at::empty({static_cast<int64_t>(text.size() / 2)}, at::kByte);
  for (int64_t i = 0; i < bytes.numel(); ++i) {
    bytes.data_ptr<uint8_t>()[i] =
        static_cast<uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

at::Generator generator(torch::Device device) {
  return at::globalContext().defaultGenerator(device);
}

// The generators that a module's own code may draw from (dropout, say), of every rank.
OrderedJson random_state(const Job& job, torch::Device device) {
  OrderedJson state = {{"cpu", hex(generator(torch::kCPU).get_state())}};
  if (device.is_cuda()) state["cuda"] = hex(generator(device).get_state());
  if (job.parallel->group() == nullptr) return state;
  OrderedJson ranks = OrderedJson::array();
  for (const std::string& other : job.parallel->group()->all_gather(state.dump())) {
    ranks.push_back(OrderedJson::parse(other));
  }
  state["ranks"] = ranks;
  return state;
}

// Instead of all that a trainer goes on with.
constexpr const char* kWeightsAlone = "weights_alone";

// What stands in Checkpoint::state_json.
struct State {
  std::string config;
  std::string data_fingerprint, tokenizer;        // fingerprints; empty: the run had none
  std::string optimizer_class;                    // empty: an earlier version has not written it
  std::optional<std::vector<SavedGroup>> groups;  // AdamW's, where they are kept
  std::vector<std::vector<std::string>> order;    // of other optimizers' parameters, by group
  RunCounters counters;
  bool is_of_as_many_ranks = false;
  Tensor cpu_generator, cuda_generator;  // undefined: this rank's stays as it is
  std::vector<int64_t> bucket_order;
  double bucket_megabytes = 0;  // 0: to be chosen
};

// The generators that `rank` goes on with, of random_state()'s. Empty for one that was not there:
// its own are as the program has seeded them, and drawing as another rank does would repeat that
// one's dropout. Where several were there and drew alike, the program wants so.
OrderedJson random_of(const OrderedJson& saved, size_t rank) {
  if (!saved.contains("ranks")) return rank == 0 ? saved : OrderedJson::object();
  const OrderedJson& ranks = saved.at("ranks");
  if (rank < ranks.size()) return ranks.at(rank);
  const bool all_alike = std::all_of(ranks.begin(), ranks.end(),
                                     [&](const auto& other) { return other == ranks.front(); });
  return all_alike && ranks.size() > 1 ? ranks.front() : OrderedJson::object();
}

// The bytes are known to be whole; they may still be those of another version of this program.
State parse_state(const StoredCheckpoint& checkpoint, const Parallelism& parallel) {
  require_trainers_state(checkpoint.state_json);
  try {
    const OrderedJson json = OrderedJson::parse(checkpoint.state_json);
    const auto number = [&](const char* name) {
      return json.at(name).is_null() ? std::numeric_limits<double>::quiet_NaN()
                                     : json.at(name).get<double>();
    };
    State state;
    state.config = json.at("config").dump();
    state.data_fingerprint = json.at("data").value("fingerprint", "");
    state.tokenizer = json.value("tokenizer", "");
    state.optimizer_class = json.value("optimizer_class", "");
    if (json.contains("optimizer")) state.groups = parse_groups(json.at("optimizer").at("groups"));
    if (json.contains("parameters_of_groups")) json.at("parameters_of_groups").get_to(state.order);
    state.counters.skipped = json.at("skipped");
    state.counters.skipped_in_a_row = json.at("skipped_in_a_row");
    state.counters.first_held_out_loss = number("first_held_out_loss");
    state.counters.held_out_loss = number("held_out_loss");
    state.counters.loss = number("loss");
    const OrderedJson& all_random = json.at("random");
    state.is_of_as_many_ranks =
        all_random.contains("ranks") &&
        all_random.at("ranks").size() == static_cast<size_t>(parallel.world_size());
    const OrderedJson random = random_of(all_random, static_cast<size_t>(parallel.rank()));
    if (json.contains("bucket_order")) {
      state.bucket_order = json.at("bucket_order").get<std::vector<int64_t>>();
    }
    // Sums are repeated to the bit by as many ranks only. Checkpoints of earlier versions have the
    // size in their config.
    if (state.is_of_as_many_ranks) {
      const OrderedJson::json_pointer in_config("/config/parallel/bucket_megabytes");
      state.bucket_megabytes = json.value("bucket_megabytes", json.value(in_config, 0.0));
    }
    if (random.contains("cpu")) state.cpu_generator = from_hex(random.at("cpu"));
    if (random.contains("cuda")) state.cuda_generator = from_hex(random.at("cuda"));
    return state;
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    throw UserError(
        flashstep::str("[resume] expected the trainer's state in the checkpoint of step ",
                       checkpoint.step, ", got one of another version (", error.what(), ")"));
  }
}

// The trainer's own tensors lie among the optimizer's.
StoredTensors take_out(StoredTensors& tensors,
                       const std::function<bool(const std::string& name)>& is_taken) {
  StoredTensors taken, left;
  for (StoredTensor& tensor : tensors)
    (is_taken(tensor.name) ? taken : left).push_back(std::move(tensor));
  tensors = std::move(left);
  return taken;
}

void check_state(const State& state, int64_t step, const Job& job) {
  if (job.check_config) job.check_config(state.config);
  require(state.data_fingerprint.empty() || job.data_fingerprint.empty() ||
              state.data_fingerprint == job.data_fingerprint,
          "[resume] expected the training data that the run has read so far (fingerprint ",
          state.data_fingerprint, "), got other data (", job.data_fingerprint, ")");
  require(state.tokenizer.empty() || job.tokenizer_fingerprint.empty() ||
              state.tokenizer == job.tokenizer_fingerprint,
          "[resume] expected the tokenizer that the run began with (fingerprint ", state.tokenizer,
          "), got another one (", job.tokenizer_fingerprint, ")");
  const std::string own_class = OptimizerTensors(job, {}).class_name();
  require(state.optimizer_class.empty() || state.optimizer_class == own_class,
          "[resume] expected the checkpoint of step ", step, " to be ", own_class,
          "'s, got another optimizer's, ", state.optimizer_class);
  if (state.groups && job.keeps_options) check_groups(*state.groups, job.optimizer, job.module);
  check_order(state.order, job.optimizer, job.module);
}

}  // namespace

void require_trainers_state(const std::string& state_json) {
  const OrderedJson json = OrderedJson::parse(state_json, nullptr, /*allow_exceptions=*/false);
  const bool has_weights_alone =
      json.contains(kWeightsAlone) || (json.contains("caller") && !json.contains("config"));
  require(!has_weights_alone,
          "[resume] expected a checkpoint with the trainer's state, got one that flashstep import "
          "or Python's save_checkpoint wrote: train.init_from takes its weights");
}

std::string state_of_weights(const std::string& config_json, const std::string& tokenizer) {
  const OrderedJson state = {
      {kWeightsAlone, true}, {"config", OrderedJson::parse(config_json)}, {"tokenizer", tokenizer}};
  return state.dump();
}

void check_savable(const Job& job) {
  OptimizerTensors(job, {}).check_parameters();
  try {
    require_storable(module_tensors(job.module));
  } catch (const UserError& error) {
    throw AgreedError(error);
  }
  if (OrderedJson::parse(job.config_json, nullptr, /*allow_exceptions=*/false).is_object()) return;
  throw AgreedError(flashstep::str("[train] expected job.config_json to be a JSON object, got ",
                                   job.config_json.substr(0, 100)));
}

const Group* writing_group(const Job& job) {
  return OptimizerTensors(job, {}).are_divided() ? job.parallel->group() : nullptr;
}

namespace {

// Of fully sharded parameters each rank's part of them, whole; the rest is on every rank.
NamedTensors gathered_tensors(const Job& job) {
  NamedTensors tensors = module_tensors(job.module);
  const ShardedUnits* const units = job.parallel->units();
  if (units == nullptr) return tensors;
  NamedTensors own = units->gather_evenly();
  if (!job.parallel->is_main_rank()) return own;
  std::set<std::string> sharded;
  for (const Shard& shard : units->shards()) sharded.insert(shard.name);
  for (auto& entry : tensors) {  // buffers
    if (!sharded.contains(entry.first)) own.push_back(std::move(entry));
  }
  return own;
}

}  // namespace

Checkpoint make_checkpoint(const Job& job, const NamedTensors& step_state,
                           const RunCounters& counters, int64_t step) {
  Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.model = gathered_tensors(job);
  checkpoint.model_is_divided =
      job.parallel->units() != nullptr && job.parallel->group() != nullptr;
  const OptimizerTensors optimizer(job, whole_tensors(job.module, *job.parallel));
  checkpoint.optimizer = optimizer.read();
  for (auto& buffer : rank_buffers(job)) checkpoint.optimizer.push_back(std::move(buffer));
  if (job.parallel->is_main_rank()) {
    checkpoint.optimizer.insert(checkpoint.optimizer.end(), step_state.begin(), step_state.end());
  }
  OrderedJson state;
  state["config"] = OrderedJson::parse(job.config_json);
  // Which rows a step reads is a pure function of the step: the position in the data is one number.
  state["data"] = {{"next_step", step}, {"fingerprint", job.data_fingerprint}};
  if (!job.held_out_fingerprint.empty())
    state["data"]["held_out_fingerprint"] = job.held_out_fingerprint;
  if (!job.tokenizer_fingerprint.empty()) state["tokenizer"] = job.tokenizer_fingerprint;
  state["optimizer_class"] = optimizer.class_name();
  if (optimizer.is_adamw() && job.keeps_options) {  // as Python has it; others' archives hold them
    state["optimizer"] = {{"class", "AdamW"},
                          {"groups", write_groups(job.optimizer, job.module)},
                          {"numbers", OrderedJson::object()}};
  }
  if (!optimizer.is_adamw())
    state["parameters_of_groups"] = names_of_groups(job.optimizer, job.module);
  state["schedule"] = {{"next_update", step + 1}};
  state["skipped"] = counters.skipped;
  state["skipped_in_a_row"] = counters.skipped_in_a_row;
  state["first_held_out_loss"] = counters.first_held_out_loss;  // NaN, none yet, is written as null
  state["held_out_loss"] = counters.held_out_loss;
  state["loss"] = counters.loss;
  state["random"] = random_state(job, device_of(job.module));
  if (const GradientReducer* reducer = job.parallel->reducer()) {
    state["bucket_order"] = reducer->bucket_order();
    state["bucket_megabytes"] = reducer->options().bucket_megabytes;
  }
  checkpoint.state_json = state.dump();
  return checkpoint;
}

std::string tokenizer_of(const std::string& state_json) {
  const OrderedJson state = OrderedJson::parse(state_json, nullptr, /*throw=*/false);
  const auto found = state.is_object() ? state.find("tokenizer") : state.end();
  return found != state.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string config_of(const std::string& state_json) {
  const OrderedJson state = OrderedJson::parse(state_json, nullptr, /*throw=*/false);
  return state.is_object() && state.contains("config") ? state.at("config").dump() : "";
}

bool has_other_held_out_data(const std::string& state_json, const Job& job) {
  const OrderedJson state = OrderedJson::parse(state_json, nullptr, /*throw=*/false);
  const std::string& own = job.held_out_fingerprint;
  const OrderedJson::json_pointer saved("/data/held_out_fingerprint");
  return state.is_object() && !own.empty() && state.value(saved, own) != own;
}

std::string newest_state(const std::filesystem::path& checkpoints) {
  std::vector<int64_t> steps = list_checkpoints(checkpoints);
  std::ranges::sort(steps, std::greater());
  for (const int64_t step : steps) {
    const auto path = checkpoint_directory(checkpoints, step) / "state.json";
    try {
      return parse_checkpoint_state(read_file(path), path.string()).state_json;
    } catch (const std::exception&) {  // whoever opens it says why
    }
  }
  return "";
}

std::string tokens_read_by(const std::filesystem::path& checkpoints) {
  const OrderedJson state = OrderedJson::parse(newest_state(checkpoints), nullptr, /*throw=*/false);
  const OrderedJson::json_pointer saved("/data/fingerprint");
  return state.contains(saved) && state.at(saved).is_string() ? state.at(saved).get<std::string>()
                                                              : "";
}

RunCounters restore_checkpoint(StoredCheckpoint checkpoint, const Job& job,
                               const LoadStepState& load_step_state) {
  const State state = parse_state(checkpoint, *job.parallel);
  StoredTensors of_optimizer = std::move(checkpoint.optimizer.tensors);
  const StoredTensors buffers = take_out(
      of_optimizer, [](const std::string& name) { return name.starts_with(kRankBuffers); });
  // A parameter may be called scaler: names that begin so are not the scaler's alone.
  const StoredTensors scale = take_out(of_optimizer, [](const std::string& name) {
    return name == kScale || name == kGrowthTracker;
  });
  const NamedTensors wholes = whole_tensors(job.module, *job.parallel);
  OptimizerTensors optimizer(job, wholes);
  NamedTensors step_state;
  for (const StoredTensor& tensor : scale) step_state.emplace_back(tensor.name, tensor.whole());
  try {
    // All that may be refused is, before anything is loaded.
    const std::string source = flashstep::str("the checkpoint of step ", checkpoint.step);
    check_state(state, checkpoint.step, job);
    optimizer.open(of_optimizer);
    check_weights(wholes, checkpoint.model.tensors, source);
    load_step_state(step_state);
    load_module(job.module, *job.parallel, checkpoint.model.tensors, source);
  } catch (const UserError& error) {
    throw AgreedError(error);  // all ranks have read the same
  }
  if (state.is_of_as_many_ranks) load_rank_buffers(job, buffers);
  optimizer.load(std::move(of_optimizer));
  if (state.groups && job.keeps_options) set_options(*state.groups, job.optimizer);
  GradientReducer* const reducer = job.parallel->reducer();
  // Of other trained parameters (some were frozen) there is no order to keep.
  if (reducer != nullptr && !state.bucket_order.empty() &&
      state.bucket_order.size() == reducer->reduced_parameters().size()) {
    const double megabytes = reducer->bucket_size_is_chosen() ? state.bucket_megabytes : 0;
    reducer->set_bucket_order(state.bucket_order, megabytes);
  }
  const torch::Device device = device_of(job.module);
  if (state.cpu_generator.defined()) generator(torch::kCPU).set_state(state.cpu_generator);
  if (device.is_cuda() && state.cuda_generator.defined()) {
    generator(device).set_state(state.cuda_generator);
  }
  return state.counters;
}

}  // namespace flashstep
