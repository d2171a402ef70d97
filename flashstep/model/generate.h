// Text from a model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "flashstep/error.h"
#include "flashstep/model.h"

namespace flashstep {

// A model's logits are NaN, as those of a run that diverged.
class NotNumbers : public UserError {
 public:
  using UserError::UserError;
};

struct GenerateOptions {
  int64_t max_tokens = 256;           // at most so many new ones
  double temperature = 1.0;           // 0: always the likeliest token
  int64_t top_k = 0;                  // sample among the k likeliest only; 0: among all
  double top_p = 1.0;                 // ... among the fewest whose probabilities reach p together
  std::optional<int64_t> stop_token;  // ends the text and is not part of it
  uint64_t seed = 0;
  bool use_cache = true;
  // Called with each new token as it comes; generation ends when it returns false.
  std::function<bool(int64_t token)> on_token;
};

// The new tokens after `prompt` (int64, at least one). The same seed gives the same tokens, with
// and without the cache up to rounding of the logits. Where prompt and text outgrow context_length,
// the older half of the window is forgotten. UserError for an empty prompt, an id outside the
// vocabulary or an option out of range, NotNumbers as for sample().
std::vector<int64_t> generate(Transformer& model, std::span<const int64_t> prompt,
                              const GenerateOptions& options);

// One draw from softmax(logits / temperature) restricted by top_k and top_p; `uniform` in [0, 1)
// decides. logits: V numbers; NotNumbers where one is NaN. Ties go to the lower id.
int64_t sample(std::span<const float> logits, const GenerateOptions& options, double uniform);

}  // namespace flashstep
