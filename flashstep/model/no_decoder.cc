// A build without CUDA: no model is taken, so that nobody calls the rest.
#include "flashstep/error.h"
#include "flashstep/model/decoder.h"

namespace flashstep {

struct Decoder::State {
  at::Tensor logits;
};
bool Decoder::takes(Transformer&) { return false; }
Decoder::Decoder(Transformer&, KeyValueCache&, const GenerateOptions&) {
  throw MachineError("[generate] expected a build with CUDA, got one without");
}
Decoder::~Decoder() = default;
int64_t Decoder::next(int64_t, double) { return 0; }
const at::Tensor& Decoder::logits() const { return state_->logits; }

}  // namespace flashstep
