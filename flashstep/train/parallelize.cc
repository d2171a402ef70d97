#include "flashstep/train/parallelize.h"

#include "flashstep/base/error.h"

namespace flashstep::train {

ParallelHooks parallelize(torch::nn::Module& /*module*/, const ParallelConfig& config) {
  require(config.wrapper == "none", "[parallel] expected wrapper none, the only one there is, got ",
          config.wrapper);
  return {};
}

}  // namespace flashstep::train
