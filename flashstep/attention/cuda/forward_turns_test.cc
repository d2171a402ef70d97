// Blocks that take tiles in turns: each tile once, and as much for each block.
#include "flashstep/attention/cuda/forward_turns.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace flashstep::attention_cuda {
namespace {

std::string to_string(const ForwardTiles& tiles, int blocks) {
  return std::to_string(tiles.heads) + " heads, " + std::to_string(tiles.row_tiles) +
         " row tiles, " + std::to_string(tiles.splits) + " splits, " +
         std::to_string(tiles.pair_turns) + " turns of pairs, " + std::to_string(blocks) +
         " blocks";
}

// f(block, tile) for all tiles in the order of each block.
template <typename F>
void for_each_tile(const ForwardTiles& tiles, int blocks, F&& f) {
  for (int block = 0; block < blocks; ++block) {
    ForwardTurns turns(tiles, block, blocks);
    for (TileOfHead tile; turns.next(tile);) f(block, tile);
  }
}

void expect_each_tile_once(const ForwardTiles& tiles, int blocks) {
  SCOPED_TRACE(to_string(tiles, blocks));
  std::vector<int> taken(tiles.heads * tiles.row_tiles * tiles.splits);
  for_each_tile(tiles, blocks, [&](int, const TileOfHead& tile) {
    ASSERT_TRUE(tile.head >= 0 && tile.head < tiles.heads && tile.row_tile >= 0 &&
                tile.row_tile < tiles.row_tiles && tile.split >= 0 && tile.split < tiles.splits);
    ++taken[(tile.head * tiles.row_tiles + tile.row_tile) * tiles.splits + tile.split];
  });
  EXPECT_EQ(std::count(taken.begin(), taken.end(), 1), static_cast<int64_t>(taken.size()));
}

TEST(ForwardTurns, TakeEachTileOnce) {
  for (int heads : {1, 2, 3, 8, 33}) {
    for (int row_tiles : {1, 2, 3, 8, 13, 24}) {
      for (int blocks : {1, 7, 132}) {
        for (int splits : {1, 3}) {
          expect_each_tile_once({heads, row_tiles, splits, false, 0}, blocks);
          expect_each_tile_once({heads, row_tiles, splits, true, 0}, blocks);
        }
        for (int turns = 1; turns <= heads / 2 * row_tiles / blocks + 1; ++turns)
          expect_each_tile_once({heads, row_tiles, 1, true, turns}, blocks);
      }
    }
  }
}

// Of the block that gets most, over the mean; a causal tile takes one step more than the one
// before.
double most_over_mean(const ForwardTiles& tiles, int blocks) {
  std::vector<double> steps(blocks);
  double all = 0;
  for_each_tile(tiles, blocks, [&](int block, const TileOfHead& tile) {
    steps[block] += tile.row_tile + 1;
    all += tile.row_tile + 1;
  });
  return *std::max_element(steps.begin(), steps.end()) * blocks / all;
}

TEST(ForwardTurns, GiveEachBlockAsMuch) {
  EXPECT_EQ(most_over_mean({66, 4, 1, true, 1}, 132), 1);
  EXPECT_GT(most_over_mean({132, 7, 1, true, 3}, 132), 1.1);   // half a turn of pairs is left
  EXPECT_LT(most_over_mean({132, 7, 1, true, 2}, 132), 1.08);  // the last 1.5 by length
  EXPECT_LT(most_over_mean({64, 128, 1, true, 30}, 132), 1.01);
  EXPECT_LT(most_over_mean({64, 128, 1, true, 0}, 132), 1.01);
}

TEST(RestOfPairs, CountsTheHeadsOfALevel) {
  const ForwardTiles tiles{6, 5, 1, true, 0};
  const RestOfPairs rest(tiles, 7);  // one pair of heads, and the first two pairs of the next
  std::vector<int> heads;
  for (int level = 0; level < rest.levels(); ++level) heads.push_back(rest.heads_of(level));
  // Head 2 is left with its tiles 2 to 0, head 3 with 4 to 2.
  EXPECT_EQ(heads, (std::vector<int>{3, 3, 4, 3, 3}));
  TileOfHead tile{};
  ASSERT_TRUE(rest.find(2, tile));
  EXPECT_EQ(tile.head, 3);
  EXPECT_EQ(tile.row_tile, 4);
  EXPECT_FALSE(rest.find(16, tile));
}

}  // namespace
}  // namespace flashstep::attention_cuda
