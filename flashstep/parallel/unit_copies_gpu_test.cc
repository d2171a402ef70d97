// Units that travel by copies between GPUs: what arrives, on two ranks and on three and four that
// may share a GPU, whose parts are uneven and who take turns.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "flashstep/parallel/unit.h"
#include "flashstep/testing/compare.h"
#include "flashstep/testing/gpu_ranks.h"

namespace flashstep {
namespace {

using at::Tensor;
using testing::same_bits;

constexpr int kUnits = 3;

// The same on all ranks.
Tensor values(at::IntArrayRef sizes, int64_t seed) {
  const int64_t numel = c10::multiply_integers(sizes);
  return at::arange(numel, at::kLong)
      .mul(seed + 7)
      .remainder(251)
      .sub(125)
      .to(at::kFloat)
      .view(sizes);
}

struct UnitCase {
  at::ScalarType compute_dtype;
  at::ScalarType gradient_dtype;  // of matrices
  bool cast_undivided;
};

UnitOfTensors make_unit(int u, at::Device device, const UnitCase& c) {
  UnitOfTensors unit{str("unit ", u), {}, {}};
  // Sizes that some numbers of ranks divide, and some that none does; one of fewer elements than
  // ranks, and an empty one.
  const std::vector<std::vector<int64_t>> sizes = {{16, 24 + 8 * u}, {16, 24 + 8 * u}, {5, 7 + u},
                                                   {1, 2},           {0, 4},           {13 + u}};
  for (size_t i = 0; i < sizes.size(); ++i) {
    Tensor tensor = values(sizes[i], 10 * u + static_cast<int64_t>(i)).to(device);
    tensor.set_requires_grad(i != 2 || u != 1);  // one is frozen
    if (tensor.requires_grad() && tensor.dim() == 2) tensor.set_grad_dtype(c.gradient_dtype);
    unit.names.push_back(str("t", u, ".", i));
    unit.tensors.push_back(tensor);
  }
  return unit;
}

// What rank `rank`'s backward gives in round `round`: its mean over the ranks is exact in bf16.
Tensor gradient_of(const Tensor& like, int rank, int round) {
  return values(like.sizes(), round)
      .remainder(16)
      .mul(4)
      .add(4 * rank)
      .to(like.device(), like.scalar_type());
}

void give_gradients(ShardedUnit& unit, int rank, int round) {
  for (ShardedTensor& t : unit.tensors()) {
    if (!t.tensor.requires_grad()) continue;
    t.tensor.mutable_grad() = gradient_of(t.tensor.detach(), rank, round);
    t.has_gradient = true;
  }
}

// As the engine does after an exception, here with all messages in flight.
void break_off(std::vector<ShardedUnit>& units, UnitCopies& copies, SideStream& stream, int rank) {
  for (ShardedUnit& unit : units) {
    unit.start_gather(stream);
    unit.finish_gather(stream);
    give_gradients(unit, rank, 9);
    unit.start_reduction(stream, 0);
    unit.reshard(stream);
  }
  units.front().start_gather(stream);
  for (ShardedUnit& unit : units) unit.give_up(stream);
  copies.give_up(stream);
  stream.join();
  for (ShardedUnit& unit : units) {
    unit.finish_reduction(stream);
    unit.reshard(stream);
  }
}

void send_to_and_fro(const Group& group, at::Device device, const UnitCase& c, bool breaks_off) {
  FullyShardOptions options;
  options.compute_dtype = c.compute_dtype;
  options.cast_undivided = c.cast_undivided;
  std::vector<ShardedUnit> units;
  for (int u = 0; u < kUnits; ++u) units.emplace_back(make_unit(u, device, c), group, options);
  std::vector<const ShardedTensors*> lists;
  for (const ShardedUnit& unit : units) lists.push_back(&unit.tensors());
  const auto copies = make_unit_copies({&group, &group}, device, lists);
  ASSERT_NE(copies, nullptr);
  for (ShardedUnit& unit : units) unit.use(copies->messages());
  SideStream stream(group, device);

  const float mean_of_ranks = 2.0F * static_cast<float>(group.world_size() - 1);
  for (int round = 0; round < 4; ++round) {
    copies->begin();
    if (breaks_off) break_off(units, *copies, stream, group.rank());
    for (int u = 0; u < kUnits; ++u) {
      units[u].start_gather(stream);
      if (round % 2 == 1 && u + 1 < kUnits) units[u + 1].start_gather(stream);  // ahead
      units[u].finish_gather(stream);
      for (size_t i = 0; i < units[u].tensors().size(); ++i) {
        ShardedTensor& t = units[u].tensors()[i];
        const Tensor expected = values(t.sizes, 10 * u + static_cast<int64_t>(i));
        const bool casts = t.is_divided || c.cast_undivided;
        EXPECT_EQ(t.tensor.scalar_type(), casts ? c.compute_dtype : at::kFloat);
        EXPECT_TRUE(same_bits(t.tensor.detach().cpu().to(at::kFloat), expected))
            << t.name << " round " << round;
      }
      give_gradients(units[u], group.rank(), round);
      units[u].start_reduction(stream, 0);
      units[u].reshard(stream);
      if (u > 0) units[u - 1].finish_reduction(stream);
    }
    units.back().finish_reduction(stream);
    copies->end(stream);
    stream.join();
    for (ShardedUnit& unit : units) {
      for (ShardedTensor& t : unit.tensors()) {
        Tensor& gradient = t.tensor.mutable_grad();
        EXPECT_EQ(gradient.defined(), t.tensor.requires_grad()) << t.name;
        if (!gradient.defined()) continue;
        EXPECT_EQ(gradient.scalar_type(), t.gradient_dtype) << t.name;
        const Tensor whole =
            values(t.sizes, round).remainder(16).mul(4).add(mean_of_ranks).flatten();
        const int64_t begin = t.is_divided ? std::min(group.rank() * t.part, t.numel) : 0;
        EXPECT_TRUE(same_bits(gradient.cpu().to(at::kFloat).flatten(),
                              whole.slice(0, begin, begin + t.own)))
            << t.name << " round " << round;
        gradient.reset();
      }
    }
  }
  // One that is missing on a rank is in nobody's mean.
  units[0].start_gather(stream);
  units[0].finish_gather(stream);
  for (ShardedTensor& t : units[0].tensors()) {
    t.has_gradient = true;
    if (group.rank() != 0) t.tensor.mutable_grad() = at::ones_like(t.tensor.detach());
  }
  units[0].start_reduction(stream, std::numeric_limits<double>::quiet_NaN());
  units[0].reshard(stream);
  units[0].finish_reduction(stream);
  for (const ShardedTensor& t : units[0].tensors())
    EXPECT_TRUE(t.tensor.grad().isnan().all().item<bool>()) << t.name;
  group.barrier();  // nobody ends while others still send
}

void expect_arrivals(bool breaks_off) {
  for (const int ranks : {2, 3, 4}) {
    testing::run_by_copies(ranks, [breaks_off](const Group& group, at::Device device) {
      for (const UnitCase& c :
           {UnitCase{at::kFloat, at::kFloat, true}, UnitCase{at::kBFloat16, at::kBFloat16, false},
            UnitCase{at::kBFloat16, at::kFloat, true}, UnitCase{at::kHalf, at::kFloat, false}}) {
        SCOPED_TRACE(str(group.world_size(), " ranks, ", c10::toString(c.compute_dtype),
                         ", gradients ", c10::toString(c.gradient_dtype),
                         c.cast_undivided ? "" : ", vectors kept"));
        send_to_and_fro(group, device, c, breaks_off);
      }
    });
  }
}

TEST(GpuUnitCopies, WholeTensorsAndMeansArrive) {
  FLASHSTEP_NEED_GPUS(1);
  expect_arrivals(/*breaks_off=*/false);
}

TEST(GpuUnitCopies, TheyArriveAfterAnException) {
  FLASHSTEP_NEED_GPUS(1);
  expect_arrivals(/*breaks_off=*/true);
}

}  // namespace
}  // namespace flashstep
