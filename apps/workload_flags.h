// The flags of the commands that measure one model on one device: bench step, profile, memory.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "flashstep/bench/workload.h"

namespace flashstep::apps {

// Each flag that is given replaces a list, or a value, of the command's own axes.
class WorkloadFlags {
 public:
  // --size, --context, --batch, --mode, --precision, --attention, --device, --clip, --seed, and by
  // hand --d-model, --d-ff, --layers, --heads, --vocab, --rope-theta, --norm-epsilon. It must
  // outlive the parsing.
  void add_options(CLI::App& command);

  // Without --device the GPU if there is one. `all` among the sizes: those of the 2025 handout.
  void apply(tools::WorkloadAxes& axes) const;

 private:
  tools::WorkloadAxes given_ = {.sizes = {},
                                .contexts = {},
                                .precisions = {},
                                .attentions = {},
                                .modes = {},
                                .common = {.model = {}, .device = ""}};
};

}  // namespace flashstep::apps
