// Units of a module: which parameters belong to which, and which module is which unit.
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/modulelist.h>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/fully_sharded.h"

namespace flashstep {
namespace {

using torch::nn::Module;

// Which unit a module is, for run(): a backward that computes a unit again calls it from a thread
// of autograd's.
struct Registered {
  std::weak_ptr<ShardedUnits> units;
  size_t unit;
};
struct Registry {
  std::mutex mutex;
  std::unordered_map<const Module*, Registered> modules;
};
Registry& registry() {
  static Registry instance;
  return instance;
}

// The elements of lists of modules: the blocks of most models.
std::vector<std::string> elements_of_lists(const Module& module) {
  std::vector<std::string> names;
  const auto add = [&](const Module& list, const std::string& prefix) {
    if (list.as<torch::nn::ModuleListImpl>() == nullptr &&
        list.as<torch::nn::SequentialImpl>() == nullptr)
      return;
    for (const auto& element : list.named_children()) names.push_back(prefix + element.key());
  };
  add(module, "");  // which may lie on the stack
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    add(*item.value(), item.key() + ".");
  return names;
}

// The innermost unit that holds a parameter of this name; units.size(): none.
size_t unit_of(const std::string& parameter, const std::vector<std::string>& units) {
  size_t found = units.size();
  for (size_t u = 0; u < units.size(); ++u) {
    const bool holds = parameter.starts_with(units[u] + ".");
    if (holds && (found == units.size() || units[u].size() > units[found].size())) found = u;
  }
  return found;
}

// The distinct parameters of each unit, and, last, those of the module itself.
std::vector<UnitOfTensors> divide(const Module& module, const std::vector<std::string>& units) {
  struct Owner {
    std::string name;
    at::Tensor tensor;
    size_t unit;
  };
  std::vector<Owner> owners;
  std::map<void*, size_t> places;
  for (const auto& item : module.named_parameters()) {
    const size_t unit = unit_of(item.key(), units);
    const auto [place, is_new] =
        places.try_emplace(item.value().unsafeGetTensorImpl(), owners.size());
    if (is_new) {
      owners.push_back({item.key(), item.value(), unit});
    } else if (owners[place->second].unit != unit) {
      owners[place->second].unit = units.size();  // tied over units
    }
  }
  std::vector<UnitOfTensors> result;
  for (const std::string& name : units) result.push_back({name, {}, {}});
  result.push_back({"the module", {}, {}});
  for (const Owner& owner : owners) {
    result[owner.unit].names.push_back(owner.name);
    result[owner.unit].tensors.push_back(owner.tensor);
  }
  return result;
}

}  // namespace

UnitCall::UnitCall(const Module& module) {
  {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().modules.find(&module);
    if (found == registry().modules.end()) return;
    units_ = found->second.units.lock();
    unit_ = found->second.unit;
  }
  if (units_) units_->begin_forward(unit_);
}

UnitCall::~UnitCall() {
  if (!units_) return;
  try {
    units_->abandon();
  } catch (const std::exception&) {
    // A rank is lost. What has brought us here says so, and every later collective would.
  }
}

void UnitCall::watch_input(const at::Tensor& input) {
  if (units_) units_->watch_input(unit_, input);
}

void UnitCall::watch(const at::Tensor& output) {
  if (units_) units_->watch(unit_, output);
}

void UnitCall::end() {
  if (const auto units = std::exchange(units_, nullptr)) units->end_forward(unit_);
}

ShardedModule::ShardedModule(Module& module, const Group& group, FullyShardOptions options)
    : module_(module), group_(group) {
  std::vector<std::string> names = options.units;
  if (names.empty()) names = elements_of_lists(module);
  const auto modules = module.named_modules("", /*include_self=*/false);
  std::set<std::string> distinct;
  for (const std::string& name : names) {
    require(modules.contains(name), "[fully sharded] expected units by the names of modules, got ",
            name, ", which the module does not have");
    require(distinct.insert(name).second, "[fully sharded] expected each unit once, got ", name,
            " twice");
  }
  {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().modules.find(&module);
    require(found == registry().modules.end() || found->second.units.expired(),
            "[fully sharded] expected a module that is not fully sharded already");
  }
  broadcast_buffers(module.buffers(), group);
  units_ = shard_units(divide(module, names), group, options);
  for (const auto& item : module.named_parameters())
    seen_.emplace_back(item.key(), item.value().unsafeGetTensorImpl());
  const std::lock_guard lock(registry().mutex);
  for (size_t u = 0; u < names.size(); ++u)
    registry().modules[modules[names[u]].get()] = {units_, u};
  registry().modules[&module] = {units_, names.size()};
}

ShardedModule::~ShardedModule() {
  const std::lock_guard lock(registry().mutex);
  std::erase_if(registry().modules, [&](const auto& item) {
    const auto units = item.second.units.lock();
    return units == nullptr || units == units_;
  });
}

void ShardedModule::before_forward() const {
  require(!units_->is_unfinished(),
          "[fully sharded] expected the backward before this forward to have come to its end, got ",
          "one that was broken off: forget_step(), on all ranks, drops its gradients");
  const auto parameters = module_.named_parameters();
  require(parameters.size() == seen_.size(), "[fully sharded] expected the module as it was ",
          "wrapped, with ", seen_.size(), " parameters, got ", parameters.size());
  size_t i = 0;
  for (const auto& item : parameters) {
    require(item.value().unsafeGetTensorImpl() == seen_[i].second,
            "[fully sharded] expected the module as it was wrapped, but ", seen_[i].first,
            " is another tensor now");
    ++i;
  }
}

void ShardedModule::after_forward() const {
  std::vector<std::string> names;
  for (size_t u = 0; u + 1 < units_->unit_count(); ++u) {
    if (!units_->was_called(u) && units_->was_called_past(u)) names.push_back(units_->unit_name(u));
  }
  require(names.empty(), "[fully sharded] expected units to be called by flashstep::run(unit, ",
          "...), got a forward that used the shards of ", join(names), " as if they were whole");
}

void ShardedModule::explain() const {
  try {
    throw;
  } catch (const c10::OutOfMemoryError&) {  // these are about no shape
    throw;
  } catch (const c10::AcceleratorError&) {
    throw;
  } catch (const c10::DistError&) {
    throw;
  } catch (const c10::Error& error) {
    std::vector<std::string> used, names;
    for (size_t u = 0; u + 1 < units_->unit_count(); ++u) {
      if (units_->was_called(u)) continue;
      names.push_back(units_->unit_name(u));
      if (units_->was_called_past(u)) used.push_back(names.back());
    }
    if (names.empty()) throw;
    const bool is_known = !used.empty();
    if (is_known) names = used;
    constexpr size_t kMost = 3;
    std::string others;
    if (names.size() > kMost) {
      others = str(" and ", names.size() - kMost, " more");
      names.resize(kMost);
    }
    const std::string sentence = error.what_without_backtrace();
    const std::string first_line = sentence.substr(0, sentence.find('\n'));
    const std::string these = join(names) + others;
    throw UserError(
        is_known ? str("[fully sharded] ", first_line, " (not called by flashstep::run(unit, ...) ",
                       "in this forward, and so not whole: ", these, ")")
                 : str("[fully sharded] ", first_line, " (should it come from one of ", these,
                       ": these are whole only where flashstep::run(unit, ...) calls them)"));
  }
}

}  // namespace flashstep
