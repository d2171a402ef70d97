// The bigram baseline: what a model that sees only the previous token can reach.
#pragma once

#include <cstdint>

#include "flashstep/base/progress.h"
#include "flashstep/detail/token_file.h"

namespace flashstep {

inline constexpr uint64_t kFewestBigramTokens = 20;

// Mean over t >= 1 of -log p(x[t] | x[t-1]) on `held_out`, in nats per token, of
//   p(b | a) = w2 c(a b) / c(a) + w1 c(b) / N + w0 / vocab_size
// with counts c over all N tokens of `train`. The weights (w2, w1, w0) sum to one and depend on
// c(a) by its power of two; they maximise the likelihood of the last tenth of `train` (at most a
// million tokens) under the counts of the rest, found by expectation-maximisation (Jelinek and
// Mercer, "Interpolated estimation of Markov source parameters", 1980).
// Memory: two numbers per vocabulary entry and one per distinct pair of neighbours in `held_out`
// and in that last tenth; `train` is streamed and may be of any size.
// UserError if `train` has fewer than kFewestBigramTokens, `held_out` fewer than 2, or an id of
// either is not below `vocab_size`.
double bigram_cross_entropy(const TokenFile& train, const TokenFile& held_out, int64_t vocab_size,
                            const ProgressFunction& progress = nullptr);

}  // namespace flashstep
