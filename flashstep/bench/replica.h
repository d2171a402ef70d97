// One rank's part of a data-parallel training step, for the benchmarks: the course's model, AdamW
// and random tokens, wrapped now one way and now another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "flashstep/bench/model_run.h"
#include "flashstep/bench/parallel_case.h"
#include "flashstep/bench/timing.h"
#include "flashstep/group.h"
#include "flashstep/loop.h"
#include "flashstep/trace/trace.h"
#include "flashstep/train/config.h"

namespace flashstep::tools {

// In a rank that a benchmark started: the memory and the threads as flashstep train has them, and
// the group of all ranks.
std::unique_ptr<Group> begin_rank(const ParallelCase& c);

// The update, with which a step ends.
struct UpdateTrace {
  Trace trace;         // of one step under the profiler, whose host runs ahead as in any step
  double seconds = 0;  // that it takes there, on the device
  // That the host spends in another one, without the profiler, which begins with an idle device:
  // what its launches take that no queue holds up.
  double host_seconds = 0;
};

// c10d's Reducer measures its first ten steps with events, which no graph can hold.
inline constexpr int64_t kStepsBeforeRecording = 12;

class Replica {
 public:
  // `group` must outlive it. The batch is one rank's; the mode is always a whole step.
  Replica(const Workload& workload, Group& group, at::Device device);

  // From now on steps go as `division` says (wrapper "none": every rank by itself), from rank 0's
  // weights and with a new optimizer. What the division before held is freed.
  void divide(const ParallelConfig& division);

  // On a GPU, after some steps of run(): until the next divide() a step is the replay of what one
  // launches now, so that no host holds it up. For an optimizer that is not divided; everything
  // since the Replica was made is under one GpuStream.
  void record() {
    record([this] { update(); });
  }

  // Steps one after the other, as a training loop makes them: the host does not wait for the device
  // between them. It does before and behind them, so that in the first one it has no lead. What
  // replays wait for gradients is not known: their `waited` is 0.
  std::vector<StepTimes> run(int64_t steps);
  // Of one step, whose host runs ahead as in any; both traces are the first rank's, and empty on
  // the others.
  Trace trace_step();
  UpdateTrace trace_update();

  // Largest difference of a weight from a single process's after so many steps, as a share of how
  // far the weight that moved most moved: both update by gradient descent, which no wrong factor
  // escapes (AdamW is blind to one), from the same weights, the single process taking all ranks'
  // rows in micro-batches. divide() comes with it. `recorded`: of replays.
  double weight_error(const ParallelConfig& division, int64_t steps, bool recorded = false);

  bool is_recorded() const { return !recorded_.empty(); }
  // Facts, "" or 0 where nothing is sent: "bucket_megabytes" in use, "buckets" ("bucketed, 31
  // buckets of up to 298 MB"), and the transports "gradients by" and "updates by".
  void describe(Record& record) const;
  const TransformerImpl& model() const { return *model_; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  at::Device device() const { return device_; }

  // A step in its parts, for who measures between them.
  void zero_grad() { model_->zero_grad(); }
  at::Tensor forward();
  void backward(const at::Tensor& loss);  // until every gradient is the mean
  void make_gradients();                  // all of that
  void update() { optimizer_->step(); }

 private:
  void step(Marks& marks);  // sets five marks: where its parts begin and end
  void record(const std::function<void()>& update);
  void replay(Marks& marks);
  void descend();
  std::vector<at::Tensor> copy_of_weights() const;
  // And the seconds of `part`.
  std::pair<Trace, double> trace_part(const std::function<void()>& before,
                                      const std::function<void()>& part);

  Workload workload_;
  Group& group_;
  at::Device device_;
  Transformer model_;
  std::vector<TokenRows> rows_;  // by rank
  std::shared_ptr<Parallelism> parallel_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  // Of a step that was recorded, else empty: forward, backward and the update.
  std::vector<std::unique_ptr<RecordedWork>> recorded_;
};

}  // namespace flashstep::tools
