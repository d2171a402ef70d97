#include "flashstep/base/rng.h"

#include <cstddef>

namespace flashstep {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, uint64_t key) {
  PhiloxKey round_key(key);
  for (int round = 0; round < kPhiloxRounds; ++round, round_key.advance()) {
    const uint64_t product0 = kPhiloxMultiplier0 * counter[0],
                   product1 = kPhiloxMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ round_key.word0,
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ round_key.word1,
               static_cast<uint32_t>(product0)};
  }
  return counter;
}

uint64_t Rng::next_u64() {
  const uint64_t index = position_ / 2;
  if (index != block_index_) {
    block_ = philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                     static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                    seed_);
    block_index_ = index;
  }
  const size_t word = position_ % 2 * 2;
  ++position_;
  return static_cast<uint64_t>(block_[word]) << 32 | block_[word + 1];
}

uint64_t Rng::below(uint64_t bound) {
  // Lemire, "Fast random integer generation in an interval" (2019): a multiplication in place of a
  // division, redrawing the few products that would favour small values.
  __extension__ using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(next_u64()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t threshold = -bound % bound;
    while (static_cast<uint64_t>(product) < threshold) {
      product = static_cast<Wide>(next_u64()) * bound;
    }
  }
  return static_cast<uint64_t>(product >> 64);
}

double Rng::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1.0p-53; }

}  // namespace flashstep
