#include "flashstep/comm/rounds_of_means.h"

#include <gtest/gtest.h>

namespace flashstep {
namespace {

using Bytes = std::vector<size_t>;

// Each byte of each tensor once and in order, each part within its rank's memory, nothing beside.
void expect_whole(const Bytes& tensors, int world_size, size_t share) {
  SCOPED_TRACE(::testing::Message() << tensors.size() << " tensors, " << world_size << " ranks");
  size_t tensor = 0, done = 0;
  for (const RoundOfMeans& round : rounds_of_means(tensors, world_size, share)) {
    size_t place = 0;
    for (const PieceOfRound& piece : round.pieces) {
      while (tensor < tensors.size() && done == tensors[tensor]) {
        ++tensor;
        done = 0;
      }
      EXPECT_EQ(piece.tensor, tensor);
      EXPECT_EQ(piece.begin, done);
      EXPECT_EQ(piece.place, place);
      EXPECT_GT(piece.bytes, 0u);
      done += piece.bytes;
      place += in_lines(piece.bytes);
    }
    ASSERT_EQ(round.ends.size(), static_cast<size_t>(world_size));
    EXPECT_EQ(round.ends.back(), place);
    size_t received = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_LE(round.begin(rank), round.ends[rank]);
      EXPECT_EQ(round.ends[rank] % kLineBytes, 0u);
      EXPECT_LE(round.part(rank), most_part(share));
      received = std::max(received, round.ends.back() - round.part(rank));
      size_t beside = 0;
      for (int from = 0; from < world_size; ++from) {
        if (from == rank) continue;
        EXPECT_EQ(round.offset(from, rank), beside);
        beside += round.part(from);
      }
    }
    EXPECT_EQ(round.most_received(), received);
  }
  while (tensor < tensors.size() && done == tensors[tensor]) {
    ++tensor;
    done = 0;
  }
  EXPECT_EQ(tensor, tensors.size());
}

TEST(RoundsOfMeans, HoldEveryByteOnce) {
  for (const int world_size : {2, 3, 4, 8}) {
    for (const size_t share : {size_t{128}, size_t{1024}, size_t{1 << 20}}) {
      expect_whole({}, world_size, share);
      expect_whole({0, 1, 0}, world_size, share);
      expect_whole({1, 127, 128, 129, 5000, 3, 100'000}, world_size, share);
      expect_whole(Bytes(97, 6400), world_size, share);
      expect_whole({10'000'000}, world_size, share);
      expect_whole(Bytes(40, share / 3), world_size, share);
    }
  }
}

// xl's blocks: where two ranks or four share them, none of a round's tensors is cut.
TEST(RoundsOfMeans, EndBetweenTensors) {
  Bytes tensors;
  for (int block = 0; block < 5; ++block)
    tensors.insert(tensors.end(), {13'721'600, 13'721'600, 13'721'600, 5'120'000, 5'120'000,
                                   5'120'000, 5'120'000});
  for (const int world_size : {2, 4}) {
    const auto rounds =
        rounds_of_means(tensors, world_size, (size_t{128} << 20) / static_cast<size_t>(world_size));
    size_t cut = 0;
    for (const RoundOfMeans& round : rounds) {
      for (const PieceOfRound& piece : round.pieces) {
        EXPECT_EQ(piece.bytes, tensors[piece.tensor]);
        for (const size_t end : round.ends)
          cut += piece.place < end && end < piece.place + piece.bytes;
      }
    }
    EXPECT_EQ(cut, 0u) << world_size;
  }
}

// One tensor for all ranks has to be cut, evenly.
TEST(RoundsOfMeans, ATensorAloneIsCutEvenly) {
  const auto rounds = rounds_of_means({32'000'000}, 4, size_t{32} << 20);
  ASSERT_EQ(rounds.size(), 1u);
  for (int rank = 0; rank < 4; ++rank) EXPECT_NEAR(rounds[0].part(rank), 8e6, 2 * kLineBytes);
}

}  // namespace
}  // namespace flashstep
