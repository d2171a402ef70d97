// The bigram model's held-out loss, counted once for a run.
#pragma once

#include <cstdint>
#include <filesystem>

#include "flashstep/detail/token_file.h"

namespace flashstep {

// bigram_cross_entropy(), which reads every token. It is kept in `path`, with what tells its
// token files apart, and taken from there when the same run asks again. Interrupted when a
// SignalGuard has received a signal.
double bigram_loss_of_run(const std::filesystem::path& path, const TokenFile& train,
                          const TokenFile& validation, int64_t vocab_size, bool quiet);

}  // namespace flashstep
