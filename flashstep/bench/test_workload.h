// A workload that a test can run in milliseconds.
#pragma once

#include <string>

#include "flashstep/bench/workload.h"

namespace flashstep::tools {

inline Workload small_workload(const std::string& mode = "step",
                               const std::string& precision = "fp32") {
  Workload workload;
  workload.model = model_by_name("32/64/2/2");
  workload.model.vocab_size = 64;
  workload.model.context_length = 16;
  workload.batch_size = 2;
  workload.mode = mode;
  workload.precision = precision;
  return workload;
}

}  // namespace flashstep::tools
