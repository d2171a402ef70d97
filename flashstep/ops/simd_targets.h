// Which instruction sets kernels are compiled for: AVX-512, AVX2 and the baseline.
// Included before Highway's own headers, which read it.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
