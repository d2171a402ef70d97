// What the backward of an operator says that is differentiable once.
#pragma once

#include <ATen/core/grad_mode.h>

#include "flashstep/base/called_back.h"
#include "flashstep/error.h"

namespace flashstep::internal {

// For the beginning of a backward made of kernels: UserError under create_graph, where PyTorch
// would take what they give for constants and drop second derivatives without a word.
inline void refuse_create_graph(const char* operation,
                                const char* reason = "it has no second derivatives") {
  called_back([&] {
    require(!at::GradMode::is_enabled(), "[", operation,
            "] expected a backward without create_graph: ", reason);
  });
}

}  // namespace flashstep::internal
