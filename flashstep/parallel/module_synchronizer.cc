#include "flashstep/detail/module_synchronizer.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "flashstep/base/called_back.h"
#include "flashstep/comm/agreement.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/parallel/divided_tensors.h"
#include "flashstep/parallel/reduction.h"

namespace flashstep {
namespace {

// Small tensors travel together up to this: a message of 32 MiB takes milliseconds on any link, so
// its start (10 to 100 us) is lost in it, and the copy it needs stays small.
constexpr int64_t kPieceBytes = 32 << 20;

struct Named {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
};

Named parameters_of(const SynchronizedModule& module) {
  Named named;
  for (auto& [name, parameter] : module.parameters()) {
    named.tensors.push_back(parameter);
    named.names.push_back(name);
  }
  return named;
}

// Elements of an expanded tensor that lie in one place are written once.
void write(at::Tensor tensor, at::Tensor value) {
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) != 0 || tensor.size(d) <= 1) continue;
    tensor = tensor.narrow(d, 0, 1);
    value = value.narrow(d, 0, 1);
  }
  tensor.copy_(value);
}

// One message: tensors of one kind.
void broadcast_piece(const std::vector<at::Tensor>& piece, const Group& group) {
  std::vector<at::Tensor> flat_parts;
  for (const at::Tensor& tensor : piece) flat_parts.push_back(tensor.contiguous().view({-1}));
  const at::Tensor flat = at::cat(flat_parts);
  group.broadcast(flat.view(at::kByte), 0);  // Gloo knows few dtypes, of those complex none
  if (group.is_first()) return;
  int64_t offset = 0;
  for (const at::Tensor& tensor : piece) {
    write(tensor, flat.slice(0, offset, offset + tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace

void broadcast_from_first(const std::vector<at::Tensor>& tensors, const Group& group) {
  torch::NoGradGuard no_grad;
  struct Open {
    std::vector<at::Tensor> tensors;
    int64_t bytes = 0;
  };
  std::map<std::string, Open> open;  // by device type and dtype: the same order on every rank
  std::set<void*> seen;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    Open& piece =
        open[flashstep::str(tensor.device().type(), ' ', c10::toString(tensor.scalar_type()))];
    piece.tensors.push_back(tensor.detach());
    piece.bytes += static_cast<int64_t>(tensor.nbytes());
    if (piece.bytes < kPieceBytes) continue;
    broadcast_piece(piece.tensors, group);
    piece = {};
  }
  for (const auto& [kind, piece] : open) {
    if (!piece.tensors.empty()) broadcast_piece(piece.tensors, group);
  }
}

void broadcast_buffers(const std::vector<at::Tensor>& buffers, const Group& group) {
  std::vector<std::string> lines;
  for (const at::Tensor& buffer : buffers) {
    lines.push_back(buffer.defined() ? flashstep::str("a buffer of shape ", buffer.sizes(), ", ",
                                                      c10::toString(buffer.scalar_type()), ", on ",
                                                      c10::DeviceTypeName(buffer.device().type(),
                                                                          /*lower_case=*/true))
                                     : "an undefined buffer");
  }
  require_agreement(lines, group, "[parallel] expected the same buffers", "no more buffers");
  broadcast_from_first(buffers, group);
}

// A callback at the end of the backward that an output's gradient came in. Not of the backward that
// a parameter's came in: in a part that is recomputed that is a nested one, and ends early.
class ModuleSynchronizer::EndOfBackward {
 public:
  explicit EndOfBackward(ModuleSynchronizer& owner) : owner_(owner) {}

  // In that backward, from whichever thread. is_averaged: not of a forward under no_sync().
  static void queue_in_backward(const std::weak_ptr<EndOfBackward>& weak, bool is_averaged) {
    const std::shared_ptr<EndOfBackward> self = weak.lock();
    const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
    const bool is_of_all = chosen == nullptr || chosen->empty();
    require(self != nullptr || !is_averaged || !is_of_all,
            "[DistributedDataParallel] expected the wrapper to live until the backward of what it ",
            "returned, got a backward after its end, whose gradients would be this rank's alone");
    if (self == nullptr) return;
    ModuleSynchronizer& owner = self->owner_;
    const int task = torch::autograd::get_current_graph_task_id();
    {
      const std::lock_guard lock(self->mutex_);
      if (std::exchange(self->task_, task) == task) return;
      // torch::autograd::grad, or backward of some inputs alone.
      self->is_of_some_inputs_ = !is_of_all;
    }
    if (!self->is_of_some_inputs_) owner.check_begin_of_backward();
    if (!owner.reducer().is_enabled()) return;
    require(self->is_of_some_inputs_ || !owner.reducer().holds_divided_means(),
            "[DistributedDataParallel] expected the optimizer's step, or its zero_grad(), between "
            "two backward passes whose gradients are divided between ranks, got another backward, "
            "which would replace them; those that only add gradients up go under no_sync()");
    const auto end = [weak] {
      if (const auto self = weak.lock()) called_back([&] { self->end(); });
    };
    // Behind the callbacks that backward itself queues, as c10d's Reducer does.
    torch::autograd::Engine::get_default_engine().queue_callback(
        [end] { torch::autograd::Engine::get_default_engine().queue_callback(end); });
  }

  // Whether the gradients are those that a backward has ended with.
  bool is_done() const {
    if (!done_) return false;
    if (owner_.reducer_->holds_divided_means()) return true;
    const at::Tensor gradient = first_gradient();
    return gradient.defined() && done_->gradient.lock() == gradient.getIntrusivePtr() &&
           done_->version == gradient._version();
  }
  void forget() { done_.reset(); }

 private:
  struct Mark {  // of the first gradient, whose address nobody gets while this lives
    c10::weak_intrusive_ptr<c10::TensorImpl> gradient;
    uint32_t version;
  };

  void end() {
    GradientReducer& reducer = owner_.reducer();
    if (!reducer.is_enabled()) return;
    const bool may_be_unused = reducer.options().allow_unused && !is_of_some_inputs_;
    if (!reducer.is_unfinished() && !may_be_unused) return;
    owner_.check_module();
    reducer.finish_gradient_synchronization();
    const at::Tensor gradient = first_gradient();
    const uint32_t version = gradient.defined() ? static_cast<uint32_t>(gradient._version()) : 0;
    done_.emplace(
        Mark{c10::weak_intrusive_ptr<c10::TensorImpl>(gradient.getIntrusivePtr()), version});
  }

  at::Tensor first_gradient() const {
    for (const at::Tensor& parameter : owner_.reducer_->reduced_parameters()) {
      if (parameter.grad().defined()) return parameter.grad();
    }
    return {};
  }

  ModuleSynchronizer& owner_;
  std::mutex mutex_;
  int task_ = -1;                   // the backward that has the callback
  bool is_of_some_inputs_ = false;  // it
  std::optional<Mark> done_;
};

SynchronizedModule synchronized(const torch::nn::Module& module) {
  const auto parameters = [&module] {
    NamedTensors named;
    for (const auto& item : module.named_parameters()) named.emplace_back(item.key(), item.value());
    return named;
  };
  return {parameters, [&module] { return module.buffers(); }};
}

ModuleSynchronizer::ModuleSynchronizer(SynchronizedModule module, const Group& group,
                                       const ReducerOptions& options)
    : module_(std::move(module)), group_(group), end_(std::make_shared<EndOfBackward>(*this)) {
  const Named named = parameters_of(module_);
  for (size_t i = 0; i < named.tensors.size(); ++i) {
    const at::Tensor& parameter = named.tensors[i];
    // Before ranks compare shapes: shards may differ in size.
    refuse_left_shard(named.names[i], parameter, "[DistributedDataParallel]");
    seen_.push_back({named.names[i], parameter.unsafeGetTensorImpl(), parameter.device(),
                     parameter.scalar_type(), parameter.requires_grad()});
  }
  // Before anything is sent: ranks whose modules or options differ, or are refused, say so instead
  // of waiting for each other.
  check_agreement({named.tensors, named.names}, group);
  reducer_ = std::make_unique<GradientReducer>(named.tensors, group, options, named.names);
  broadcast_from_first(named.tensors, group);
  broadcast_buffers();
}

ModuleSynchronizer::~ModuleSynchronizer() = default;

void ModuleSynchronizer::broadcast_buffers() {
  flashstep::broadcast_buffers(module_.buffers(), group_);
}

void ModuleSynchronizer::before_forward() {
  if (!torch::GradMode::is_enabled()) return;
  if (is_of_torch()) {
    check_module();
    is_prepared_ = reducer_->is_enabled();
  }
  if (!reducer_->is_enabled()) return;
  require(
      !reducer_->is_unfinished(),
      "[DistributedDataParallel] expected the backward before this forward to have ended with ",
      "the means, got one that was broken off (forget_step() on all ranks gives it ",
      "up) or that went through none of the tensors that forward returned ",
      "(finish_gradient_synchronization() ends it); backward passes that only add gradients up ",
      "go under no_sync()");
  reducer_->prepare_for_backward();
}

bool ModuleSynchronizer::is_of_torch() const {
  return reducer_->options().strategy == Strategy::kTorch;
}

void ModuleSynchronizer::check_begin_of_backward() {
  require(!is_of_torch() || is_prepared_.exchange(false) == reducer_->is_enabled(),
          "[DistributedDataParallel] expected, of strategy torch, one backward through each ",
          "forward, both under no_sync() or both without, got ",
          reducer_->is_enabled() ? "a backward that c10d's Reducer was not prepared for"
                                 : "a backward under no_sync() of a forward without");
}

void ModuleSynchronizer::watch(const at::Tensor& output) {
  if (group_.world_size() == 1 || !output.defined() || !output.requires_grad() || output.is_leaf())
    return;
  const bool is_averaged = reducer_->is_enabled();
  output.register_hook([end = std::weak_ptr(end_), is_averaged](const at::Tensor& /*gradient*/) {
    called_back([&] { EndOfBackward::queue_in_backward(end, is_averaged); });
  });
}

void ModuleSynchronizer::finish() {
  check_module();
  const bool is_done = end_->is_done() && !reducer_->is_unfinished();
  end_->forget();
  if (!is_done) reducer_->finish_gradient_synchronization();
}

void ModuleSynchronizer::check_module() const {
  const Named named = parameters_of(module_);
  constexpr const char* kBefore =
      "[DistributedDataParallel] expected the module as it was wrapped, ";
  require(named.tensors.size() == seen_.size(), kBefore, "with ", seen_.size(), " parameters, got ",
          named.tensors.size());
  for (size_t i = 0; i < seen_.size(); ++i) {
    const Seen& seen = seen_[i];
    const at::Tensor& parameter = named.tensors[i];
    require_tensor(seen.name, parameter.unsafeGetTensorImpl() == seen.identity, kBefore, "but ",
                   seen.name, " is another tensor now");
    require_tensor(seen.name,
                   parameter.device() == seen.device && parameter.scalar_type() == seen.dtype,
                   kBefore, "with ", seen.name, " in ", c10::toString(seen.dtype), " on ",
                   seen.device, ", but it was moved to ", c10::toString(parameter.scalar_type()),
                   " on ", parameter.device());
    require_tensor(seen.name, parameter.requires_grad() == seen.requires_grad, kBefore, "but ",
                   seen.name, seen.requires_grad ? " was frozen since" : " was unfrozen since");
  }
}

}  // namespace flashstep
