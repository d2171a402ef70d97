// Random numbers that are a pure function of (seed, stream, counter): the same everywhere,
// resumable in O(1), and independent of who draws first. Philox4x32-10 (Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", 2011).
#pragma once

#include <array>
#include <cstdint>

namespace flashstep {

// Multipliers and Weyl increments of the paper's Philox4x32 (table 2 and section 3.3).
inline constexpr uint64_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr int kPhiloxRounds = 10;
struct PhiloxKey {
  explicit PhiloxKey(uint64_t key)
      : word0(static_cast<uint32_t>(key)), word1(static_cast<uint32_t>(key >> 32)) {}
  void advance() {
    word0 += 0x9E3779B9;
    word1 += 0xBB67AE85;
  }
  uint32_t word0, word1;  // of a round
};

// Four independent 32-bit words for the 128-bit `counter` under the 64-bit `key`.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, uint64_t key);

// A sequence of draws: (seed, stream) names it, how many were drawn is all of its state.
class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0, uint64_t position = 0)
      : seed_(seed), stream_(stream), position_(position) {}

  uint64_t next_u64();
  // Uniform in [0, bound), without bias (rejection); bound > 0.
  uint64_t below(uint64_t bound);
  // Uniform in [0, 1) with 53 bits.
  double uniform();

 private:
  uint64_t seed_, stream_, position_;
  std::array<uint32_t, 4> block_{};
  uint64_t block_index_ = ~0ull;  // which block of two words `block_` holds
};

}  // namespace flashstep
