// State by pieces: what is cut of it, what it costs, what is refused.
#include "flashstep/parallel/state_pieces.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/error.h"
#include "flashstep/measure/cpu_memory.h"
#include "flashstep/parallel/test_cases.h"

namespace flashstep {
namespace {

using torch::Tensor;

constexpr int64_t kElements = 30000, kParameters = 8, kRanks = 3;
constexpr int64_t kBytes = kElements * 4;  // of one parameter's state

NamedTensors zero_parameters() {
  NamedTensors parameters;
  for (int64_t i = 0; i < kParameters; ++i) {
    parameters.emplace_back(str("p", i), torch::zeros({kElements}));
  }
  return parameters;
}

// The thirds of each parameter, one for each rank.
std::vector<NamedPiece> pieces_of(const NamedTensors& parameters, int64_t rank) {
  std::vector<NamedPiece> pieces;
  for (const auto& [name, parameter] : parameters) {
    pieces.push_back({name, parameter, rank * kElements / kRanks, (rank + 1) * kElements / kRanks});
  }
  return pieces;
}

// What all ranks wrote; element k of parameter i is i * kElements + k.
NamedTensors make_state(const NamedTensors& parameters) {
  NamedTensors state;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    for (const NamedPiece& piece : pieces_of(parameters, rank)) {
      const int64_t first = std::stoll(piece.name.substr(1)) * kElements;
      state.emplace_back(piece_name(piece.name, piece.parameter, piece.begin, piece.end) + "/m",
                         torch::arange(static_cast<double>(first + piece.begin),
                                       static_cast<double>(first + piece.end), torch::kFloat));
    }
  }
  return state;
}

TEST(CutJoined, IsThePartOfWhatWasJoined) {
  const NamedTensors parameters = zero_parameters(), state = make_state(parameters);
  // Other limits than those of the pieces that were written.
  const std::vector<NamedPiece> pieces = {{"p1", parameters[1].second, 500, 25000},
                                          {"p3", parameters[3].second}};
  const NamedTensors expected = cut_pieces(join_pieces(state, parameters), pieces);
  const NamedTensors own = cut_joined(state, parameters, pieces);
  ASSERT_EQ(own.size(), 2u);
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(own[i].first, expected[i].first);
    EXPECT_TRUE(own[i].second.equal(expected[i].second)) << own[i].first;
  }
  EXPECT_EQ(own[0].second[0].item<float>(), kElements + 500);
  EXPECT_EQ(own[1].second.numel(), kElements);
}

TEST(CutJoined, MemoryHoldsTheStateOnce) {
  const NamedTensors parameters = zero_parameters();
  const measure::AllocatedBytes allocated;
  NamedTensors state = make_state(parameters);
  ASSERT_GE(allocated.now(), kParameters * kBytes);
  const int64_t before = allocated.now();
  const NamedTensors own = cut_joined(std::move(state), parameters, pieces_of(parameters, 1));
  // Beside the state: a whole parameter, its pieces not yet freed, and copies of one.
  EXPECT_LE(allocated.peak(), before + 3 * kBytes);
  EXPECT_LE(allocated.now(), kParameters * kBytes / kRanks + kBytes);
  EXPECT_EQ(own.size(), static_cast<size_t>(kParameters));
}

TEST(JoinPieces, MemoryHoldsTheStateOnce) {
  const NamedTensors parameters = zero_parameters();
  const measure::AllocatedBytes allocated;
  NamedTensors state = make_state(parameters);
  const int64_t before = allocated.now();
  const NamedTensors whole = join_pieces(std::move(state), parameters);
  EXPECT_LE(allocated.peak(), before + 2 * kBytes);
  EXPECT_EQ(whole.size(), static_cast<size_t>(kParameters));
}

TEST(JoinPieces, RefusesAWholeEntryTwice) {
  const NamedTensors parameters = zero_parameters();
  const Tensor m = torch::ones({kElements});
  EXPECT_EQ(join_pieces({{"p0/m", m}}, parameters).size(), 1u);
  EXPECT_THROW(join_pieces({{"p0/m", m}, {"p0/m", m}}, parameters), UserError);
}

TEST(ShareState, ComesByParameterAndOnlyWhatIsKeptStays) {
  on_ranks(3, [](const Group& group) {
    // Names that hold what separates a parameter's name from what is kept of it.
    NamedTensors parameters;
    for (int64_t i = 0; i < kParameters; ++i)
      parameters.emplace_back(str("block/", i, "@w"), torch::zeros({kElements}));
    NamedTensors state;  // by kind, as two ranks write it into two files
    if (group.is_first()) {
      for (const char* piece : {"@0:9000/m", "@9000:30000/m"}) {
        for (int64_t i = 0; i < kParameters; ++i) {
          const int64_t numel = piece[1] == '0' ? 9000 : 21000;
          state.emplace_back(parameters[i].first + piece, torch::full({numel}, i, torch::kFloat));
        }
      }
      state.emplace_back("loss_scale", torch::full({}, 7.0));
    }
    const measure::AllocatedBytes allocated;
    size_t calls = 0;
    const NamedTensors kept =
        share_state(std::move(state), parameters, group, [&](NamedTensors part) {
          if (++calls <= static_cast<size_t>(kParameters)) {
            EXPECT_EQ(part.size(), 2u);
            for (const auto& [name, tensor] : part) {
              EXPECT_EQ(name.rfind(parameters[calls - 1].first, 0), 0u) << name;
              EXPECT_TRUE((tensor == static_cast<double>(calls - 1)).all().item<bool>()) << name;
            }
            part.erase(part.begin());
            part[0].second = part[0].second.slice(0, 0, 100).clone();
          }
          return part;
        });
    EXPECT_EQ(calls, static_cast<size_t>(kParameters) + 1);
    ASSERT_EQ(kept.size(), static_cast<size_t>(kParameters) + 1);
    EXPECT_EQ(kept.back().first, "loss_scale");
    EXPECT_EQ(kept.back().second.item<float>(), 7);
    // A parameter's state and the next one's, a comparison's result, what is kept, and a message
    // in each of Gloo's two threads, which let go of it some time after it is there.
    EXPECT_LE(allocated.peak(), 4 * kElements * 4);
  });
}

}  // namespace
}  // namespace flashstep
