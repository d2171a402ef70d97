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

#include "flashstep/detail/named_tensors.h"
#include "flashstep/parallel/stored_tensors.h"

namespace flashstep {

// A piece of a parameter: elements [begin, end), or the whole one.
struct NamedPiece {
  std::string name;  // the parameter's
  at::Tensor parameter;
  int64_t begin = -1, end = -1;  // -1: the whole parameter, in its shape
  at::Tensor own = {};           // what is updated for it, where that is known
};

std::string piece_name(const std::string& name, const at::Tensor& parameter, int64_t begin,
                       int64_t end);
std::string name_of(const NamedPiece& piece);  // the parameter's, if it is whole

// Of `state`, whole or in pieces that any number of ranks wrote, what belongs to `pieces`: `use`
// gets it as new tensors, one parameter after the other in the order of `parameters`. Of a
// parameter's elements those are read that a piece has, from the first to the last, in one read of
// each tensor (an empty one where there are none): with all ranks the same reads. Lets go of
// `state` on the way, so that memory holds it once. A parameter without state has none. UserError,
// naming it, for a parameter that is not in `parameters`, of which something is missing or twice
// there, or whose memory is ordered differently now.
using UsePiece = std::function<void(const NamedPiece& piece, NamedTensors state)>;
void cut_each(StoredTensors state, const NamedTensors& parameters,
              const std::vector<NamedPiece>& pieces, const UsePiece& use);

// The same in one list.
NamedTensors cut_joined(StoredTensors state, const NamedTensors& parameters,
                        const std::vector<NamedPiece>& pieces);

// The state of whole parameters.
NamedTensors join_pieces(NamedTensors state, const NamedTensors& parameters);

}  // namespace flashstep
