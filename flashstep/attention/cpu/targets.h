// Which instruction sets this room's kernels are compiled for: AVX-512, AVX2 and the baseline (on
// Arm: NEON). Included before Highway's own headers, which read it.
#pragma once

// Blocks of accumulators are arrays of vectors, which vectors of unknown size cannot form.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
