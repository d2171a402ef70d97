// Copies of float32 parameters in the 16-bit dtype that products compute in.
//
// Autocast casts every weight in every step: 6 bytes a parameter. A copy that stays beside its
// parameter is written by the optimizer's kernel for 2. It remembers the version of the parameter
// that it was made of: whoever else changes the parameter (another optimizer, a checkpoint, a hand)
// makes it stale, and the next use casts it again. So it is right for any optimizer.
#pragma once

#include <vector>

#include <torch/types.h>

namespace flashstep {

// The values of `parameter` in `dtype`, without a graph; the parameter itself if that is its dtype.
// The tensor is shared by all callers: it is not to be written.
at::Tensor compute_copy(const at::Tensor& parameter, at::ScalarType dtype);

// The same for matrices (R, C) with the same C: their copies one behind the other, (sum of R, C),
// so that one product takes them all. UserError for matrices that do not fit.
at::Tensor compute_copy(const std::vector<at::Tensor>& parameters, at::ScalarType dtype);

namespace internal {

// For an optimizer that writes the copy with the parameter: the copy, undefined if there is none;
// and, when both have been written on the parameter's stream, the note that they agree. It counts
// as a change of the parameter.
at::Tensor copy_written_with(const at::Tensor& parameter);
void copy_is_written(const at::Tensor& parameter);

// For who replays CUDA graphs, whose kernels change parameters without the host. Before a replay:
// brings copies up to date that a hand has made stale, in their place. After one: copies that the
// graph's optimizer does not write are stale.
void refresh_copies_before_replay();
void note_replay();

// All copies are stale: a capture that failed may have promised some that were never made.
void forget_compute_copies();

}  // namespace internal

}  // namespace flashstep
