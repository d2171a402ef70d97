// The state of a divided optimizer as named tensors, independent of how it is divided: what one
// number of ranks wrote, another reads.
//
//   layers.0.w/exp_avg              the state of a whole parameter, of the parameter's shape
//   layers.0.w@128:640/exp_avg      of its elements 128 to 639: (512)
//   layers.0.w@128:640/step         what belongs to the parameter as a whole, again with each piece
//
// Elements are counted in the order of the parameter's memory. Where that is not row by row, the
// strides stand behind: layers.0.w@128:640@1,64.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/parallel/named_tensors.h"

namespace flashstep {

std::string piece_name(const std::string& name, const at::Tensor& parameter, int64_t begin,
                       int64_t end);

// State by pieces, of all ranks, to state of whole parameters, in the order of `parameters`. Whole
// entries stay. Takes `state` as its own and lets go of pieces when their parameter is joined, so
// that memory holds the state once. UserError, naming it, for a parameter that is not in
// `parameters`, of which something is missing or twice there, or whose memory is ordered
// differently now.
NamedTensors join_pieces(NamedTensors state, const NamedTensors& parameters);

// A piece of a parameter: elements [begin, end), or the whole one.
struct NamedPiece {
  std::string name;  // the parameter's
  at::Tensor parameter;
  int64_t begin = -1, end = -1;  // -1: the whole parameter, in its shape
};

// Of whole state what belongs to `pieces`, as new tensors. A parameter without state has none.
NamedTensors cut_pieces(const NamedTensors& whole, const std::vector<NamedPiece>& pieces);

// cut_pieces(join_pieces(state, parameters), pieces), one parameter after the other: of the state
// only `pieces` and one whole parameter are there beside what is left of `state`.
NamedTensors cut_joined(NamedTensors state, const NamedTensors& parameters,
                        const std::vector<NamedPiece>& pieces);

// What a rank goes on holding of the tensors of one parameter.
using KeepFunction = std::function<NamedTensors(NamedTensors)>;

// Rank 0's `state` (whole, or in pieces) on every rank, one parameter after the other, so that no
// rank but the first holds more of it than `keep` returns, and one parameter's. Tensors of none of
// the `parameters` come one by one. All ranks call it; the others' state is ignored.
NamedTensors share_state(NamedTensors state, const NamedTensors& parameters, const Group& group,
                         const KeepFunction& keep);

}  // namespace flashstep
