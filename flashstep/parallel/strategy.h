// When gradients travel, and in how many pieces: what GradientReducer is asked for by name.
// docs/parallel.md tells what each costs.
#pragma once

#include <string>
#include <vector>

namespace flashstep {

enum class Strategy {
  kNaive,       // one all-reduce per parameter, one after the other, after backward
  kFlat,        // one all-reduce for all (of a device and dtype), after backward
  kOverlapped,  // one per parameter, while backward goes on
  kBucketed,    // one per bucket of parameters, while backward goes on
  kTorch,       // c10d's own Reducer: the peer
};
Strategy strategy_by_name(const std::string& name);  // "naive", ..., "torch"; else UserError
std::string strategy_name(Strategy strategy);
std::vector<std::string> strategy_names();

}  // namespace flashstep
