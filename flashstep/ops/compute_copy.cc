#include "flashstep/ops/compute_copy.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <ATen/ATen.h>

#include "flashstep/error.h"

namespace flashstep {
namespace {

using at::Tensor;

struct Entry {
  c10::weak_intrusive_ptr<c10::TensorImpl> parameter;  // whose address names the entry
  Tensor copy;                                         // of its shape, part of `whole`
  Tensor whole;                                        // with the neighbours' copies
  uint32_t version = 0;                                // of the parameter, that the copy is of
  const void* data = nullptr;                          // of that parameter
  bool is_fresh = false;
  std::weak_ptr<void> writer = {};  // of the optimizer that writes the copy with the parameter

  bool is_maintained() const { return !writer.expired(); }
};

class Copies {
 public:
  static Copies& all() {
    static Copies& copies = *new Copies;  // CUDA may be gone before static objects are
    return copies;
  }

  Tensor of(const std::vector<Tensor>& parameters, at::ScalarType dtype) {
    const std::lock_guard lock(mutex_);
    if (++uses_ > entries_.size()) drop_dead();  // a look at one entry a use, on average
    // A copy that no optimizer maintains is made anew, in memory of its own: a graph of autograd
    // may still need the one before. One that is maintained stays where it is: a CUDA graph knows
    // it.
    const bool stays = stand_together(parameters, dtype) &&
                       std::any_of(parameters.begin(), parameters.end(),
                                   [&](const Tensor& p) { return entry_of(p).is_maintained(); });
    if (!stays) make(parameters, dtype);
    for (const Tensor& parameter : parameters) {
      // A frozen neighbour of what is maintained counts by its version too.
      Entry& entry = entry_of(parameter);
      if (!stays || !agrees(entry, parameter)) cast(entry, parameter);
    }
    return entry_of(parameters.front()).whole;
  }

  Tensor written_with(const Tensor& parameter) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(parameter.unsafeGetTensorImpl());
    return found != entries_.end() && agrees(found->second, parameter) ? found->second.copy
                                                                       : Tensor();
  }

  void is_written(const Tensor& parameter, const Tensor& copy,
                  const std::shared_ptr<void>& writer) {
    const std::lock_guard lock(mutex_);
    parameter.unsafeGetTensorImpl()->bump_version();
    // A copy that was stale before was not written; nor may it pass for fresh, because the device
    // may have called the update off.
    const auto found = entries_.find(parameter.unsafeGetTensorImpl());
    if (!copy.defined() || found == entries_.end() || !found->second.copy.is_same(copy)) return;
    // Who saved the copy for a backward that is still to come hears of it from autograd.
    found->second.copy.unsafeGetTensorImpl()->bump_version();
    note(found->second, parameter);
    found->second.writer = writer;
  }

  void refresh() {
    const std::lock_guard lock(mutex_);
    drop_dead();
    for (auto& [address, entry] : entries_) {
      const auto strong = entry.parameter.lock();
      if (!strong || !entry.is_maintained()) continue;
      const Tensor parameter(strong);
      if (!agrees(entry, parameter)) cast(entry, parameter);
    }
  }

  void note_replay() {
    const std::lock_guard lock(mutex_);
    for (auto& [address, entry] : entries_) entry.is_fresh &= entry.is_maintained();
  }

  void forget() {
    const std::lock_guard lock(mutex_);
    drop_dead();
    for (auto& [address, entry] : entries_) entry.is_fresh = false;
  }

 private:
  // Parameters that are gone leave the memory of their copies.
  void drop_dead() {
    std::erase_if(entries_, [](const auto& item) { return item.second.parameter.expired(); });
    uses_ = 0;
  }

  Entry& entry_of(const Tensor& parameter) { return entries_.at(parameter.unsafeGetTensorImpl()); }

  // Whether the parameters' copies lie one behind the other, with nothing else.
  bool stand_together(const std::vector<Tensor>& parameters, at::ScalarType dtype) const {
    int64_t row = 0;
    const Entry* first = nullptr;
    for (const Tensor& parameter : parameters) {
      const auto found = entries_.find(parameter.unsafeGetTensorImpl());
      if (found == entries_.end() || found->second.parameter.expired()) return false;
      const Entry& entry = found->second;
      if (first == nullptr) first = &entry;
      if (!entry.whole.is_same(first->whole) || entry.copy.scalar_type() != dtype ||
          entry.copy.sizes() != parameter.sizes() || entry.copy.device() != parameter.device() ||
          entry.copy.storage_offset() != row * entry.copy.stride(0)) {
        return false;
      }
      row += entry.copy.size(0);
    }
    return first->whole.size(0) == row;
  }

  void make(const std::vector<Tensor>& parameters, at::ScalarType dtype) {
    drop_dead();
    int64_t rows = 0;
    for (const Tensor& parameter : parameters) {
      rows += parameter.size(0);
      entries_.erase(parameter.unsafeGetTensorImpl());  // before there are two copies of it
    }
    std::vector<int64_t> shape = parameters.front().sizes().vec();
    shape[0] = rows;
    // Whatever mode the caller is in, an optimizer may write the copy after it.
    const c10::InferenceMode no_inference(false);
    const at::NoGradGuard no_grad;
    const Tensor whole = at::empty(shape, parameters.front().options().dtype(dtype));
    int64_t row = 0;
    for (const Tensor& parameter : parameters) {
      entries_.emplace(parameter.unsafeGetTensorImpl(),
                       Entry{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
                             whole.narrow(0, row, parameter.size(0)), whole});
      row += parameter.size(0);
    }
  }

  static bool agrees(const Entry& entry, const Tensor& parameter) {
    return entry.is_fresh && !entry.parameter.expired() && entry.version == version_of(parameter) &&
           entry.data == parameter.const_data_ptr();
  }

  // A tensor of inference mode counts none.
  static uint32_t version_of(const Tensor& parameter) {
    return parameter.is_inference()
               ? 0
               : parameter.unsafeGetTensorImpl()->version_counter().current_version();
  }

  static void note(Entry& entry, const Tensor& parameter) {
    entry.version = version_of(parameter);
    entry.data = parameter.const_data_ptr();
    entry.is_fresh = !parameter.is_inference();
  }

  static void cast(Entry& entry, const Tensor& parameter) {
    entry.copy.copy_(parameter.detach());
    note(entry, parameter);
  }

  std::mutex mutex_;
  std::unordered_map<c10::TensorImpl*, Entry> entries_;
  size_t uses_ = 0;  // since drop_dead()
};

// Matrices that lie one behind the other in one storage, as one; undefined if they do not.
Tensor as_neighbours(const std::vector<Tensor>& parameters) {
  const Tensor& first = parameters.front();
  int64_t rows = 0, reached = first.storage_offset();
  for (const Tensor& parameter : parameters) {
    if (!parameter.is_contiguous() || !parameter.is_alias_of(first) ||
        parameter.scalar_type() != first.scalar_type() || parameter.storage_offset() != reached)
      return {};
    rows += parameter.size(0);
    reached += parameter.numel();
  }
  std::vector<int64_t> shape = first.sizes().vec();
  shape[0] = rows;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return first.as_strided(shape, first.strides(), first.storage_offset());
}

}  // namespace

Tensor compute_copy(const Tensor& parameter, at::ScalarType dtype) {
  if (parameter.scalar_type() == dtype) return parameter.detach();
  require(parameter.dim() >= 1, "[compute_copy] expected a tensor with dimensions, got a number");
  return compute_copy(std::vector<Tensor>{parameter}, dtype);
}

Tensor compute_copy(const std::vector<Tensor>& parameters, at::ScalarType dtype) {
  require(!parameters.empty(), "[compute_copy] expected a parameter, got none");
  const Tensor& first = parameters.front();
  for (const Tensor& parameter : parameters) {
    require(parameter.dim() == first.dim() && parameter.device() == first.device() &&
                parameter.sizes().slice(1) == first.sizes().slice(1),
            "[compute_copy] expected matrices of one width on one device, got ", first.sizes(),
            " on ", first.device(), " and ", parameter.sizes(), " on ", parameter.device());
  }
  const at::NoGradGuard no_grad;
  if (std::ranges::all_of(parameters, [&](const Tensor& p) { return p.scalar_type() == dtype; })) {
    const Tensor neighbours = as_neighbours(parameters);
    return neighbours.defined() ? neighbours : at::cat(parameters);
  }
  // A parameter has one copy, which cannot stand in two places.
  const auto repeats = [&](const Tensor& parameter) {
    return std::ranges::count_if(parameters,
                                 [&](const Tensor& p) { return p.is_same(parameter); }) > 1;
  };
  if (std::ranges::any_of(parameters, repeats)) {
    std::vector<Tensor> copies;
    for (const Tensor& parameter : parameters) copies.push_back(compute_copy(parameter, dtype));
    return at::cat(copies);
  }
  return Copies::all().of(parameters, dtype);
}

namespace internal {

Tensor copy_written_with(const Tensor& parameter) { return Copies::all().written_with(parameter); }
void copy_is_written(const Tensor& parameter, const Tensor& copy,
                     const std::shared_ptr<void>& writer) {
  Copies::all().is_written(parameter, copy, writer);
}
void refresh_copies_before_replay() {
  const at::NoGradGuard no_grad;
  Copies::all().refresh();
}
void note_replay() { Copies::all().note_replay(); }

}  // namespace internal

void forget_compute_copies() { Copies::all().forget(); }

}  // namespace flashstep
