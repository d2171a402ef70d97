// Memory of training, and what recomputing activations saves and costs: the only home of these
// formulas. Torch-free.
#pragma once

#include <cstdint>

namespace flashstep {

// Bytes of one element.
struct StateWidths {
  double parameter = 4;
  double gradient = 4;
  double moment = 4;  // each of AdamW's two
  double copy = 0;    // a compute copy
};

// Bytes that live from step to step, and gradients.
struct StateBytes {
  double parameters = 0;
  double copies = 0;
  double gradients = 0;
  double optimizer = 0;  // the two moments
  double total() const { return parameters + copies + gradients + optimizer; }
};
StateBytes state_bytes(double parameters, const StateWidths& widths = {});

// What an update must pass through memory: parameter, gradient and two moments read, all but the
// gradient written, and the copy: 28 bytes a parameter in float32, 20 with all but the parameter in
// 16 bits, 14 with all of it and no copy.
double update_traffic_bytes(double parameters, const StateWidths& widths = {});

// ---- Recomputation in a stack of n equal blocks
//
// A block keeps `saved` bytes for backward, its input included, which has `boundary` bytes. What is
// recomputed keeps only inputs. Gradients of the stream are left out.

struct BlockStack {
  int64_t blocks = 1;
  double boundary_bytes = 0;
  double saved_bytes = 0;
};
struct RecomputeCost {
  double boundaries = 0;      // at the peak, beside what the blocks below keep
  double saved_blocks = 0;    // at the peak: blocks with all that they keep
  double block_forwards = 0;  // n without recomputation
  double peak_bytes = 0;
};

RecomputeCost keep_everything(const BlockStack& stack);

// Groups of `size` blocks, each run again as a whole in backward, none inside another. The peak is
// the last group's, beside the inputs of those before it: (ceil(n / size) - 1) boundaries and
// `size` blocks; where the last group is short, perhaps that of the one before.
RecomputeCost recompute_groups(const BlockStack& stack, int64_t size);

// The size with the lowest peak, by trying all: about sqrt(n boundary / saved). The smallest of
// equals, which holds the least beside the peak.
int64_t best_group_size(const BlockStack& stack);

// Halves that are recomputed, in halves that are recomputed, down to one block: one boundary a
// level, ceil(log2 n) in all, and one block; every level runs all blocks once more.
RecomputeCost recompute_halves(const BlockStack& stack);

// Only the first input is kept; for every block all blocks before it run again: one boundary, one
// block, n (n + 1) / 2 forwards. No scheme that divides the stack into blocks needs less memory.
RecomputeCost recompute_from_start(const BlockStack& stack);

// The fewest forwards with at most `kept` boundaries beside the first input: run m blocks, keep
// what comes out, finish the rest with one boundary less, then the m blocks with all; m by trying
// all. A boundary that is the input of the block under way is counted twice. Source: Griewank and
// Walther, "Algorithm 799: revolve" (2000). UserError for more than kMostSearchedBlocks.
constexpr int64_t kMostSearchedBlocks = 1024;  // n^2 / 2 splits for each boundary: milliseconds
RecomputeCost recompute_with(const BlockStack& stack, int64_t kept);

}  // namespace flashstep
