#include "flashstep/sharded_units.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "flashstep/base/called_back.h"
#include "flashstep/base/text.h"
#include "flashstep/comm/agreement.h"
#include "flashstep/comm/peer_copies.h"
#include "flashstep/error.h"
#include "flashstep/parallel/backend.h"
#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/cost.h"
#include "flashstep/parallel/divided_tensors.h"
#include "flashstep/parallel/gradient_hooks.h"
#include "flashstep/parallel/reduction.h"
#include "flashstep/parallel/unit.h"
#include "flashstep/parallel/unit_checks.h"
#include "flashstep/parallel/unit_gradients.h"
#include "flashstep/parallel/unit_order.h"
#include "flashstep/parallel/unit_values.h"

namespace flashstep {
namespace {

using at::Tensor;

using CapturedNodes =
    std::unordered_map<torch::autograd::Node*, torch::autograd::GraphTask::ExecInfo>;

int graph_task() { return torch::autograd::get_current_graph_task_id(); }
bool is_in_backward() { return graph_task() != -1; }

class Engine : public DividingUnits, public std::enable_shared_from_this<Engine> {
 public:
  Engine(const std::vector<UnitOfTensors>& units, const Group& group,
         const FullyShardOptions& options)
      : group_(group), options_(options) {
    check_units(units, group, options);
    divide_ranks();
    std::vector<Tensor> all;
    for (const UnitOfTensors& unit : units)
      all.insert(all.end(), unit.tensors.begin(), unit.tensors.end());
    if (!options.fill) broadcast_from_first(all, group);
    options_.fill = nullptr;  // and what it holds
    at::Device device = options.device.value_or(at::kCPU);
    if (!options.device && !all.empty()) device = all.front().device();
    for (const Tensor& tensor : all) {  // before anything is divided
      require(options.device || tensor.device() == device,
              "[fully sharded] expected all parameters on one device, got some on ", device,
              " and some on ", tensor.device());
    }
    std::vector<Tensor> trained;
    for (size_t u = 0; u < units.size(); ++u) {
      units_.emplace_back(units[u], *groups_.shards, options);
      for (size_t i = 0; i < units[u].tensors.size(); ++i) {
        if (!units[u].tensors[i].requires_grad()) continue;
        trained.push_back(units[u].tensors[i]);
        places_.emplace_back(u, i);
      }
    }
    uses_.resize(units.size());
    device_ = device;
    stream_.emplace(group, device);
    gradients_.emplace(units_, *groups_.shards, device);
    choose_transport(device);
    hooks_ = std::make_unique<GradientHooks>(
        trained, [this](int64_t index) { fired(places_[index].first, places_[index].second); },
        /*averages=*/true);
  }

  // Shards stay behind, also of units that are whole between a forward and its backward.
  ~Engine() override {
    for (size_t u = 0; u < units_.size(); ++u) {
      drop_collected(u);
      try {
        if (units_[u].is_whole()) units_[u].reshard(*stream_);
      } catch (...) {  // a device that has failed: its error is on the way to the user
      }
      for (const ShardedTensor& t : units_[u].tensors()) {
        if (t.is_divided) note_left_shard(t.tensor);
      }
    }
  }

  // For optimizers, which know parameters alone.
  void note_all_divided() {
    if (groups_.shards->world_size() == 1) return;
    for (const ShardedUnit& unit : units_) {
      for (const ShardedTensor& t : unit.tensors()) {
        if (t.is_divided) note_divided(t.tensor, weak_from_this());
      }
    }
  }

  void begin_forward(size_t unit) override {
    const std::lock_guard lock(mutex_);
    require(!at::GradMode::is_enabled() || !was_called_past(unit),
            "[fully sharded] expected parameters to be used in forwards of their units alone, but ",
            "what was computed of the shards of unit ", units_[unit].name(), " has a graph: a ",
            "penalty or a metric of parameters has no gradients (NoGradGuard, torch.no_grad)");
    if (unit != root()) {
      order_.call(unit);
    } else if (uses_[unit].open == 0) {  // not in a forward of it, as run() of a wrapped Sequential
      if (!is_in_backward()) begin_step();
      order_.begin();
      for (Use& use : uses_) use.was_called = false;
    }
    Use& use = uses_[unit];
    use.was_called = true;
    ++use.open;
    gather(unit);
    if (is_in_backward()) return;  // it is computed again
    calls_.add(unit);
    count_pieces(unit);
    prefetch(order_.next_in_forward());
  }

  // A leaf's hook would stay for the next forwards: its gradient comes at the end of backward.
  void watch_input(size_t unit, const Tensor& input) override {
    if (!at::GradMode::is_enabled() || !input.defined() || !input.requires_grad()) return;
    const std::lock_guard lock(mutex_);
    uses_[unit].given.push_back(input.unsafeGetTensorImpl());
    if (!units_[unit].has_frozen()) return;
    ++uses_[unit].inputs;
    if (input.is_leaf() && !is_in_backward()) return;
    input.register_hook([weak = weak_from_this(), unit](const Tensor& /*gradient*/) {
      if (const auto self = weak.lock()) called_back([&] { self->after_input(unit); });
    });
  }

  void watch(size_t unit, const Tensor& output) override {
    if (!output.defined()) return;
    const std::lock_guard lock(mutex_);
    require(!units_[unit].lends(output), "[fully sharded] expected what the forward of unit ",
            units_[unit].name(), " returns to be computed, got one of its parameters, or a view ",
            "of one, whose memory is freed behind the forward");
    if (!output.requires_grad() || output.is_leaf()) return;
    // Handed on as it came, its gradient tells nothing of this unit.
    if (std::ranges::count(uses_[unit].given, output.unsafeGetTensorImpl()) > 0) return;
    output.register_hook([weak = weak_from_this(), unit, graph = graphs_,
                          accumulators = units_[unit].accumulators()](const Tensor&) {
      called_back([&] {
        const auto self = weak.lock();
        require(self != nullptr, "[fully sharded] expected the FullyShardedDataParallel to live ",
                "until the backward of what it returned, got a backward after its end, when ",
                "parameters are shards");
        self->before_backward(unit, accumulators);
      });
    });
  }

  void end_forward(size_t unit) override {
    const std::lock_guard lock(mutex_);
    --uses_[unit].open;
    if (uses_[unit].open == 0) uses_[unit].given.clear();
    if (uses_[unit].open > 0 || uses_[unit].in_backward) return;
    if (is_in_backward() && at::GradMode::is_enabled()) return;  // its backward is next
    if (!stays_whole(unit)) units_[unit].reshard(*stream_);
    if (unit != root()) return;
    free_idle();  // what was gathered ahead, and not called
    if (!is_in_backward()) compare_calls();
  }

  void abandon() override {
    const std::lock_guard lock(mutex_);
    for (ShardedUnit& unit : units_) unit.give_up(*stream_);
    if (copies_) copies_->give_up(*stream_);
    // What is freed below may still be read by copies.
    if (!is_being_captured(device_)) stream_->join();
    for (size_t u = 0; u < units_.size(); ++u) {
      drop_collected(u);
      uses_[u].open = uses_[u].came = 0;
      uses_[u].given.clear();
    }
    while (!in_flight_.empty()) finish_oldest();
    held_.clear();
    calls_ = {};
    for (ShardedUnit& unit : units_) {
      if (!unit.has_lost_gather()) unit.reshard(*stream_);
    }
    order_.forget();
    if (!is_in_backward()) in_backward_ = false;  // else it does not come to its end
  }

  bool is_unfinished() const override { return in_backward_; }
  bool was_called(size_t unit) const override { return uses_[unit].was_called; }
  size_t unit_count() const override { return units_.size(); }
  const std::string& unit_name(size_t unit) const override { return units_[unit].name(); }

  // Autograd has met a shard in a forward: its node expects a gradient of the shard's shape.
  bool was_called_past(size_t unit) const override {
    for (const ShardedTensor& t : units_[unit].tensors()) {
      if (!t.tensor.requires_grad()) continue;
      const auto node = torch::autograd::impl::try_get_grad_accumulator(t.tensor);
      if (node && node->input_metadata(0).is_same_shape(t.shard) &&
          t.sizes != t.shard.sizes().vec())
        return true;
    }
    return false;
  }

  Tensor gradient_norm() const override { return gradients_->norm(); }
  Tensor clip_grad_norm(double max_norm) override { return gradients_->clip(max_norm); }

  const Group& shard_group() const override { return *groups_.shards; }
  bool updates_in_backward() const override { return gradients_->are_used_in_backward(); }
  void update_in_backward(std::function<void(const Tensor& not_finite)> update) override {
    const std::lock_guard lock(mutex_);
    gradients_->update_in_backward(std::move(update));
  }

  NamedTensors gather(std::optional<int> to) const override {
    take_values();
    return gather_whole(units_, group_, to);
  }
  NamedTensors gather_evenly() const override {
    take_values();
    return flashstep::gather_evenly(units_, groups_);
  }
  std::vector<Shard> shards() const override { return shards_of(units_, groups_); }
  void load_parts(const std::function<Tensor(const Shard& shard)>& part) override {
    take_values();
    // What a forward without a backward left whole would go on with the values of before.
    for (size_t u = 0; u < units_.size(); ++u) {
      if (uses_[u].open == 0 && !uses_[u].in_backward) units_[u].reshard(*stream_);
    }
    flashstep::load_parts(units_, groups_, part);
  }

  bool can_be_captured() const override { return copies_ && copies_->can_be_captured(); }
  std::string transport() const override { return transport_; }

  int64_t gathered_bytes() const override {
    int64_t bytes = 0;
    for (const ShardedUnit& unit : units_) bytes += unit.gathered_bytes();
    return bytes;
  }

 private:
  struct Use {
    bool was_called = false;   // since the root's last forward began
    int open = 0;              // forwards that have not ended
    bool in_backward = false;  // its whole gradients are being collected
    size_t awaited = 0;        // gradients that have not come yet
    int64_t accumulators = 0;  // of the unit, that they come from
    // The graph task of autograd's, and the accumulators, that have all come last.
    std::pair<int, int64_t> complete = {-1, 0};
    // Of forwards that a backward may come of:
    int pieces = 0;       // that its gradients may come in: each call that is computed again, and
    int64_t direct = -1;  // all others with the same accumulators, which the last of them had
    int inputs = 0;       // that want gradients, where frozen tensors are needed for these
    int came = 0;         // of them, in this backward
    std::vector<const c10::TensorImpl*> given =
        {};  // what open forwards were given, with gradients
  };
  void take_values() const {
    for (ShardedUnit& unit : units_) unit.take_values();
  }
  size_t root() const { return units_.size() - 1; }

  void divide_ranks() {
    if (options_.shard_ranks == 0 || options_.shard_ranks == group_.world_size()) return;
    groups_.shards = &group_.split(group_.rank() / options_.shard_ranks);
    groups_.replicas = &group_.split(group_.rank() % options_.shard_ranks);
  }

  void choose_transport(at::Device device) {
    std::vector<const ShardedTensors*> lists;
    for (const ShardedUnit& unit : units_) lists.push_back(&unit.tensors());
    if (options_.peer_copies) copies_ = make_unit_copies(groups_, device, lists);
    for (ShardedUnit& unit : units_) {
      unit.use(copies_ ? copies_->messages()
                       : make_collective_messages(unit.name(), unit.device(), groups_));
    }
    transport_ = copies_ ? kCopies : transport_of({at::empty({0}, device)}, *groups_.shards);
  }

  // From its forward to its backward. Where its shards have gradients a step may come before that,
  // and optimizers know shards alone.
  bool stays_whole(size_t unit) const {
    const auto& tensors = units_[unit].tensors();
    return at::GradMode::is_enabled() && units_[unit].has_trained() &&
           (unit == root() || !options_.reshard_after_forward) &&
           std::none_of(tensors.begin(), tensors.end(),
                        [](const ShardedTensor& t) { return t.tensor.grad().defined(); });
  }

  // Of a forward of the root.
  void begin_step() {
    take_values();  // all, before anything is sent
    if (copies_) copies_->begin();
    with_graph_ = at::GradMode::is_enabled();
    for (const ShardedUnit& unit : units_) {
      for (const ShardedTensor& t : unit.tensors()) {
        require(t.is_trained || !t.tensor.requires_grad(), "[fully sharded] expected ", t.name,
                ", which was frozen when it was wrapped, to stay frozen: wrap the module when all ",
                "that will be trained requires gradients, and freeze what comes later");
      }
    }
    if (!with_graph_) return;
    const bool has_graphs = graphs_.use_count() > 1;
    if (!std::exchange(had_backward_, false) && has_graphs) return;
    for (Use& use : uses_) {
      use.pieces = use.inputs = 0;
      use.direct = -1;
    }
  }

  // None of the calls in a CUDA graph, which repeats them.
  void compare_calls() {
    if (group_.world_size() == 1 || is_being_captured(device_)) return;
    const std::string difference = calls_.compare(group_);
    if (difference.empty()) return;
    abandon();
    throw AgreedError(difference);
  }

  void count_pieces(size_t unit) {
    Use& use = uses_[unit];
    const int64_t own = units_[unit].accumulators();
    const bool is_direct = at::GradMode::is_enabled();
    if (!with_graph_ || (is_direct && std::exchange(use.direct, own) == own)) return;
    ++use.pieces;
  }

  void gather(size_t unit) {
    units_[unit].start_gather(*stream_);
    units_[unit].finish_gather(*stream_);
  }

  void prefetch(std::optional<size_t> unit) {
    if (unit) units_[*unit].start_gather(*stream_);
  }

  // Whatever is whole and used by nobody.
  void free_idle() {
    for (size_t u = 0; u < units_.size(); ++u) {
      const bool is_kept = uses_[u].was_called && stays_whole(u);
      if (uses_[u].open == 0 && !uses_[u].in_backward && !is_kept) units_[u].reshard(*stream_);
    }
  }

  // A gradient has reached what the unit's forward returned.
  void before_backward(size_t unit, int64_t accumulators) {
    const std::lock_guard lock(mutex_);
    require(!at::GradMode::is_enabled(), "[fully sharded] expected a backward without ",
            "create_graph, got one with it: a second one would need parameters whose memory is ",
            "freed, and the means of gradients have no graph");
    begin_backward();
    // Of an output that its own weights do not lead to: a graph task completes gradients once.
    if (uses_[unit].complete == std::pair(graph_task(), accumulators)) return;
    uses_[unit].accumulators = accumulators;
    gather(unit);
    collect(unit);
    prefetch(order_.next_in_backward(unit == root() ? std::nullopt : std::optional(unit)));
  }

  // The first gradient of a backward sees to it that the outermost one ends with the means.
  void begin_backward() {
    if (in_backward_) return;
    const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
    is_of_some_inputs_ = chosen != nullptr && !chosen->empty();
    if (is_of_some_inputs_) refuse_captures(*chosen);
    in_backward_ = true;
    gradients_->begin_backward();
    const auto end = [weak = weak_from_this()] {
      if (const auto self = weak.lock()) called_back([&] { self->end(); });
    };
    // Behind the callbacks that backward itself queues.
    torch::autograd::Engine::get_default_engine().queue_callback(
        [end] { torch::autograd::Engine::get_default_engine().queue_callback(end); });
  }

  // torch::autograd::grad takes gradients out before anybody sees them.
  void refuse_captures(const CapturedNodes& nodes) const {
    for (const auto& [unit, index] : places_) {
      const ShardedTensor& t = units_[unit].tensors()[index];
      const auto node = torch::autograd::impl::try_get_grad_accumulator(t.tensor);
      const auto found = node ? nodes.find(node.get()) : nodes.end();
      require(found == nodes.end() || !found->second.captures_ || found->second.captures_->empty(),
              "[fully sharded] expected torch::autograd::grad of what no unit has, got it of ",
              t.name, ", whose gradient would be this rank's own: backward() gives the means");
    }
  }

  // From now on .grad is of the whole tensors.
  void collect(size_t unit) {
    Use& use = uses_[unit];
    if (use.in_backward || !units_[unit].has_trained()) return;
    use.in_backward = true;
    // Of another call of it, which is computed again. It has one message at a time.
    while (std::ranges::count(in_flight_, unit) > 0) take_oldest();
    use.awaited = 0;
    for (ShardedTensor& t : units_[unit].tensors()) {
      if (!t.is_trained) continue;
      t.earlier = std::exchange(t.tensor.mutable_grad(), {});
      t.has_gradient = false;
      use.awaited += t.tensor.requires_grad() ? 1 : 0;
    }
  }

  // Its shards have the gradients of before: what this backward has collected, or sends, goes.
  void drop_collected(size_t unit) {
    const bool travels = std::ranges::count(in_flight_, unit) > 0;
    if (!std::exchange(uses_[unit].in_backward, false) && !travels) return;
    for (ShardedTensor& t : units_[unit].tensors()) {
      if (t.is_trained) t.tensor.mutable_grad() = std::exchange(t.earlier, {});
    }
  }

  // The gradient of what the unit's forward was given has come.
  void after_input(size_t unit) {
    const std::lock_guard lock(mutex_);
    ++uses_[unit].came;
    reshard_unless_needed(unit);
  }

  // Frozen tensors may be needed for the gradient of the unit's input, when all gradients of its
  // own are there. The root's inputs are not known.
  void reshard_unless_needed(size_t unit) {
    const Use& use = uses_[unit];
    if (use.in_backward || use.open > 0) return;
    if (units_[unit].has_frozen() && (unit == root() || use.came < use.inputs)) return;
    units_[unit].reshard(*stream_);
  }

  // Called by autograd when it has added to the gradient.
  void fired(size_t unit, size_t index) {
    const std::lock_guard lock(mutex_);
    ShardedTensor& t = units_[unit].tensors()[index];
    require(units_[unit].is_whole(), "[fully sharded] expected unit ", units_[unit].name(),
            " to be called by run(), but ", t.name, " was used without it");
    require(uses_[unit].in_backward, "[fully sharded] expected a loss made of what unit ",
            units_[unit].name(), " returned, but ", t.name, " was used beside it");
    require(t.tensor.grad().layout() == at::kStrided,
            "[fully sharded] expected dense gradients, got a sparse one for ", t.name);
    if (std::exchange(t.has_gradient, true)) return;
    if (--uses_[unit].awaited > 0 || uses_[unit].open > 0) return;
    reduce(unit, 0);
  }

  void reduce(size_t unit, double missing) {
    units_[unit].start_reduction(*stream_, missing, /*used_beside=*/updates_in_backward());
    uses_[unit].in_backward = false;
    uses_[unit].complete = {graph_task(), uses_[unit].accumulators};
    reshard_unless_needed(unit);
    if (!in_flight_.empty()) units_[in_flight_.back()].continue_reduction(*stream_);
    in_flight_.push_back(unit);
    while (in_flight_.size() > kUnitsInFlight) take_oldest();
  }

  size_t finish_oldest() {
    const size_t unit = in_flight_.front();
    in_flight_.erase(in_flight_.begin());
    units_[unit].finish_reduction(*stream_);
    return unit;
  }

  void take_oldest() {
    const size_t unit = finish_oldest();
    if (!updates_in_backward()) return;
    // It is updated once, when its last piece is there, and while its tensors are shards.
    if (uses_[unit].pieces > 1 || !units_[unit].is_sharded()) {
      held_.insert(unit);
    } else {
      update(unit);
    }
  }

  void update(size_t unit) {
    stream_->run([&] { gradients_->use(unit); });
  }

  // Of the outermost backward.
  void end() {
    const std::lock_guard lock(mutex_);
    if (!in_backward_) return;
    const std::string missing = end_units();
    for (ShardedUnit& unit : units_) unit.reshard(*stream_);
    for (Use& use : uses_) use.came = 0;
    // Nothing is updated with what is not a number.
    while (!in_flight_.empty() && missing.empty()) take_oldest();
    while (!in_flight_.empty()) finish_oldest();
    for (const size_t unit : std::exchange(held_, {})) {
      if (missing.empty()) update(unit);
    }
    gradients_->hand_over(*stream_);
    if (copies_) copies_->end(*stream_);
    stream_->join();
    in_backward_ = false;
    had_backward_ = true;
    require(missing.empty(), missing);
  }

  // Those that still wait for gradients: of torch::autograd::grad, or of parameters that the loss
  // does not depend on.
  std::string end_units() {
    std::vector<std::string> names;
    for (size_t u = 0; u < units_.size(); ++u) {
      if (!uses_[u].in_backward) continue;
      bool any = false;
      std::vector<std::string> without;
      for (ShardedTensor& t : units_[u].tensors()) {
        any = any || t.has_gradient;
        if (t.tensor.requires_grad() && !t.has_gradient) without.push_back(t.name);
      }
      if (!any && is_of_some_inputs_) {
        drop_collected(u);
        continue;
      }
      names.insert(names.end(), without.begin(), without.end());
      for (ShardedTensor& t : units_[u].tensors()) t.has_gradient = true;
      // No rank trains on with a mean that a gradient is missing in.
      reduce(u, std::numeric_limits<double>::quiet_NaN());
    }
    if (names.empty()) return "";
    return str("[fully sharded] expected a gradient for every parameter of a unit that the loss ",
               "depends on, but backward gave none for ", join(names), " on rank ", group_.rank(),
               ": freeze what the loss does not depend on");
  }

  const Group& group_;
  FullyShardOptions options_;
  ShardGroups groups_{&group_, &group_};
  at::Device device_ = at::kCPU;
  std::unique_ptr<UnitCopies> copies_;  // null: collectives
  std::string transport_;
  mutable std::vector<ShardedUnit> units_;  // the last is the root; mutable: take_values()
  std::vector<Use> uses_;
  std::vector<std::pair<size_t, size_t>> places_;  // of the trained tensors: unit and index
  UnitOrder order_;                                // of all but the root
  std::vector<size_t> in_flight_;                  // units whose gradients travel
  std::set<size_t> held_;                          // units that are updated at the end of backward
  std::optional<SideStream> stream_;
  bool in_backward_ = false, is_of_some_inputs_ = false;
  bool with_graph_ = false;    // the root's last forward
  bool had_backward_ = false;  // since a forward with a graph has begun
  CallsOfUnits calls_;         // of forwards
  std::shared_ptr<void> graphs_ = std::make_shared<char>();  // held by those of forwards
  std::optional<UnitGradients> gradients_;
  std::recursive_mutex mutex_;  // hooks come from autograd's threads; a backward may be nested
  std::unique_ptr<GradientHooks> hooks_;  // last: gone before what it calls
};

}  // namespace

std::shared_ptr<ShardedUnits> shard_units(const std::vector<UnitOfTensors>& units,
                                          const Group& group, const FullyShardOptions& options) {
  auto engine = std::make_shared<Engine>(units, group, options);
  engine->note_all_divided();
  return engine;
}

}  // namespace flashstep
