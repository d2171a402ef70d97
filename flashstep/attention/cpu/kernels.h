// Attention on the CPU: what the tensor side calls. No torch headers here or below.
#pragma once

#include <cstdint>
#include <functional>

#include "flashstep/attention/problem.h"

namespace flashstep::attention_cpu {

using attention_kernel::Backward;
using attention_kernel::Forward;

// Runs body(task, worker) for every task in [0, tasks), on at most `workers` threads at once;
// worker, in [0, workers), names the thread's scratch memory. The caller brings its thread pool.
struct Parallel {
  int workers;
  std::function<void(int64_t tasks, const std::function<void(int64_t task, int worker)>& body)> run;
};

// The results have the same bits for any number of workers. Scratch memory grows with N and M, not
// with their product. Throws std::bad_alloc.
void forward(const Forward& pass, const Parallel& parallel);
void backward(const Backward& pass, const Parallel& parallel);

}  // namespace flashstep::attention_cpu
