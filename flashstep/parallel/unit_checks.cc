#include "flashstep/parallel/unit_checks.h"

#include <algorithm>
#include <bit>
#include <string>

#include <ATen/core/Tensor.h>

#include "flashstep/base/text.h"
#include "flashstep/comm/agreement.h"
#include "flashstep/error.h"
#include "flashstep/parallel/divided_tensors.h"
#include "flashstep/parallel/reduction.h"

namespace flashstep {
namespace {

using at::Tensor;

// Calls are compared at the latest after so many forwards.
constexpr uint64_t kForwardsBetween = 64;
// An odd number whose bits are well mixed: the fraction of the golden ratio, times 2^64.
constexpr uint64_t kHashFactor = 0x9e3779b97f4a7c15;

void check(const UnitOfTensors& unit) {
  for (size_t i = 0; i < unit.tensors.size(); ++i) {
    const Tensor& tensor = unit.tensors[i];
    const std::string& name = unit.names[i];
    require(tensor.defined() && tensor.is_leaf(),
            "[fully sharded] expected parameters that autograd collects gradients for (leaves), ",
            "got ", name, tensor.defined() ? ", which was computed" : ", which is undefined");
    require(tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense(),
            "[fully sharded] expected parameters that are dense in memory, got ", name);
    require(tensor.is_floating_point(), "[fully sharded] expected floating-point parameters, got ",
            name, " of ", c10::toString(tensor.scalar_type()));
    require(tensor.device() == unit.tensors.front().device(),
            "[fully sharded] expected the parameters of a unit on one device, got ", name, " on ",
            tensor.device(), " and ", unit.names.front(), " on ", unit.tensors.front().device());
    require(!tensor.grad().defined(), "[fully sharded] expected parameters without gradients, got ",
            "one for ", name, ": wrap before the first backward, or zero_grad() first");
  }
}

void check_agreement(const std::vector<UnitOfTensors>& units, const Group& group,
                     const FullyShardOptions& options) {
  std::vector<std::string> lines = {
      str("compute_dtype ",
          options.compute_dtype ? c10::toString(*options.compute_dtype) : "not given"),
      str("reshard_after_forward ", options.reshard_after_forward ? "yes" : "no"),
      str("cast_undivided ", options.cast_undivided ? "yes" : "no"),
      str("fill ", options.fill ? "given" : "not given"),
      str("peer_copies ", options.peer_copies ? "yes" : "no"),
      str("shard_ranks ", options.shard_ranks)};
  for (const UnitOfTensors& unit : units) {
    lines.push_back(str("unit ", unit.name));
    for (size_t i = 0; i < unit.tensors.size(); ++i) {
      const Tensor& t = unit.tensors[i];
      const bool divided = options.shard ? options.shard(unit.names[i], t) : t.dim() >= 2;
      lines.push_back(line_of(t, unit.names[i]) + (divided ? "" : ", not divided"));
    }
  }
  require_agreement(lines, group,
                    "[fully sharded] expected the same units, parameters and options");
}

}  // namespace

void check_units(const std::vector<UnitOfTensors>& units, const Group& group,
                 const FullyShardOptions& options) {
  for (const UnitOfTensors& unit : units) {
    for (size_t i = 0; i < unit.tensors.size(); ++i)
      refuse_left_shard(unit.names[i], unit.tensors[i], "[fully sharded]");
  }
  check_agreement(units, group, options);
  const int ranks = group.world_size(), shard_ranks = options.shard_ranks;
  if (shard_ranks < 0 || ranks % std::max(shard_ranks, 1) != 0) {
    throw AgreedError(str("[fully sharded] expected shard_ranks that divides the ", ranks,
                          " ranks, or 0 for all of them, got ", shard_ranks));
  }
  require(!options.compute_dtype || c10::isFloatingType(*options.compute_dtype),
          "[fully sharded] expected a floating-point compute_dtype, got ",
          c10::toString(options.compute_dtype.value_or(at::kFloat)));
  for (const UnitOfTensors& unit : units) check(unit);
}

void CallsOfUnits::add(size_t unit) { hash_ = hash_ * kHashFactor + unit + 1; }

std::string CallsOfUnits::compare(const Group& group) {
  ++forwards_;
  if (!std::has_single_bit(forwards_) && forwards_ % kForwardsBetween != 0) return "";
  const auto all = group.all_gather(static_cast<int64_t>(hash_));
  const auto other = std::ranges::find_if(all, [&](int64_t of) { return of != all.front(); });
  if (other == all.end()) return "";
  return str("[fully sharded] expected the same calls of units on every rank, but rank ",
             other - all.begin(), " has called others than rank 0, or in another order, in this ",
             "forward or one before it: random choices of units need the same seed on all ranks");
}

}  // namespace flashstep
