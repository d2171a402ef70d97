#include "flashstep/comm/rounds_of_means.h"

#include <algorithm>

namespace flashstep {
namespace {

constexpr double kNearby = 0.25;  // of a part

size_t distance(size_t a, size_t b) { return a < b ? b - a : a - b; }

// The end of a part from `begin` on, of those that share the rest.
size_t end_of_part(const RoundOfMeans& round, size_t begin, size_t total, size_t ranks,
                   size_t most) {
  const size_t even = begin + in_lines((total - begin + ranks - 1) / ranks);
  size_t best = std::min(even, total);
  auto nearest = static_cast<size_t>(kNearby * static_cast<double>(even - begin));
  for (const PieceOfRound& piece : round.pieces) {
    const size_t end = piece.place;  // of the one before
    if (end <= begin || end - begin > most || total - end > most * (ranks - 1)) continue;
    if (distance(end, even) > nearest) continue;
    nearest = distance(end, even);
    best = end;
  }
  return best;
}

void divide(RoundOfMeans& round, size_t total, int world_size, size_t most) {
  size_t begin = 0;
  for (int ranks = world_size; ranks > 1; --ranks) {
    begin = end_of_part(round, begin, total, static_cast<size_t>(ranks), most);
    round.ends.push_back(begin);
  }
  round.ends.push_back(total);
}

}  // namespace

size_t in_lines(size_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

size_t most_part(size_t share) {
  return in_lines(static_cast<size_t>(kMostOfShare * static_cast<double>(share)));
}

size_t RoundOfMeans::most_received() const {
  size_t least = ends.back();
  for (size_t rank = 0; rank < ends.size(); ++rank)
    least = std::min(least, part(static_cast<int>(rank)));
  return ends.back() - least;
}

std::vector<RoundOfMeans> rounds_of_means(const std::vector<size_t>& tensor_bytes, int world_size,
                                          size_t share) {
  const size_t most = share * static_cast<size_t>(world_size);
  std::vector<RoundOfMeans> rounds;
  size_t filled = most;  // of the last round
  const auto end_round = [&] {
    if (!rounds.empty()) divide(rounds.back(), filled, world_size, most_part(share));
  };
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    for (size_t done = 0; done < tensor_bytes[i];) {
      const size_t rest = tensor_bytes[i] - done;
      if (filled == most || (rest > most - filled && done == 0 && 2 * filled >= most)) {
        end_round();
        rounds.emplace_back();
        filled = 0;
      }
      const size_t bytes = std::min(rest, most - filled);
      rounds.back().pieces.push_back({i, done, bytes, filled});
      done += bytes;
      filled += in_lines(bytes);
    }
  }
  end_round();
  return rounds;
}

}  // namespace flashstep
