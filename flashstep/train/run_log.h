// Everything that a run tells about itself: metrics.jsonl, TensorBoard, the progress bar,
// samples.txt.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/base/progress.h"
#include "flashstep/loop.h"
#include "flashstep/train/metrics_log.h"
#include "flashstep/train/run_directory.h"
#include "flashstep/train/run_state.h"
#include "flashstep/train/tensorboard.h"

namespace flashstep {

// Steps are handed in as they are started and written when the device has finished them: the losses
// of many steps come to the host in one copy, so that the host does not wait at each step.
class RunLog {
 public:
  // The log goes on after `first_step` updates; lines of later steps are removed.
  RunLog(const RunDirectory& directory, const Job& job, const LoopOptions& options,
         int64_t first_step, RunCounters counters);

  // Update number `step` was started.
  void add(int64_t step, double learning_rate, StepResult result);
  // Counts which of the added steps were skipped, where it costs nothing to ask. A GPU is not
  // waited for: the host runs ahead of it, and its steps are counted when they are flushed.
  void look();
  // True when it is time to look: half a second has gone by, or many steps wait.
  bool is_due() const;
  // Writes all that waits, with the held-out loss at its last step if there is one (at step 0 there
  // are no others). Waits for the device.
  void flush(int64_t step, std::optional<double> held_out_loss = std::nullopt);
  // Whether metrics.jsonl has a held-out loss of `step`, its last, and samples.txt a sample.
  bool is_evaluated(int64_t step) const;
  bool is_sampled(int64_t step) const;
  // flush(), then durable.
  void sync(int64_t step);

  // True when too many steps in a row were skipped; then why_given_up() says so for people.
  bool gave_up() const { return gave_up_at_ >= 0; }
  std::string why_given_up() const;

  // While one is alive no steps are taken: evaluating, saving and sampling are none of their time.
  class Pause {
   public:
    explicit Pause(RunLog* log);  // null: nothing is measured
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    RunLog* log_;
    double began_s_ = 0;
  };

  // A line for people, above the bar; where it is quiet, only a warning.
  void warn(const std::string& line);
  void print(const std::string& line);
  void sample(int64_t step, const std::string& text);
  void finish();

  const RunCounters& counters() const { return counters_; }

 private:
  struct Pending {
    int64_t step;
    double learning_rate;
    StepResult result;
  };
  void count_skipped(int64_t step, bool skipped);
  void show(int64_t step);

  const Job& job_;
  const LoopOptions& options_;
  std::filesystem::path samples_;
  MetricsLog metrics_;
  std::unique_ptr<EventWriter> events_;
  std::unique_ptr<ProgressBar> bar_;
  RunCounters counters_;
  std::vector<Pending> pending_;
  size_t looked_at_ = 0;     // of pending_: whether these were skipped is counted
  int64_t gave_up_at_ = -1;  // the step, if too many in a row were skipped
  int64_t written_ = -1;     // the step of the last line of metrics.jsonl
  double flushed_at_s_, paused_s_ = 0, tokens_per_s_ = 0;
};

}  // namespace flashstep
