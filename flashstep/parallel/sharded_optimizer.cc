#include "flashstep/parallel/sharded_optimizer.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/shards.h"

namespace flashstep::parallel {
namespace {

using torch::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

std::string bytes_of(const Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

void load_bytes(Optimizer& optimizer, const std::string& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  optimizer.load(archive);
}

}  // namespace

ShardedOptimizerBase::ShardedOptimizerBase(const Groups& groups,
                                           std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                                           const comm::Group& group, Factory make_inner)
    : Optimizer(groups, std::move(defaults)),
      group_(group),
      make_inner_(std::move(make_inner)),
      loads_(group.world_size(), 0) {
  reconcile();
}

void ShardedOptimizerBase::reconcile() {
  struct New {
    Tensor parameter;
    size_t group;
  };
  std::vector<New> found;
  std::vector<int64_t> sizes;
  std::set<void*> seen;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    for (const Tensor& parameter : param_groups_[g].params()) {
      void* identity = parameter.unsafeGetTensorImpl();
      if (owners_.contains(identity) || !seen.insert(identity).second) continue;
      found.push_back({parameter, g});
      // A frozen parameter has an owner, in case it is unfrozen, but no state.
      sizes.push_back(parameter.requires_grad() ? parameter.numel() : 0);
    }
  }
  const std::vector<int> ranks = assign_greedily(sizes, loads_);
  for (size_t i = 0; i < found.size(); ++i) {
    owners_[found[i].parameter.unsafeGetTensorImpl()] = ranks[i];
  }
  if (!inner_) {
    inner_ = make_inner_(groups_of(group_.rank()));
    return;
  }
  for (size_t g = inner_->param_groups().size(); g < param_groups_.size(); ++g) {
    inner_->add_param_group(
        OptimizerParamGroup(std::vector<Tensor>(), param_groups_[g].options().clone()));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (ranks[i] != group_.rank()) continue;
    inner_->param_groups()[found[i].group].params().push_back(found[i].parameter);
  }
}

// The groups of the inner optimizer of `rank`, each parameter in the first group that names it.
ShardedOptimizerBase::Groups ShardedOptimizerBase::groups_of(int rank) const {
  Groups groups;
  std::set<void*> seen;
  for (const OptimizerParamGroup& group : param_groups_) {
    std::vector<Tensor> own;
    for (const Tensor& parameter : group.params()) {
      void* identity = parameter.unsafeGetTensorImpl();
      if (owners_.at(identity) == rank && seen.insert(identity).second) own.push_back(parameter);
    }
    groups.emplace_back(std::move(own), group.options().clone());
  }
  return groups;
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

void ShardedOptimizerBase::update_with(const std::function<void(Optimizer& inner)>& update) {
  consolidated_.reset();
  reconcile();
  carry_options();
  update(*inner_);
  send_parameters();
}

void ShardedOptimizerBase::send_parameters() {
  std::vector<Tensor> tensors;
  std::vector<int> owners;
  std::set<void*> seen;
  for (const OptimizerParamGroup& group : param_groups_) {
    for (const Tensor& parameter : group.params()) {
      void* identity = parameter.unsafeGetTensorImpl();
      if (!parameter.requires_grad() || !seen.insert(identity).second) continue;
      tensors.push_back(parameter);
      owners.push_back(owners_.at(identity));
    }
  }
  exchange(tensors, owners, group_);
}

int ShardedOptimizerBase::owner(const Tensor& parameter) const {
  const auto found = owners_.find(parameter.unsafeGetTensorImpl());
  return found == owners_.end() ? -1 : found->second;
}

double ShardedOptimizerBase::imbalance() const { return parallel::imbalance(loads_); }

// An inner optimizer over all parameters with everybody's state, on rank `to`; else nullptr.
std::unique_ptr<Optimizer> ShardedOptimizerBase::gather_shards(int to) {
  const std::string own = bytes_of(*inner_);
  auto whole = group_.rank() == to ? make_inner_(param_groups_) : nullptr;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    const std::string bytes = group_.broadcast(rank == group_.rank() ? own : "", rank);
    if (!whole) continue;
    const auto shard = make_inner_(groups_of(rank));
    load_bytes(*shard, bytes);
    for (auto& [parameter, state] : shard->state()) whole->state()[parameter] = std::move(state);
  }
  return whole;
}

void ShardedOptimizerBase::consolidate(int to) {
  require(to >= 0 && to < group_.world_size(), "[ShardedOptimizer] expected a rank below ",
          group_.world_size(), " to bring the state to, got ", to);
  reconcile();
  carry_options();
  consolidated_ = gather_shards(to);
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
  whole->load(archive);
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    param_groups_[g].set_options(whole->param_groups()[g].options().clone());
  }
  carry_options();
  inner_->state().clear();
  for (auto& [parameter, state] : whole->state()) {
    if (owners_.at(parameter) == group_.rank()) inner_->state()[parameter] = std::move(state);
  }
}

}  // namespace flashstep::parallel
