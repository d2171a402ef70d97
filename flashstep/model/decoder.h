// Tokens through a Transformer on a GPU one at a time, by kernels of their own in a CUDA graph.
// decoder.cc in a CUDA build; no_decoder.cc, which takes no model, in the others.
#pragma once

#include <cstdint>
#include <memory>

#include "flashstep/model.h"
#include "flashstep/model/generate.h"

namespace flashstep {

class Decoder {
 public:
  // Whether its kernels take the model: on a GPU, matrices dense, of one 16- or 32-bit dtype, at
  // multiples of 16 bytes; widths multiples of 8 up to 16,384, of heads up to 256; and the block
  // runner is run_blocks_in_order.
  static bool takes(Transformer& model);

  // All three outlive it. The cache is of one sequence, the model's dtype and device.
  Decoder(Transformer& model, KeyValueCache& cache, const GenerateOptions& options);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // What sample() draws of the logits behind `token`, which the cache then ends with, up to
  // rounding: activations are float32 throughout. NotNumbers as for sample(); UserError for a token
  // that is none, or a cache that is full. One stream calls it, a GpuStream's.
  int64_t next(int64_t token, double uniform);
  // (V) float32: those of the last next(), which the next one writes anew.
  const at::Tensor& logits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace flashstep
