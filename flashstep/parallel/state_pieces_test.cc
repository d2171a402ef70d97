// State by pieces: what is cut of it, what it costs, what is refused.
#include "flashstep/parallel/state_pieces.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "flashstep/error.h"
#include "flashstep/measure/cpu_memory.h"
#include "flashstep/parallel/named_tensors.h"
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
                                          {"p1", parameters[1].second, 26000, 26001},
                                          {"p3", parameters[3].second}};
  const auto numbers = [](int64_t begin, int64_t end) {
    return torch::arange(static_cast<double>(begin), static_cast<double>(end), torch::kFloat);
  };
  for (const NamedTensors& written : {state, join_pieces(state, parameters)}) {
    const NamedTensors own = cut_joined(in_memory(written), parameters, pieces);
    ASSERT_EQ(own.size(), 3u);
    EXPECT_EQ(own[0].first, "p1@500:25000/m");
    EXPECT_TRUE(own[0].second.equal(numbers(kElements + 500, kElements + 25000)));
    EXPECT_EQ(own[1].first, "p1@26000:26001/m");
    EXPECT_TRUE(own[1].second.equal(numbers(kElements + 26000, kElements + 26001)));
    EXPECT_EQ(own[2].first, "p3/m");
    EXPECT_TRUE(own[2].second.equal(numbers(3 * kElements, 4 * kElements)));
  }
}

TEST(CutJoined, AValueIsThatOfThePiece) {
  const NamedTensors parameters = {{"p", torch::zeros({10})}};
  const Tensor& p = parameters[0].second;
  const NamedTensors written = {{piece_name("p", p, 0, 6) + "/step", torch::full({}, 10.0)},
                                {piece_name("p", p, 6, 10) + "/step", torch::full({}, 9.0)}};
  for (const auto& [begin, end, steps] :
       {std::tuple{0, 6, 10}, {6, 10, 9}, {2, 8, 10}, {7, 8, 9}, {0, 10, 10}}) {
    const NamedTensors own = cut_joined(in_memory(written), parameters, {{"p", p, begin, end}});
    ASSERT_EQ(own.size(), 1u);
    EXPECT_EQ(own[0].second.item<double>(), steps) << begin;
  }
}

// Stored tensors that note how much of them is read, and how often.
struct Reads {
  int64_t elements = 0, calls = 0;
};

StoredTensors counted(const NamedTensors& tensors, Reads& reads) {
  StoredTensors stored = in_memory(tensors);
  for (StoredTensor& tensor : stored) {
    tensor.read = [&reads, read = tensor.read](int64_t begin, int64_t end) {
      reads.elements += end - begin;
      ++reads.calls;
      return read(begin, end);
    };
  }
  return stored;
}

TEST(CutJoined, ReadsWhatAPieceHasAndEveryTensorOnce) {
  const NamedTensors parameters = zero_parameters(), state = make_state(parameters);
  Reads reads;
  // From the middle of the first third to the middle of the second.
  const NamedTensors own =
      cut_joined(counted(state, reads), parameters, {{"p1", parameters[1].second, 5000, 15000}});
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(reads.elements, 10000);
  EXPECT_EQ(reads.calls, kParameters * kRanks);
  const NamedTensors whole = join_pieces(state, parameters);
  reads = {};
  cut_joined(counted(whole, reads), parameters, pieces_of(parameters, 1));
  EXPECT_EQ(reads.elements, kParameters * kElements / kRanks);
  EXPECT_EQ(reads.calls, kParameters);
}

TEST(CutJoined, MemoryHoldsTheStateOnce) {
  const NamedTensors parameters = zero_parameters();
  const measure::AllocatedBytes allocated;
  NamedTensors state = make_state(parameters);
  ASSERT_GE(allocated.now(), kParameters * kBytes);
  const int64_t before = allocated.now();
  const NamedTensors own =
      cut_joined(in_memory(std::move(state)), parameters, pieces_of(parameters, 1));
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

TEST(StoredOnFirstRank, ComesInPartsOfWhichEveryRankKeepsItsOwn) {
  on_ranks(3, [](const Group& group) {
    constexpr int64_t kMany = 80 << 20;  // of two bytes; 16 MiB are one message
    StoredTensors stored;
    if (group.is_first()) {
      for (const char* name : {"a", "b"}) {
        const auto options = torch::TensorOptions(at::kMeta).dtype(at::kShort);
        stored.push_back(
            {name, torch::empty({4, kMany / 4}, options), [](int64_t begin, int64_t end) {
               return torch::arange(begin, end).remainder(1009).to(at::kShort);
             }});
      }
    }
    stored = stored_on_first_rank(std::move(stored), group);
    ASSERT_EQ(stored.size(), 2u);
    for (const StoredTensor& tensor : stored) {
      EXPECT_EQ(tensor.form.sizes(), at::IntArrayRef({4, kMany / 4}));
      const int64_t begin = group.rank() * kMany / 3 + 1, end = begin + kMany / 4;
      const Tensor expected = torch::arange(begin, end).remainder(1009).to(at::kShort);
      const measure::AllocatedBytes allocated;
      const Tensor own = tensor.read(begin, end);
      // What is kept, a message, and those that Gloo's two threads have not let go of. Rank 0 makes
      // what it reads.
      if (!group.is_first()) {
        EXPECT_LE(allocated.peak(), (end - begin) * 2 + (3 * 16 << 20));
      }
      EXPECT_TRUE(own.equal(expected)) << tensor.name;
    }
  });
}

}  // namespace
}  // namespace flashstep
