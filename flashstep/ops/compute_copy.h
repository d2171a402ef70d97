// Copies of float32 parameters in the 16-bit dtype that products compute in.
//
// Autocast casts every weight in every step: 6 bytes a parameter. A copy that stays beside its
// parameter is written by the optimizer's kernel for 2, if that is flashstep's AdamW: then the copy
// counts as long as the parameter has the version that AdamW left. Whoever else changes the
// parameter (a checkpoint, an in-place operation, a collective) makes the copy stale, and the next
// use casts it again. Under another optimizer every use casts, because LibTorch's own write through
// data(), which leaves no trace in the version. For who does that between two steps of AdamW:
// forget_compute_copies().
#pragma once

#include <memory>
#include <vector>

#include <torch/types.h>

namespace flashstep {

// The values of `parameter` in `dtype`, without a graph; the parameter itself if that is its dtype.
// The tensor is shared by all callers: it is not to be written.
at::Tensor compute_copy(const at::Tensor& parameter, at::ScalarType dtype);

// The same for matrices (R, C) with the same C: their copies one behind the other, (sum of R, C),
// so that one product takes them all. Parameters of that dtype are a view, where they lie so. Where
// flashstep's AdamW trains one of them, all count by their versions: LibTorch's optimizers must not
// train the others. UserError for matrices that do not fit.
at::Tensor compute_copy(const std::vector<at::Tensor>& parameters, at::ScalarType dtype);

// All copies are stale: parameters were written through data(), or a CUDA graph that was to make
// copies was never replayed.
void forget_compute_copies();

namespace internal {

// For an optimizer that writes the copy with the parameter: the copy, undefined if none agrees with
// the parameter; and, when both have been written on the parameter's stream, the note that they
// agree. It counts as a change of the parameter.
at::Tensor copy_written_with(const at::Tensor& parameter);
// `copy`: what copy_written_with() gave before. `writer`: while it lives, the optimizer goes on
// doing so.
void copy_is_written(const at::Tensor& parameter, const at::Tensor& copy,
                     const std::shared_ptr<void>& writer);

// For who replays CUDA graphs, whose kernels change parameters without the host. Before a replay:
// brings copies up to date that a hand has made stale, in their place. After one: copies that the
// graph's optimizer does not write are stale.
void refresh_copies_before_replay();
void note_replay();

}  // namespace internal

}  // namespace flashstep
