// The library's only block of operator registrations: loading libflashstep.so defines
// torch.ops.flashstep.* once.
#include <torch/library.h>

#include "flashstep/attention/implementations.h"

TORCH_LIBRARY(flashstep, library) { flashstep::internal::register_attention(library); }
