// How a forward pass is cut into blocks: a function of the problem and the GPU's numbers alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "flashstep/attention/cuda/device.h"
#include "flashstep/attention/cuda/forward_tile.h"
#include "flashstep/attention/problem.h"

namespace flashstep::attention_cuda {

using attention_kernel::Problem;

struct ForwardPlan {
  int dim;          // padded head dim
  TileShape shape;  // forward_tile(element, dim, shape)
  int shared_bytes;
  int64_t row_tiles;       // of a head
  int splits;              // parts of the keys; partial results are merged where it is above 1
  int64_t keys_per_split;  // a multiple of the tile's keys
  int section_heads;       // heads that run side by side, their keys and values in L2
  int64_t blocks;
  int64_t resident_blocks;  // that are launched: all, or of warpgroups what fits (ForwardTurns)
  int pair_turns;           // of warpgroups: whole turns of pairs of tiles
  size_t workspace_bytes;
};

// In tiles of this shape, which must be there for the problem, and about `splits` parts of the
// keys.
ForwardPlan plan_of(const Problem& problem, const Device& device, TileShape shape, int splits);

// The shape and splits that cost least.
ForwardPlan plan_forward(const Problem& problem, const Device& device);

// One line: "head dim 64, tile 128 queries x 64 keys, ...", for reports and failed tests.
std::string to_string(const ForwardPlan& plan, const Problem& problem);

}  // namespace flashstep::attention_cuda
