#include <span>
#include <vector>

#include <torch/types.h>

#include "flashstep/data.h"

namespace flashstep {

BatchSampler::BatchSampler(const TokenFile& tokens, const BatchOptions& options,
                           std::optional<int64_t> vocab_size)
    : tokens_(tokens),
      order_(tokens.size(), options, tokens.path().string()),
      vocab_size_(vocab_size) {}

Batch BatchSampler::at(int64_t step, int64_t micro_step, bool pin_memory) const {
  const int64_t rows = order_.options().batch_size, context = order_.options().context_length;
  const auto int64 = at::TensorOptions(at::kLong).pinned_memory(pin_memory);
  Batch batch{at::empty({rows, context}, int64), at::empty({rows, context}, int64)};
  int64_t* inputs = batch.inputs.mutable_data_ptr<int64_t>();
  int64_t* targets = batch.targets.mutable_data_ptr<int64_t>();
  tokens_.check_size();
  for (int64_t row = 0; row < rows; ++row) {
    const uint64_t start = order_.start(step, micro_step, row);
    const auto length = static_cast<size_t>(context);
    if (vocab_size_) tokens_.check_ids_below(*vocab_size_, start, start + length + 1);
    tokens_.read(start, std::span(inputs + row * context, length));
    tokens_.read(start + 1, std::span(targets + row * context, length));
  }
  return batch;
}

}  // namespace flashstep
