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
  // Whether its kernels take the model: on a GPU, whole, of one 16- or 32-bit dtype (norms may be
  // of another), widths multiples of 8, calling its blocks one after the other.
  static bool takes(Transformer& model);

  // All three outlive it. The cache is of one sequence, the model's dtype and device.
  Decoder(Transformer& model, KeyValueCache& cache, const GenerateOptions& options);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // What sample() draws of the logits behind `token`, which the cache then ends with, up to
  // rounding: activations are float32 throughout. NotNumbers as for sample(). One stream calls it,
  // a GpuStream's.
  int64_t next(int64_t token, double uniform);
  // (V) float32: those of the last next(), which the next one writes anew.
  const at::Tensor& logits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace flashstep
