// How tensors are divided for their mean over ranks (peer_mean.h): into rounds, one after the
// other, and each round into a part for every rank to sum up. The same on all ranks.
#pragma once

#include <cstddef>
#include <vector>

namespace flashstep {

// Where tensors and ranks' parts begin in a round: a line of the cache, so that all copies are
// aligned as the tensors are.
inline constexpr size_t kLineBytes = 128;

// Bytes [begin, begin + bytes) of a tensor, at `place` in the round.
struct PieceOfRound {
  size_t tensor, begin, bytes, place;
};

struct RoundOfMeans {
  std::vector<PieceOfRound> pieces;
  std::vector<size_t> ends;  // of each rank's part; the last is the round's

  size_t begin(int rank) const { return rank == 0 ? 0 : ends[rank - 1]; }
  size_t part(int rank) const { return ends[rank] - begin(rank); }
  // Of all parts but the receiver's, laid side by side: where rank `from`'s begins, and the most
  // that any receiver has.
  size_t offset(int from, int receiver) const {
    return begin(from) - (from > receiver ? part(receiver) : 0);
  }
  size_t most_received() const;
};

// What a rank sums up of a round is `share` bytes at most on average, and kMostOfShare times as
// much at most: a tensor that lies whole in one part needs no copy of its own when its mean
// arrives, so rounds and parts end between tensors where one ends nearby.
inline constexpr double kMostOfShare = 1.25;
size_t most_part(size_t share);
// `share` a multiple of kLineBytes.
std::vector<RoundOfMeans> rounds_of_means(const std::vector<size_t>& tensor_bytes, int world_size,
                                          size_t share);

size_t in_lines(size_t bytes);  // the same or more, whole lines

}  // namespace flashstep
