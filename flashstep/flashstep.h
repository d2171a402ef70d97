// All that a training program of one's own starts from, LibTorch's own umbrella included. Each part
// stands alone as well, and compiles faster.
#pragma once

#include <torch/torch.h>

#include "flashstep/attention/attention.h"
#include "flashstep/base/error.h"
#include "flashstep/base/run_main.h"
#include "flashstep/comm/environment.h"
#include "flashstep/comm/group.h"
#include "flashstep/data/batches.h"
#include "flashstep/data/token_file.h"
#include "flashstep/model/transformer.h"
#include "flashstep/ops/autocast.h"
#include "flashstep/ops/cross_entropy.h"
#include "flashstep/ops/grad_norm.h"
#include "flashstep/ops/linear.h"
#include "flashstep/ops/linear_cross_entropy.h"
#include "flashstep/ops/recompute.h"
#include "flashstep/ops/rms_norm.h"
#include "flashstep/ops/rope.h"
#include "flashstep/ops/swiglu.h"
#include "flashstep/parallel/distributed_data_parallel.h"
#include "flashstep/parallel/sharded_optimizer.h"
#include "flashstep/tokenizer/tokenizer.h"
#include "flashstep/train/adamw.h"
#include "flashstep/train/checkpoint.h"
#include "flashstep/train/loop.h"
#include "flashstep/train/schedule.h"
