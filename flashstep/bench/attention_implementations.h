// What `flashstep bench attention` measures: our implementations and their peers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/bench/attention_cases.h"
#include "flashstep/bench/turns.h"

namespace flashstep::tools {

// What all implementations of a case share.
struct AttentionRound {
  AttentionCase c;
  at::Device device = at::kCPU;
  uint64_t seed = 0;                         // of inputs[0]
  std::vector<AttentionInputs> inputs = {};  // sets that calls take in turn
  // Of inputs[0]; with gradients only when they are measured.
  std::optional<AttentionReference> reference = {};
  bool gradients = true;
};

// One implementation ready to compute one case, of a round that outlives it. UserError, whose text
// begins with "refused: ", where it takes no such case. Its calls take the inputs in turn; the
// forward pass keeps what backward needs; the backward pass is LibTorch's autograd.
class AttentionImplementation : public Implementation {
 public:
  explicit AttentionImplementation(const AttentionRound& round) : round_(round) {}
  // On the first of the inputs. Gradients only when asked for.
  virtual AttentionOutcome outcome(bool gradients) = 0;

  void check() override { errors_ = round_.reference->errors(outcome(round_.gradients)); }
  void note(const std::string& pass, Record& record) const override;

 protected:
  const AttentionRound& round_;

 private:
  AttentionErrors errors_;
};

struct AttentionCandidate {
  std::string name;
  bool ours = false;
  std::function<std::unique_ptr<AttentionImplementation>(const AttentionRound&)> make;
  // What it computes a case with, where that is a function of tensors in this process; refuses like
  // `make`.
  std::function<AttentionForward(const AttentionRound&)> function;
};

// The implementation that is our CUDA kernels as `deterministic` wants them.
inline constexpr const char* kDeterministic = "deterministic";

// Ours by their names ("auto" first; the formula and PyTorch's are peers here; kDeterministic on a
// GPU), then the peers of this device: naive; PyTorch's scaled_dot_product_attention as it chooses
// itself (sdpa) and, on a GPU, as math, flash, efficient and cudnn, each with only that backend
// switched on.
std::vector<AttentionCandidate> attention_candidates(const at::Device& device);

// "compiled": PyTorch's compiled formula in a Python process of its own,
// scripts/peers/attention_torch.py, started by `command`. Where it does not start, or ends, it
// refuses every case. It draws the inputs by itself; its results are checked as all others are.
AttentionCandidate compiled_candidate(const std::vector<std::string>& command);

}  // namespace flashstep::tools
