// The library's only block of registrations: loading libflashstep.so defines torch.ops.flashstep.*
// and torch.classes.flashstep.* once, for Python and for whoever else knows PyTorch's dispatcher.
// libflashstep_tools.so adds reports (report/for_python.cc).
#include <torch/library.h>

#include "flashstep/bindings/registrations.h"

TORCH_LIBRARY(flashstep, library) {
  flashstep::bindings::register_attention(library);
  flashstep::bindings::register_layer_operators(library);
  flashstep::bindings::register_loss_operators(library);
  flashstep::bindings::register_float8_operators(library);
  flashstep::bindings::register_training(library);
  flashstep::bindings::register_group(library);
  flashstep::bindings::register_data_parallel(library);
  flashstep::bindings::register_files(library);
  flashstep::bindings::register_sharded_optimizer(library);
  flashstep::bindings::register_fully_sharded(library);
  flashstep::bindings::register_ranges(library);
  flashstep::bindings::register_text(library);
}
