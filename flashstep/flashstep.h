// All of flashstep's public interface, LibTorch's own umbrella included. Each part stands alone as
// well, and compiles faster.
#pragma once

#include <torch/torch.h>

#include "flashstep/amp.h"
#include "flashstep/attention.h"
#include "flashstep/checkpoint.h"
#include "flashstep/data.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/fully_sharded.h"
#include "flashstep/group.h"
#include "flashstep/loop.h"
#include "flashstep/model.h"
#include "flashstep/ops.h"
#include "flashstep/optim.h"
#include "flashstep/profiling.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/sharded_units.h"
#include "flashstep/tokenizer.h"
#include "flashstep/version.h"
