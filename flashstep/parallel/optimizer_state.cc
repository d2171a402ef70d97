#include "flashstep/parallel/optimizer_state.h"

#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "flashstep/error.h"
#include "flashstep/parallel/buckets.h"

namespace flashstep {
namespace {

using torch::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr std::string_view kInt = ":int", kDouble = ":double";

InputArchive reopened(OutputArchive& archive) {
  std::ostringstream out;
  archive.save_to(out);
  const std::string bytes = out.str();
  InputArchive result;
  result.load_from(bytes.data(), bytes.size());
  return result;
}

// What is no number and no tensor (LBFGS keeps lists) is left out.
void read_kinds(const std::string& name, const OptimizerParamState& state, NamedTensors& result) {
  OutputArchive written;
  state.serialize(written);
  InputArchive archive = reopened(written);
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    if (!archive.try_read(key, value)) continue;
    const std::string text = name + "/" + key;
    if (value.isTensor() && value.toTensor().defined()) {
      result.emplace_back(text, value.toTensor());
    } else if (value.isInt()) {
      result.emplace_back(text + std::string(kInt), torch::full({}, value.toInt(), torch::kLong));
    } else if (value.isDouble()) {
      result.emplace_back(text + std::string(kDouble),
                          torch::full({}, value.toDouble(), torch::kDouble));
    }
  }
}

// On the parameter's device; of its shape: as its gradient lies, for kernels that walk over both by
// one index.
Tensor beside(const Tensor& parameter, const Tensor& value) {
  const auto strides = gradient_strides(parameter);
  if (value.sizes() != parameter.sizes() || value.strides() == strides)
    return value.to(parameter.device());
  return torch::empty_strided(parameter.sizes(), strides,
                              value.options().device(parameter.device()))
      .copy_(value);
}

void write_kinds(const NamedTensors& kinds, const Tensor& parameter, OutputArchive& archive) {
  for (const auto& [kind, value] : kinds) {
    const std::string_view text = kind;
    const auto without = [&](std::string_view end) {
      return std::string(text.substr(0, text.size() - end.size()));
    };
    if (text.ends_with(kInt)) {
      archive.write(without(kInt), c10::IValue(value.item<int64_t>()));
    } else if (text.ends_with(kDouble)) {
      archive.write(without(kDouble), c10::IValue(value.item<double>()));
    } else {
      archive.write(kind, c10::IValue(beside(parameter, value)));
    }
  }
}

// What torch::optim::serialize writes for an optimizer of one parameter with this state. The key
// stands for the parameter: a number, by which it is found again.
InputArchive archive_of_one(const NamedTensors& kinds, const Tensor& parameter,
                            const torch::optim::OptimizerOptions& options) {
  constexpr const char* kKey = "1";
  OutputArchive archive;
  const auto unit = archive.compilation_unit();
  OutputArchive states(unit), state(unit), groups(unit), group(unit), written_options(unit);
  write_kinds(kinds, parameter, state);
  states.write(kKey, state);
  options.serialize(written_options);
  group.write("params/size", torch::tensor(int64_t{1}));
  group.write("params/0", c10::IValue(kKey));
  group.write("options", written_options);
  groups.write("param_groups/size", torch::tensor(int64_t{1}));
  groups.write("param_groups/0", group);
  archive.write("pytorch_version", c10::IValue("1.5.0"));  // of the format
  archive.write("state", states);
  archive.write("param_groups", groups);
  return reopened(archive);
}

thread_local const Optimizer* being_loaded = nullptr;  // by load_repeated

// While it lives, groups hold every parameter once: a view of it stands in its later places.
class WithoutRepetitions {
 public:
  explicit WithoutRepetitions(Optimizer& optimizer)
      : optimizer_(optimizer), loaded_before_(std::exchange(being_loaded, &optimizer)) {
    std::unordered_set<void*> seen;
    for (OptimizerParamGroup& group : optimizer.param_groups()) {
      before_.push_back(group.params());
      for (Tensor& parameter : group.params()) {
        if (seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
        parameter = parameter.detach();
        views_.push_back(parameter);
      }
    }
  }
  // Whether a view was given state; it is taken away.
  bool take_back() {
    bool had_state = false;
    for (const Tensor& view : views_) {
      const auto found = optimizer_.state().find(view.unsafeGetTensorImpl());
      if (found == optimizer_.state().end()) continue;
      had_state = had_state || found->second != nullptr;
      optimizer_.state().erase(found);
    }
    return had_state;
  }
  ~WithoutRepetitions() {
    being_loaded = loaded_before_;
    take_back();
    for (size_t g = 0; g < before_.size(); ++g) optimizer_.param_groups()[g].params() = before_[g];
  }
  WithoutRepetitions(const WithoutRepetitions&) = delete;
  WithoutRepetitions& operator=(const WithoutRepetitions&) = delete;

 private:
  Optimizer& optimizer_;
  const Optimizer* const loaded_before_;
  std::vector<std::vector<Tensor>> before_;
  std::vector<Tensor> views_;
};

}  // namespace

void load_repeated(Optimizer& optimizer, const std::function<void()>& load) {
  if (being_loaded == &optimizer) return load();
  WithoutRepetitions distinct(optimizer);
  load();
  bool differs = distinct.take_back();
  for (auto state = optimizer.state().begin(); state != optimizer.state().end();) {
    differs = differs || state->second == nullptr;
    state = state->second == nullptr ? optimizer.state().erase(state) : std::next(state);
  }
  require(!differs, "[optimizer] expected an archive of an optimizer that names a parameter twice ",
          "where this one does, got one that does so elsewhere");
}

NamedTensors read_state(const Optimizer& optimizer, const NamedTensors& parameters) {
  NamedTensors result;
  for (const auto& [name, parameter] : parameters) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    read_kinds(name, *found->second, result);
  }
  return result;
}

void write_state(Optimizer& optimizer, const NamedTensors& parameters, const NamedTensors& state,
                 const MakeOptimizer& make) {
  std::unordered_map<std::string, NamedTensors> by_name;  // kinds
  for (const auto& [text, tensor] : state) {
    const size_t slash = text.rfind('/');
    by_name[text.substr(0, slash)].emplace_back(text.substr(slash + 1), tensor);
  }
  optimizer.state().clear();
  std::unordered_map<void*, const torch::optim::OptimizerOptions*> options;  // for their class
  for (const auto& group : optimizer.param_groups()) {
    for (const Tensor& parameter : group.params())
      options.emplace(parameter.unsafeGetTensorImpl(), &group.options());
  }
  for (const auto& [name, parameter] : parameters) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) continue;
    const auto& own = *options.at(parameter.unsafeGetTensorImpl());
    std::vector<OptimizerParamGroup> group;
    group.emplace_back(std::vector<Tensor>{parameter}, own.clone());
    const auto reader = make(group);
    InputArchive archive = archive_of_one(found->second, parameter, own);
    reader->load(archive);
    auto& read = reader->state()[parameter.unsafeGetTensorImpl()];
    require(read != nullptr, "[ShardedOptimizer] expected an optimizer that loads the state of ",
            name, " as torch's own do (torch::optim::serialize), but it has none then");
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(read);
    by_name.erase(found);
  }
}

}  // namespace flashstep
