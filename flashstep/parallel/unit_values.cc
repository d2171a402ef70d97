#include "flashstep/parallel/unit_values.h"

#include <algorithm>
#include <map>
#include <string>

#include <ATen/ATen.h>

#include "flashstep/error.h"
#include "flashstep/parallel/stored_tensors.h"

namespace flashstep {

using at::Tensor;

NamedTensors gather_whole(const std::vector<ShardedUnit>& units, const Group& group,
                          std::optional<int> to) {
  NamedTensors result;
  const bool keeps = !to || *to == group.rank();
  for (const ShardedUnit& unit : units) {
    for (const ShardedTensor& t : unit.tensors()) {
      const Tensor whole = unit.gather_copy(t);
      if (keeps) result.emplace_back(t.name, to ? whole.cpu() : whole);
    }
  }
  return result;
}

NamedTensors gather_evenly(const std::vector<ShardedUnit>& units, const ShardGroups& groups) {
  NamedTensors result;
  std::vector<size_t> bytes(static_cast<size_t>(groups.shards->world_size()));  // by rank
  for (const ShardedUnit& unit : units) {
    for (const ShardedTensor& t : unit.tensors()) {
      const Tensor whole = unit.gather_copy(t);
      const auto owner = std::min_element(bytes.begin(), bytes.end());
      *owner += whole.nbytes();
      if (owner - bytes.begin() == groups.all->rank())
        result.emplace_back(t.name, whole.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
    }
  }
  return result;
}

std::vector<Shard> shards_of(const std::vector<ShardedUnit>& units, const ShardGroups& groups) {
  std::vector<Shard> result;
  for (const ShardedUnit& unit : units) {
    for (const ShardedTensor& t : unit.tensors()) {
      const Tensor whole =
          at::empty_strided(t.sizes, t.strides, t.memory.options().device(at::kMeta));
      const int64_t begin =
          t.is_divided ? std::min<int64_t>(groups.shards->rank() * t.part, t.numel) : 0;
      const bool is_first =
          t.is_divided ? groups.all->rank() < groups.shards->world_size() : groups.all->is_first();
      result.push_back({t.name, t.tensor, whole, t.is_divided, is_first, begin, begin + t.own});
    }
  }
  return result;
}

void load_parts(const std::vector<ShardedUnit>& units, const ShardGroups& groups,
                const std::function<Tensor(const Shard& shard)>& part) {
  const at::NoGradGuard no_grad;
  const std::vector<Shard> all = shards_of(units, groups);
  auto shard = all.begin();
  for (const ShardedUnit& unit : units) {
    for (const ShardedTensor& t : unit.tensors()) {
      t.memory.slice(0, 0, t.own).copy_(part(*shard++));
      note_written(t.tensor);  // whose memory the shard is
    }
  }
}

void ShardedUnits::load(const NamedTensors& whole) {
  std::map<std::string, Tensor> by_name(whole.begin(), whole.end());
  const std::vector<Shard> all = shards();
  for (const Shard& shard : all) {
    const auto found = by_name.find(shard.name);
    require(found != by_name.end(), "[fully sharded] expected a tensor for ", shard.name,
            ", got none");
    require(found->second.sizes() == shard.whole.sizes(), "[fully sharded] expected ", shard.name,
            " of shape ", shard.whole.sizes(), ", got ", found->second.sizes());
  }
  for (const auto& [name, tensor] : by_name) {
    require(std::ranges::count(all, name, &Shard::name) > 0,
            "[fully sharded] expected tensors of the module alone, got ", name);
  }
  load_parts([&](const Shard& shard) {
    return part_of(in_memory(shard.name, by_name.at(shard.name)), shard.whole, shard.begin,
                   shard.end);
  });
}

}  // namespace flashstep
