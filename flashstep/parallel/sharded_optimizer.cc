#include "flashstep/sharded_optimizer.h"

#include <optional>
#include <sstream>
#include <utility>

#include "flashstep/base/hash.h"
#include "flashstep/ops.h"
#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/collective_error.h"
#include "flashstep/parallel/divided_tensors.h"
#include "flashstep/parallel/optimizer_state.h"
#include "flashstep/parallel/shard_plan.h"
#include "flashstep/parallel/shards.h"
#include "flashstep/parallel/state_pieces.h"

namespace flashstep {
namespace {

using torch::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

// While it lives, gradients of another dtype than their parameter's are copies in that one.
class WidenedGradients {
 public:
  explicit WidenedGradients(const std::vector<OptimizerParamGroup>& groups) {
    for (const OptimizerParamGroup& group : groups) {
      for (const Tensor& parameter : group.params()) {
        const Tensor gradient = parameter.grad();
        if (!gradient.defined() || gradient.scalar_type() == parameter.scalar_type()) continue;
        kept_.emplace_back(parameter, gradient);
        parameter.mutable_grad() = gradient.to(parameter.scalar_type());
      }
    }
  }
  ~WidenedGradients() {
    for (const auto& [parameter, gradient] : kept_) parameter.mutable_grad() = gradient;
  }
  WidenedGradients(const WidenedGradients&) = delete;
  WidenedGradients& operator=(const WidenedGradients&) = delete;

 private:
  std::vector<std::pair<Tensor, Tensor>> kept_;  // parameters and their own gradients
};

// When it ends, every parameter that an update may have changed has another version. LibTorch's
// optimizers write through data(), which has a version of its own.
class GrowingVersions {
 public:
  explicit GrowingVersions(const std::vector<OptimizerParamGroup>& groups) {
    for (const OptimizerParamGroup& group : groups) {
      for (const Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) before_.emplace_back(parameter, parameter._version());
      }
    }
  }
  ~GrowingVersions() {
    for (const auto& [parameter, version] : before_) {
      if (parameter._version() == version) note_written(parameter);
    }
  }
  GrowingVersions(const GrowingVersions&) = delete;
  GrowingVersions& operator=(const GrowingVersions&) = delete;

 private:
  std::vector<std::pair<Tensor, uint32_t>> before_;
};

// What ranks compare of groups. An optimizer may keep its options to itself; then their rate and
// number are all there is to compare.
std::vector<std::string> lines_of(const std::vector<OptimizerParamGroup>& groups) {
  std::vector<std::string> lines;
  for (const OptimizerParamGroup& group : groups) {
    const std::string whose = str(" of parameter group ", lines.size());
    std::string line = str(group.params().size(), " parameters");
    if (group.has_options()) {
      try {
        line += str(", learning rate ", group.options().get_lr());
        torch::serialize::OutputArchive archive;
        group.options().serialize(archive);
        std::ostringstream bytes;
        archive.save_to(bytes);
        line += str(", all options (as a hash) ", hash_bytes(bytes.str()).substr(0, 8));
      } catch (const c10::Error&) {  // they do not tell
      }
    }
    lines.push_back(line + whose);
  }
  return lines;
}

}  // namespace

ShardedOptimizerBase::ShardedOptimizerBase(const Groups& groups,
                                           std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                                           const Group& group, const ShardOptions& options,
                                           Factory make_inner, bool takes_any_gradients)
    : Optimizer(groups, std::move(defaults)),
      group_(group),
      mode_(options.mode),
      takes_any_gradients_(takes_any_gradients),
      make_inner_(std::move(make_inner)),
      plan_(make_shard_plan(numbered_parameters(), group, options, lines_of(param_groups_))) {
  reconcile();
}

torch::Tensor ShardedOptimizerBase::clip_grad_norm(double max_norm) {
  const std::vector<Tensor> gradients = this->gradients();
  const Tensor norm = global_norm(gradients);
  clip_to_norm(gradients, norm, max_norm);
  return norm;
}

Tensor ShardedOptimizerBase::global_norm(const std::vector<Tensor>& gradients) const {
  const NamedTensors parameters = numbered_parameters();
  const at::Device device = parameters.empty() ? at::kCPU : parameters.front().second.device();
  const Tensor own = grad_norm_on(device, gradients);
  return gradients_are_divided() ? norm_over_ranks(own, group_) : own;
}

// Parameters that the plan does not have, each in the first group that names it.
std::vector<GroupedParameter> ShardedOptimizerBase::new_parameters() {
  std::vector<GroupedParameter> found;
  std::unordered_set<void*> seen;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    for (const Tensor& parameter : param_groups_[g].params()) {
      // Flat memory holds what is trained; a frozen parameter joins when it is unfrozen.
      if (mode_ == ShardMode::kFlat && !parameter.requires_grad()) continue;
      void* const identity = parameter.unsafeGetTensorImpl();
      if (!known_.contains(identity) && seen.insert(identity).second)
        found.push_back({parameter, g});
    }
  }
  return found;
}

ShardedOptimizerBase::Groups ShardedOptimizerBase::own_groups(
    const std::vector<OwnPiece>& pieces) const {
  std::vector<std::vector<Tensor>> tensors(param_groups_.size());
  for (const OwnPiece& piece : pieces) tensors[piece.group].push_back(piece.inner);
  Groups groups;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    groups.emplace_back(std::move(tensors[g]), param_groups_[g].options().clone());
  }
  return groups;
}

void ShardedOptimizerBase::reconcile() {
  const std::vector<GroupedParameter> found = new_parameters();
  if (!found.empty()) {
    const std::vector<OwnPiece> added = plan_->add(found);  // may refuse them, again and again
    for (const auto& [tensor, group] : found) known_.insert(tensor.unsafeGetTensorImpl());
    own_.insert(own_.end(), added.begin(), added.end());
    if (inner_) {
      const Groups groups = own_groups(added);
      for (size_t g = inner_->param_groups().size(); g < groups.size(); ++g) {
        inner_->add_param_group(
            OptimizerParamGroup(std::vector<Tensor>(), groups[g].options().clone()));
      }
      for (const OwnPiece& piece : added) {
        inner_->param_groups()[piece.group].params().push_back(piece.inner);
      }
    }
  }
  if (!inner_) make_inner();
  for (size_t g = inner_->param_groups().size(); g < param_groups_.size(); ++g) {
    inner_->add_param_group(
        OptimizerParamGroup(std::vector<Tensor>(), param_groups_[g].options().clone()));
  }
}

// What it refuses may be on some ranks only.
void ShardedOptimizerBase::make_inner() {
  std::optional<UserError> mistake;
  try {
    inner_ = make_inner_(own_groups(own_));
  } catch (const UserError& error) {
    mistake = error;
  }
  if (group_.world_size() > 1) mistake = CollectiveError(mistake, group_).first();
  if (mistake) throw AgreedError(*mistake);
}

void ShardedOptimizerBase::carry_options() {
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    inner_->param_groups()[g].set_options(param_groups_[g].options().clone());
  }
}

Tensor ShardedOptimizerBase::step(LossClosure closure) {
  Tensor loss;
  if (closure) {
    const torch::AutoGradMode with_grad(true);
    loss = closure();
  }
  update_with([](Optimizer& inner) { inner.step(); });
  return loss;
}

void ShardedOptimizerBase::set_inner_parameters(
    const std::function<bool(const OwnPiece&)>& chosen) {
  for (OptimizerParamGroup& group : inner_->param_groups()) group.params().clear();
  for (const OwnPiece& piece : own_) {
    if (chosen(piece)) inner_->param_groups()[piece.group].params().push_back(piece.inner);
  }
}

void ShardedOptimizerBase::update_with(const std::function<void(Optimizer& inner)>& update) {
  consolidated_.reset();
  reconcile();
  carry_options();
  plan_->begin_update(own_);
  const auto all = [](const OwnPiece&) { return true; };
  try {
    for (size_t part = 0; part < plan_->parts(); ++part) {
      set_inner_parameters([&](const OwnPiece& piece) { return piece.part == part; });
      {
        const GrowingVersions versions(inner_->param_groups());
        std::optional<WidenedGradients> widened;
        if (!takes_any_gradients_) widened.emplace(inner_->param_groups());
        update(*inner_);
      }
      plan_->send(part);
    }
  } catch (...) {
    set_inner_parameters(all);
    throw;
  }
  set_inner_parameters(all);
  plan_->finish();
  for (const OwnPiece& piece : own_) {
    if (!piece.inner.is_same(piece.parameter)) piece.inner.mutable_grad().reset();
  }
}

std::vector<Tensor> ShardedOptimizerBase::gradients() {
  reconcile();
  return plan_->gradients(own_);
}

ShardedOptimizerBase::~ShardedOptimizerBase() = default;

void ShardedOptimizerBase::zero_grad(bool set_to_none) {
  plan_->drop_gradients();  // first: what is divided cannot be set to zero
  Optimizer::zero_grad(set_to_none);
}

bool ShardedOptimizerBase::gradients_are_divided() const { return plan_->divided(); }
int ShardedOptimizerBase::owner(const Tensor& parameter) const { return plan_->owner(parameter); }
std::vector<int64_t> ShardedOptimizerBase::elements_by_rank() const {
  return plan_->elements_by_rank();
}
std::string ShardedOptimizerBase::transport() const { return plan_->transport(); }

double ShardedOptimizerBase::imbalance() const { return flashstep::imbalance(elements_by_rank()); }

NamedTensors ShardedOptimizerBase::named_own(const NamedTensors& parameters) const {
  NamedTensors result;
  for (const NamedPiece& piece : own_pieces(parameters))
    result.emplace_back(name_of(piece), piece.own);
  return result;
}

std::vector<NamedPiece> ShardedOptimizerBase::own_pieces(const NamedTensors& parameters) const {
  std::vector<NamedPiece> pieces;
  for (const auto& [name, parameter] : parameters) {
    for (const OwnPiece& piece : own_) {
      if (!piece.parameter.is_same(parameter)) continue;
      const bool is_whole = piece.inner.is_same(parameter);
      pieces.push_back({name, parameter, is_whole ? -1 : piece.begin, piece.end, piece.inner});
    }
  }
  return pieces;
}

NamedTensors ShardedOptimizerBase::own_share(NamedTensors state,
                                             const NamedTensors& parameters) const {
  return cut_joined(in_memory(std::move(state)), parameters, own_pieces(parameters));
}

// All parameters under their number, each once.
NamedTensors ShardedOptimizerBase::numbered_parameters() const {
  NamedTensors result;
  std::unordered_set<void*> seen;
  for (const OptimizerParamGroup& group : param_groups_) {
    for (const Tensor& parameter : group.params()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      result.emplace_back(flashstep::str(result.size()), parameter);
    }
  }
  return result;
}

void ShardedOptimizerBase::consolidate(int to) {
  require(to >= 0 && to < group_.world_size(), "[ShardedOptimizer] expected a rank below ",
          group_.world_size(), " to bring the state to, got ", to);
  reconcile();
  carry_options();
  const NamedTensors parameters = numbered_parameters();
  NamedTensors state = gather_tensors(read_state(*inner_, named_own(parameters)), group_, to);
  consolidated_.reset();
  if (group_.rank() != to) return;
  auto whole = make_inner_(param_groups_);
  write_state(*whole, parameters, join_pieces(std::move(state), parameters), make_inner_);
  consolidated_ = std::move(whole);
}

void ShardedOptimizerBase::save(torch::serialize::OutputArchive& archive) const {
  require(consolidated_ != nullptr, "[ShardedOptimizer] expected consolidate(", group_.rank(),
          "), called on all ranks after the last step, before save() on rank ", group_.rank());
  consolidated_->save(archive);
}

void ShardedOptimizerBase::load(torch::serialize::InputArchive& archive) {
  consolidated_.reset();
  reconcile();
  const auto whole = make_inner_(param_groups_);
  load_repeated(*whole, [&] { whole->load(archive); });
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    param_groups_[g].set_options(whole->param_groups()[g].options().clone());
  }
  carry_options();
  const NamedTensors parameters = numbered_parameters();
  const NamedTensors state = own_share(read_state(*whole, parameters), parameters);
  write_state(*inner_, named_own(parameters), state, make_inner_);
}

Tensor norm_over_ranks(const Tensor& own_norm, const Group& group) {
  constexpr const char* kWhat = "the norm of gradients";
  const torch::NoGradGuard no_grad;
  Tensor own = own_norm.to(torch::kDouble).square().reshape({1});
  Tensor all = torch::empty({group.world_size()}, own.options());
  group.wait(group.guarded(kWhat, [&] { return group.process_group()._allgather_base(all, own); }),
             kWhat);
  Tensor sum = all[0];
  for (int rank = 1; rank < group.world_size(); ++rank) sum = sum + all[rank];
  return sum.sqrt().to(own_norm.dtype());
}

}  // namespace flashstep
