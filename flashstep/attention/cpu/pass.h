// What the tasks of one pass share.
#pragma once

#include <hwy/aligned_allocator.h>

#include "flashstep/attention/cpu/kernels.h"
#include "flashstep/attention/cpu/plan.h"

namespace flashstep::attention_cpu {

// The factor on scores without its sign: the sign goes into the packed queries, where it rounds
// nothing, so that a row's highest score is known before the factor is applied.
struct Scale {
  float sign;     // 1, -1, or 0 where all scores are 0
  float natural;  // > 0
  float base_2;   // natural * log2(e)
};

Scale split_scale(float scale);

// What this process runs on; the instruction sets as Highway's dispatch sees them.
Machine this_machine();

// Words of 4 bytes, on cache lines. Throws std::bad_alloc.
using Memory = hwy::AlignedFreeUniquePtr<float[]>;
Memory allocate(int64_t words);

struct ForwardPass {
  const Forward& args;
  Problem problem;
  ForwardPlan plan;
  Scale scale;
  float* packed = nullptr;
  float* scratch = nullptr;
  int64_t first_head = 0;  // of the wave, among the key/value heads of all batches

  template <typename Word>
  Word* packed_tile(int64_t head, int64_t tile) const {
    return reinterpret_cast<Word*>(packed + head * plan.head_words + tile * plan.tile_words);
  }
  template <typename Word>
  Word* scratch_of(int worker) const {
    return reinterpret_cast<Word*>(scratch + worker * plan.scratch_words);
  }
};

struct BackwardPass {
  const Backward& args;
  Problem problem;
  BackwardPlan plan;
  Scale scale;
  float* logsumexp = nullptr;  // (B, H, N), +infinity for rows that see nothing
  float* delta = nullptr;      // (B, H, N) sum of out * grad_out, minus grad_logsumexp
  float* grad_q = nullptr;     // (heads of the wave, chunks) partial sums
  float* scratch = nullptr;
  int64_t first_head = 0;

  float* partial_grad_q(int64_t head, int64_t chunk) const {
    return grad_q + (head * plan.chunks + chunk) * plan.grad_q_floats;
  }
  template <typename Word>
  Word* scratch_of(int worker) const {
    return reinterpret_cast<Word*>(scratch + worker * plan.scratch_words);
  }
};

}  // namespace flashstep::attention_cpu
