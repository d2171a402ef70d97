// The order in which blocks that stay take the tiles of a forward pass, one after the other.
//
// Without a mask, and in a short window, tiles are alike, and come head after head: blocks that run
// side by side share keys and values. A causal mask makes them long and short. Then a block takes
// two tiles in two turns, one as long as the other is short, of two heads: all pairs are alike, and
// come as tiles did. Last come the tiles that make no whole turn of pairs, longest first, in turns
// of alternate direction. Parts of split keys come like tiles that are alike, or like these last.
#pragma once

#include <algorithm>
#include <cstdint>

namespace flashstep::attention_cuda {

// The tiles of a pass: all heads of all batches have as many, and all tiles as many parts of keys.
struct ForwardTiles {
  int heads, row_tiles, splits;
  bool differ;     // in their keys, as under a causal mask
  int pair_turns;  // turns that are taken by pairs, two of a block each

  constexpr int pairs() const { return heads / 2 * row_tiles; }
  constexpr int pairs_of_turns(int blocks) const { return std::min(pair_turns * blocks, pairs()); }
};

struct TileOfHead {
  int head, row_tile, split;
};

// Pair t of two heads is the first's tile row_tiles - 1 - t and the second's tile t. When the first
// `done` pairs are, this is what is left: by level (a row tile and a split, from the last tile on)
// the heads after these two, and those of the two that are not done with it.
struct RestOfPairs {
  int row_tiles, splits;
  int first_head, others;  // of the two; the number of those after them
  int edge;                // first levels, of the second head, and last ones, of the first
  int middle;              // of the two, how many have the levels between

  constexpr RestOfPairs(const ForwardTiles& tiles, int done)
      : row_tiles(tiles.row_tiles),
        splits(tiles.splits),
        first_head(done / row_tiles * 2),
        others(std::max(0, tiles.heads - first_head - 2)),
        edge(std::min(done % row_tiles, row_tiles - done % row_tiles)),
        middle(edge < done % row_tiles ? 0 : std::min(2, tiles.heads - first_head)) {}

  constexpr int levels() const { return row_tiles * splits; }
  constexpr int heads_of(int level) const {
    return others + (level < edge || level >= levels() - edge ? 1 : middle);
  }

  // The tile at `index` of all that are left; false beyond the last.
  constexpr bool find(int index, TileOfHead& tile) const {
    const int outer = edge * (others + 1), inner = (levels() - 2 * edge) * (others + middle);
    const bool is_outer = index < outer, is_inner = !is_outer && index < outer + inner;
    const int width = others + (is_inner ? middle : 1);
    const int begin = is_outer ? 0 : is_inner ? outer : outer + inner;
    const int level = (is_outer ? 0 : is_inner ? edge : levels() - edge) + (index - begin) / width;
    if (level >= levels()) return false;
    const int head = (index - begin) % width;
    tile.head = first_head + (head < others ? 2 + head : head - others + (is_outer ? 1 : 0));
    tile.row_tile = row_tiles - 1 - level / splits;
    tile.split = level % splits;
    return true;
  }
};

// The tiles of one of the blocks.
class ForwardTurns {
 public:
  constexpr ForwardTurns(const ForwardTiles& tiles, int block, int blocks)
      : tiles_(tiles), block_(block), blocks_(blocks) {}

  // False when there is no more.
  constexpr bool next(TileOfHead& tile) {
    const int row_tiles = tiles_.row_tiles;
    if (!tiles_.differ) {
      const int index = turn_++ * blocks_ + block_, head_split = index / row_tiles;
      tile = {head_split / tiles_.splits, index % row_tiles, head_split % tiles_.splits};
      return tile.head < tiles_.heads;
    }
    while (turn_ < 2 * tiles_.pair_turns) {
      const int turn = turn_++, pair = turn / 2 * blocks_ + block_, at = pair % row_tiles;
      tile = {pair / row_tiles * 2 + turn % 2, turn % 2 == 0 ? row_tiles - 1 - at : at, 0};
      if (pair < tiles_.pairs()) return true;
    }
    const int rest = turn_++ - 2 * tiles_.pair_turns;
    const int place = rest % 2 == 0 ? block_ : blocks_ - 1 - block_;
    return RestOfPairs(tiles_, tiles_.pairs_of_turns(blocks_)).find(rest * blocks_ + place, tile);
  }

 private:
  ForwardTiles tiles_;
  int block_, blocks_;
  int turn_ = 0;
};

}  // namespace flashstep::attention_cuda
