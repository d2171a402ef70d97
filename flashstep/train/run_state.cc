#include "flashstep/train/run_state.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "flashstep/comm/agreement.h"
#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/parallel/state_pieces.h"

namespace flashstep {
namespace {

using torch::Tensor;
using OrderedJson = nlohmann::ordered_json;

torch::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return parameters.empty() ? torch::Device(torch::kCPU) : parameters.front().device();
}

// What a checkpoint keeps of an optimizer. AdamW's state, sharded or not, is by parameter: all
// ranks read and write it, each its share. That of others is one tensor, the bytes of their own
// torch::save.
class OptimizerTensors {
 public:
  // `parameters`: the module's. The job must outlive it.
  OptimizerTensors(const Job& job, NamedTensors parameters)
      : job_(job),
        adamw_(dynamic_cast<AdamW*>(&job.optimizer)),
        sharded_(dynamic_cast<ShardedOptimizerBase*>(&job.optimizer)),
        units_(job.parallel->units()),
        parameters_(std::move(parameters)) {
    if (auto* sharded = dynamic_cast<ShardedAdamW*>(&job.optimizer)) adamw_ = &sharded->inner();
    require(units_ == nullptr || (adamw_ != nullptr && sharded_ == nullptr),
            "[checkpoint] expected flashstep's AdamW, not sharded by itself, for parameters that "
            "are fully sharded, got another optimizer");
  }

  bool are_divided() const {
    return adamw_ != nullptr && (sharded_ != nullptr || units_ != nullptr);
  }

  // Those of this rank, not copies; if they are not divided, rank 0's are all. All ranks call it.
  NamedTensors read() const {
    if (units_ != nullptr) return shards_state();
    if (adamw_ != nullptr) return optimizer_state(*adamw_, updated());
    if (sharded_ != nullptr) sharded_->consolidate(0);
    if (!job_.parallel->is_main_rank()) return {};
    torch::serialize::OutputArchive archive;
    job_.optimizer.save(archive);
    std::ostringstream out;
    archive.save_to(out);
    const std::string bytes = out.str();
    const auto* const begin = reinterpret_cast<const uint8_t*>(bytes.data());
    return {{kArchive, at::tensor(at::ArrayRef<uint8_t>(begin, bytes.size()), at::kByte)}};
  }

  // Of what any number of ranks may have written (all of a parameter's) what load() takes.
  NamedTensors own(NamedTensors written) const {
    if (adamw_ == nullptr) return written;
    if (units_ != nullptr) return cut_joined(std::move(written), parameters_, own_pieces());
    return are_divided() ? sharded_->own_share(std::move(written), parameters_)
                         : join_pieces(std::move(written), parameters_);
  }

  void load(const NamedTensors& own) const {
    if (units_ != nullptr) return load_shards_state(own);
    if (adamw_ != nullptr) return load_optimizer_state(*adamw_, updated(), own);
    require(own.size() == 1 && own.front().first == kArchive,
            "[resume] expected the checkpoint of another optimizer than AdamW, got one of AdamW");
    const Tensor bytes = own.front().second.contiguous();
    torch::serialize::InputArchive archive;
    // Not where they were saved. A sharded optimizer brings its share to its device by itself.
    archive.load_from(static_cast<const char*>(bytes.data_ptr()), bytes.numel(),
                      sharded_ != nullptr ? torch::Device(torch::kCPU) : device_of(job_.module));
    job_.optimizer.load(archive);
  }

 private:
  static constexpr const char* kArchive = "torch_archive";
  NamedTensors updated() const {  // by this rank
    return are_divided() ? sharded_->named_own(parameters_) : parameters_;
  }

  // Of fully sharded parameters: a piece each, or, of those that every rank has, all.
  std::vector<NamedPiece> own_pieces() const {
    std::vector<NamedPiece> pieces;
    for (const Shard& shard : units_->shards()) {
      if (!shard.is_divided) {
        pieces.push_back({shard.name, shard.whole});
      } else if (shard.begin < shard.end) {
        pieces.push_back({shard.name, shard.whole, shard.begin, shard.end});
      }
    }
    return pieces;
  }

  static std::string name_of(const Shard& shard) {
    return shard.is_divided ? piece_name(shard.name, shard.whole, shard.begin, shard.end)
                            : shard.name;
  }

  // Of what several ranks have, the first one's.
  NamedTensors shards_state() const {
    NamedTensors result;
    for (const Shard& shard : units_->shards()) {
      if (!shard.is_first || (shard.is_divided && shard.begin == shard.end)) continue;
      for (auto& [name, tensor] : optimizer_state(*adamw_, {{name_of(shard), shard.tensor}})) {
        if (tensor.dim() > 0 && shard.is_divided) tensor = tensor.view({-1});
        result.emplace_back(name, tensor);
      }
    }
    return result;
  }

  void load_shards_state(const NamedTensors& own) const {
    NamedTensors shards, state;
    std::set<std::string> undivided;
    for (const Shard& shard : units_->shards()) {
      shards.emplace_back(name_of(shard), shard.tensor);
      if (!shard.is_divided) undivided.insert(shard.name);
    }
    for (const auto& [name, tensor] : own) {
      const bool is_piece =
          tensor.dim() > 0 && !undivided.contains(name.substr(0, name.rfind('/')));
      state.emplace_back(name, is_piece ? tensor.view({-1, 1, 1}) : tensor);
    }
    load_optimizer_state(*adamw_, shards, state);
  }

  const Job& job_;
  AdamW* adamw_;                   // the one inside, if it is sharded; null: another optimizer
  ShardedOptimizerBase* sharded_;  // null: it is not
  const ShardedUnits* units_;      // null: parameters are not
  const NamedTensors parameters_;
};

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

// What stands in Checkpoint::state_json.
struct State {
  std::string config;
  std::string data_fingerprint;  // empty: the run had none
  RunCounters counters;
  Tensor cpu_generator, cuda_generator;  // the latter undefined without a GPU
  std::vector<int64_t> bucket_order;
  double bucket_megabytes = 0;  // 0: to be chosen
};

// The bytes are known to be whole; they may still be those of another version of this program.
State parse_state(const Checkpoint& checkpoint, const Parallelism& parallel) {
  try {
    const OrderedJson json = OrderedJson::parse(checkpoint.state_json);
    const auto number = [&](const char* name) {
      return json.at(name).is_null() ? std::numeric_limits<double>::quiet_NaN()
                                     : json.at(name).get<double>();
    };
    State state;
    state.config = json.at("config").dump();
    state.data_fingerprint = json.at("data").value("fingerprint", "");
    state.counters.skipped = json.at("skipped");
    state.counters.skipped_in_a_row = json.at("skipped_in_a_row");
    state.counters.first_held_out_loss = number("first_held_out_loss");
    state.counters.held_out_loss = number("held_out_loss");
    state.counters.loss = number("loss");
    const OrderedJson& all_random = json.at("random");
    // Of a run on another number of ranks, the first rank's.
    const bool has_ranks =
        all_random.contains("ranks") &&
        all_random.at("ranks").size() == static_cast<size_t>(parallel.world_size());
    const OrderedJson& random =
        has_ranks ? all_random.at("ranks").at(static_cast<size_t>(parallel.rank())) : all_random;
    if (json.contains("bucket_order")) {
      state.bucket_order = json.at("bucket_order").get<std::vector<int64_t>>();
    }
    // Sums are repeated to the bit by as many ranks only. Checkpoints of earlier versions have the
    // size in their config.
    if (has_ranks) {
      const OrderedJson::json_pointer in_config("/config/parallel/bucket_megabytes");
      state.bucket_megabytes = json.value("bucket_megabytes", json.value(in_config, 0.0));
    }
    state.cpu_generator = from_hex(random.at("cpu"));
    if (random.contains("cuda")) state.cuda_generator = from_hex(random.at("cuda"));
    return state;
  } catch (const std::exception& error) {
    throw UserError(
        flashstep::str("[resume] expected the trainer's state in the checkpoint of step ",
                       checkpoint.step, ", got one of another version (", error.what(), ")"));
  }
}

// Splits the trainer's own tensors from the optimizer's by their first name.
std::pair<NamedTensors, NamedTensors> split_optimizer(NamedTensors tensors) {
  NamedTensors own, optimizer;
  for (auto& entry : tensors) {
    (entry.first.rfind("scaler/", 0) == 0 ? own : optimizer).push_back(std::move(entry));
  }
  return {std::move(own), std::move(optimizer)};
}

}  // namespace

const Group* writing_group(const Job& job) {
  return OptimizerTensors(job, {}).are_divided() ? job.parallel->group() : nullptr;
}

NamedTensors module_tensors(const torch::nn::Module& module) {
  NamedTensors tensors;
  std::set<void*> seen;
  const auto add = [&](const auto& named) {
    for (const auto& item : named) {
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
        tensors.emplace_back(item.key(), item.value());
      }
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return tensors;
}

NamedTensors whole_tensors(const torch::nn::Module& module, const Parallelism& parallel) {
  NamedTensors tensors = module_tensors(module);
  if (parallel.units() == nullptr) return tensors;
  std::unordered_map<std::string, Tensor> wholes;
  for (const Shard& shard : parallel.units()->shards()) wholes.emplace(shard.name, shard.whole);
  for (auto& [name, tensor] : tensors) {
    const auto found = wholes.find(name);
    if (found != wholes.end()) tensor = found->second;
  }
  return tensors;
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

void check_weights(const NamedTensors& own, const NamedTensors& weights,
                   const std::string& source) {
  const std::unordered_map<std::string, Tensor> by_name(weights.begin(), weights.end());
  for (const auto& [name, tensor] : own) {
    const auto found = by_name.find(name);
    require_tensor(name, found != by_name.end(), "[weights] expected ", name, " in ", source,
                   ", but it is not there");
    require_tensor(name, found->second.sizes() == tensor.sizes(), "[weights] expected ", name,
                   " of shape ", tensor.sizes(), " in ", source, ", got ", found->second.sizes());
  }
  for (const auto& [name, tensor] : weights) {
    const bool known =
        std::any_of(own.begin(), own.end(), [&](const auto& e) { return e.first == name; });
    require_tensor(name, known, "[weights] ", source, " holds ", name,
                   ", which the module does not have");
  }
}

// load_module, of which each rank takes its shards.
void load_job(const Job& job, const NamedTensors& weights, const std::string& source) {
  ShardedUnits* const units = job.parallel->units();
  if (units == nullptr) return load_module(job.module, weights, source);
  const torch::NoGradGuard no_grad;
  check_weights(whole_tensors(job.module, *job.parallel), weights, source);
  std::set<std::string> sharded;
  for (const Shard& shard : units->shards()) sharded.insert(shard.name);
  std::unordered_map<std::string, Tensor> others;  // buffers
  for (const auto& [name, tensor] : module_tensors(job.module)) others.emplace(name, tensor);
  NamedTensors parameters;
  for (const auto& [name, tensor] : weights) {
    if (sharded.contains(name)) {
      parameters.emplace_back(name, tensor);
    } else {
      others.at(name).copy_(tensor);
    }
  }
  units->load(parameters);
}

}  // namespace

Checkpoint make_checkpoint(const Job& job, const NamedTensors& step_state,
                           const RunCounters& counters, int64_t step) {
  Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.model = gathered_tensors(job);
  checkpoint.model_is_divided =
      job.parallel->units() != nullptr && job.parallel->group() != nullptr;
  checkpoint.optimizer = OptimizerTensors(job, whole_tensors(job.module, *job.parallel)).read();
  if (job.parallel->is_main_rank()) {
    checkpoint.optimizer.insert(checkpoint.optimizer.end(), step_state.begin(), step_state.end());
  }
  OrderedJson state;
  state["config"] = OrderedJson::parse(job.config_json);
  // Which rows a step reads is a pure function of the step: the position in the data is one number.
  state["data"] = {{"next_step", step}, {"fingerprint", job.data_fingerprint}};
  if (!job.tokenizer_fingerprint.empty()) state["tokenizer"] = job.tokenizer_fingerprint;
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

std::optional<Checkpoint> share_checkpoint(std::optional<Checkpoint> checkpoint,
                                           const Group* group) {
  if (group == nullptr) return checkpoint;
  std::string text;  // step and state; empty: there is none
  if (group->is_first() && checkpoint)
    text = flashstep::str(checkpoint->step, " ", checkpoint->state_json);
  text = group->broadcast(text);
  if (text.empty()) return std::nullopt;
  if (!group->is_first()) {
    checkpoint.emplace();
    checkpoint->step = std::stoll(text);
    checkpoint->state_json = text.substr(text.find(' ') + 1);
  }
  broadcast_tensors(checkpoint->model, *group);
  return checkpoint;
}

std::string tokenizer_of(const Checkpoint& checkpoint) {
  const OrderedJson state = OrderedJson::parse(checkpoint.state_json, nullptr, /*throw=*/false);
  const auto found = state.is_object() ? state.find("tokenizer") : state.end();
  return found != state.end() && found->is_string() ? found->get<std::string>() : "";
}

RunCounters restore_checkpoint(Checkpoint checkpoint, const Job& job,
                               const LoadStepState& load_step_state) {
  const State state = parse_state(checkpoint, *job.parallel);
  if (job.check_config) job.check_config(state.config);
  require(state.data_fingerprint.empty() || job.data_fingerprint.empty() ||
              state.data_fingerprint == job.data_fingerprint,
          "[resume] expected the training data that the run has read so far (fingerprint ",
          state.data_fingerprint, "), got other data (", job.data_fingerprint, ")");
  try {
    load_job(job, checkpoint.model, flashstep::str("the checkpoint of step ", checkpoint.step));
  } catch (const UserError& error) {
    throw AgreedError(error);  // all ranks have the same tensors
  }
  checkpoint.model.clear();
  const NamedTensors parameters = whole_tensors(job.module, *job.parallel);
  const Group* const group = job.parallel->group();
  const auto shared = [&](NamedTensors tensors, const KeepFunction& keep) {
    return group == nullptr ? keep(std::move(tensors))
                            : share_state(std::move(tensors), parameters, *group, keep);
  };
  auto [own, of_optimizer] = split_optimizer(std::move(checkpoint.optimizer));
  const OptimizerTensors optimizer(job, parameters);
  optimizer.load(shared(std::move(of_optimizer),
                        [&](NamedTensors tensors) { return optimizer.own(std::move(tensors)); }));
  load_step_state(shared(std::move(own), [](NamedTensors tensors) { return tensors; }));
  GradientReducer* const reducer = job.parallel->reducer();
  if (reducer != nullptr && !state.bucket_order.empty()) {
    const double megabytes = reducer->bucket_size_is_chosen() ? state.bucket_megabytes : 0;
    reducer->set_bucket_order(state.bucket_order, megabytes);
  }
  const torch::Device device = device_of(job.module);
  generator(torch::kCPU).set_state(state.cpu_generator);
  if (device.is_cuda() && state.cuda_generator.defined()) {
    generator(device).set_state(state.cuda_generator);
  }
  return state.counters;
}

void load_module(torch::nn::Module& module, const NamedTensors& weights,
                 const std::string& source) {
  torch::NoGradGuard no_grad;
  const NamedTensors own = module_tensors(module);
  check_weights(own, weights, source);
  const std::unordered_map<std::string, Tensor> by_name(weights.begin(), weights.end());
  for (auto [name, tensor] : own) tensor.copy_(by_name.at(name));
}

}  // namespace flashstep
