#include "flashstep/loop.h"

#include <cmath>
#include <exception>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "flashstep/base/signals.h"
#include "flashstep/checkpoint.h"
#include "flashstep/comm/agreement.h"
#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/ops.h"
#include "flashstep/ops/internal.h"
#include "flashstep/train/checkpoint_in_writing.h"
#include "flashstep/train/loss_plot.h"
#include "flashstep/train/optimizer_parameters.h"
#include "flashstep/train/optimizer_tensors.h"
#include "flashstep/train/recorded_step.h"
#include "flashstep/train/run_directory.h"
#include "flashstep/train/run_log.h"
#include "flashstep/train/run_state.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStopping =
    "\n[train] stopping: the step is finished and saved first; a second Ctrl-C ends at once\n";
constexpr int kGaveUp = 1000;  // a reason to stop above those of all signals

class Loop {
 public:
  // `directory`: null on every rank but the first, which alone reads and writes files.
  Loop(const Job& job, const LoopOptions& options, const RunDirectory* directory)
      : job_(job),
        options_(options),
        train_step_(parameters_of(job.optimizer), job.optimizer, job.loss, options.step,
                    job.parallel, job.stage),
        steps_(train_step_, options.graph,
               [this](const std::string& sentence) {
                 if (log_) log_->warn(sentence);
               }),
        directory_(directory) {}

  LoopResult run() {
    begin();
    if (directory_ != nullptr && !options_.quiet) SignalGuard::announce(kStopping);
    while (step_ < options_.steps) {
      take_step();
      if (!is_state_checked_ && !job_.optimizer.state().empty()) {
        OptimizerTensors(job_, {}).check_state_is_saved();
        is_state_checked_ = true;
      }
      const int reason = reason_to_stop();
      if (reason == kGaveUp) give_up();
      if (reason != 0 && step_ < options_.steps) stop(reason);
    }
    return end();
  }

 private:
  const Group* group() const { return job_.parallel->group(); }  // null: a process alone

  bool is_sharded() const { return job_.parallel->units() != nullptr; }

  // From the newest checkpoint, or anew.
  void begin() {
    check_agreement();
    if (directory_ != nullptr) prepare_checkpoints(directory_->checkpoints());
    Notes notes;
    RunCounters counters;
    if (options_.resume) counters = resume(notes);
    resumed_at_ = step_;
    if (directory_ != nullptr) {
      // By it a start that is killed is known as a run's; what is resumed has one, which stays if
      // the log refuses.
      const auto write_config = [&] { write_file(directory_->config(), job_.config_json); };
      if (step_ == 0) write_config();
      log_ = std::make_unique<RunLog>(*directory_, job_, options_, step_, counters);
      if (step_ > 0) write_config();
      for (const std::string& warning : notes.warnings) log_->warn(warning);
      for (const std::string& line : notes.lines) log_->print(line);
      note_precision();
    }
    if (step_ == 0) {
      evaluate();
      sample();
    }
  }

  void note_precision() const {
    const bool is_cpu = parameters_of(job_.optimizer).front().is_cpu();
    if (!is_cpu || options_.step.precision == Precision::kFloat32) return;
    const bool is_bf16 = options_.step.precision == Precision::kBFloat16;
    const std::string note = products_note(is_bf16 ? at::kBFloat16 : at::kHalf);
    if (!note.empty()) log_->print("[precision] " + note);
  }

  // Ranks that do not take the same steps would wait for each other for ever.
  void check_agreement() const {
    if (group() == nullptr) return;
    const std::string own = flashstep::str(
        options_.steps, " steps of ", options_.step.accumulation_steps,
        " micro-batches, a checkpoint every ", options_.checkpointing_interval,
        ", an evaluation every ", options_.evaluate_every, options_.resume ? ", resumed" : "",
        job_.held_out_loss ? ", a held_out_loss" : "",
        is_sharded() && job_.sample ? ", a sample" : "");
    const std::vector<std::string> all = group()->all_gather(own);
    for (size_t rank = 1; rank < all.size(); ++rank) {
      require(all[rank] == all[0], "[train] expected the same steps on every rank, got ", all[0],
              " on rank 0 and ", all[rank], " on rank ", rank);
    }
  }

  // What is said before there is a log.
  struct Notes {
    std::vector<std::string> warnings, lines;
  };

  RunCounters resume(Notes& notes) {
    const auto warn = [&](const std::string& sentence) { notes.warnings.push_back(sentence); };
    std::optional<StoredCheckpoint> checkpoint;
    if (directory_ != nullptr) checkpoint = open_newest(directory_->checkpoints(), warn);
    wait_for_all(group(), "waiting for rank 0 to find the newest checkpoint");
    checkpoint = share_checkpoint(std::move(checkpoint), group());
    RunCounters counters;
    if (checkpoint) {
      require(checkpoint->step <= options_.steps, "[resume] the newest checkpoint is of step ",
              checkpoint->step, ", but the run has only ", options_.steps, " steps");
      step_ = saved_at_ = checkpoint->step;
      if (has_other_held_out_data(checkpoint->state_json, job_)) {
        warn(flashstep::str("NOTE: the held-out data are not those of the steps before: losses on ",
                            "them before and after step ", step_, " cannot be compared"));
      }
      counters = restore_checkpoint(std::move(*checkpoint), job_, train_step_);
      notes.lines.push_back(flashstep::str("[resume] going on after step ", step_));
    }
    if (directory_ == nullptr) return counters;
    if (!checkpoint) {
      notes.lines.push_back(flashstep::str("[resume] no checkpoint in ",
                                           directory_->path().string(), " yet: starting anew"));
    }
    discard_after(directory_->checkpoints(), step_);
    return counters;
  }

  void take_step() {
    const double rate = set_learning_rate(step_ + 1);
    StepResult result = steps_.run(step_);
    ++step_;
    if (log_) {
      log_->add(step_, rate, std::move(result));
      log_->look();
    }
    if (step_ == options_.steps) {  // end() does the rest
      if (log_) log_->flush(step_);
      return;
    }
    if (options_.evaluate_every > 0 && step_ % options_.evaluate_every == 0) evaluate();
    if (log_ && log_->is_due()) log_->flush(step_);
    if (options_.checkpointing_interval > 0 && step_ % options_.checkpointing_interval == 0)
      save(/*in_background=*/true);
  }

  double set_learning_rate(int64_t update) {
    if (!job_.learning_rate) return own_learning_rate();
    const double rate = job_.learning_rate(update);
    require(std::isfinite(rate) && rate >= 0,
            "[train] expected job.learning_rate to give a finite rate of at least 0, got ", rate,
            " for update ", update);
    for (auto& group : job_.optimizer.param_groups()) group.options().set_lr(rate);
    return rate;
  }

  // For the log. Options of a caller's own class may not tell it.
  double own_learning_rate() const {
    try {
      return job_.optimizer.param_groups().front().options().get_lr();
    } catch (const c10::Error&) {
      return std::numeric_limits<double>::quiet_NaN();
    }
  }

  // What rank 0 does for all takes what it takes, longer than a collective may.
  template <typename Work>
  void on_rank_0(const char* what, const Work& work) {
    std::exception_ptr thrown;
    try {
      if (log_) work();
    } catch (...) {
      thrown = std::current_exception();
    }
    wait_for_all(group(), what);
    if (thrown) std::rethrow_exception(thrown);
  }

  void evaluate() {
    if (job_.held_out_loss) job_.parallel->synchronize_buffers();
    std::optional<double> loss;
    const auto work = [&] {
      const RunLog::Pause pause(log_.get());
      loss = job_.held_out_loss();
    };
    if (job_.held_out_loss) {
      if (job_.evaluates_together || is_sharded()) {
        work();
      } else {
        on_rank_0("waiting for rank 0 to evaluate", work);
      }
    }
    if (log_) log_->flush(step_, loss);
  }

  void sample() {
    const auto work = [&] {
      if (!job_.sample) return;
      const RunLog::Pause pause(log_.get());
      const std::string text = job_.sample();
      if (log_) log_->sample(step_, text);
    };
    if (is_sharded()) {
      work();
    } else {
      on_rank_0("waiting for rank 0 to sample", work);
    }
  }

  // In background: the next steps are taken while it is written.
  void save(bool in_background = false) {
    if (in_background && saving_ && log_ && !std::exchange(has_told_of_waiting_, true)) {
      log_->print(flashstep::str("[checkpoint] training waits until that of step ", saved_at_,
                                 " is written; a longer checkpointing.checkpointing_interval ",
                                 "costs no wait"));
    }
    finish_saving();
    if (saved_at_ == step_) return;
    finish_removing();  // the disk may have no room for one more
    if (log_) log_->sync(step_);
    std::optional<RunLog::Pause> pause(std::in_place, log_.get());
    Checkpoint checkpoint =
        make_checkpoint(job_, train_step_, log_ ? log_->counters() : RunCounters(), step_);
    // A rank that was lost meanwhile may have left garbage in the gradients (NCCL's kernels end
    // early).
    if (group() != nullptr) group()->check("saving a checkpoint");
    const fs::path checkpoints = directory_ != nullptr ? directory_->checkpoints() : fs::path();
    const Group* const together = writing_group(job_);
    saved_at_ = step_;
    if (together != nullptr || directory_ != nullptr) {
      saving_ = std::make_unique<CheckpointInWriting>(
          checkpoints, std::move(checkpoint), options_.keep_checkpoints, together, in_background);
    }
    pause.reset();
    if (!in_background) finish_saving();
  }

  void finish_saving() {
    if (!saving_) return;
    const RunLog::Pause pause(log_.get());
    std::vector<fs::path> surplus;
    std::exchange(saving_, nullptr)->finish(&surplus);
    start_removing(std::move(surplus));
  }

  // What older checkpoints leave is removed while the next steps are taken. What cannot be is said,
  // and ends nothing.
  void start_removing(std::vector<fs::path> surplus) {
    if (surplus.empty()) return;
    finish_removing();
    const auto remove = [surplus = std::move(surplus)] {
      try {
        remove_trees(surplus);
      } catch (const std::exception& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    try {
      removing_ = std::async(std::launch::async, remove);
    } catch (const std::system_error&) {  // no thread
      removing_ = std::async(std::launch::deferred, remove);
    }
  }

  void finish_removing() {
    if (!removing_.valid()) return;
    const std::string failure = removing_.get();
    if (log_ && !failure.empty()) log_->warn("[checkpoint] " + failure);
  }

  // 0, a signal, or kGaveUp; the same on every rank. A checkpoint that all have written is
  // finished.
  int reason_to_stop() {
    int64_t reason = log_ && log_->gave_up() ? kGaveUp : SignalGuard::received();
    int64_t is_writing = saving_ && !saving_->is_written();
    if (group() != nullptr) {
      const std::vector<int64_t> most =
          group()->all_reduce(std::vector<int64_t>{reason, is_writing}, Reduce::kMax);
      reason = most[0];
      is_writing = most[1];
    }
    if (is_writing == 0) finish_saving();
    return static_cast<int>(reason);
  }

  // Before the exception that ends the run on all ranks: a rank that it ended earlier is lost to
  // the others, and would end one that still writes a checkpoint.
  void save_before_the_end() {
    save();
    finish();
    wait_for_all(group(), "saving before the end");
  }

  // Skipped steps change nothing: what is saved is the state before the first of them.
  [[noreturn]] void give_up() {
    save_before_the_end();
    throw UserError(log_ ? log_->why_given_up() : "[train] stopped by the first rank");
  }

  [[noreturn]] void stop(int signal) {
    save_before_the_end();
    throw Interrupted(
        signal, flashstep::str("[train] stopped by ", signal_name(signal), " after step ", step_,
                               " of ", options_.steps, "; all is saved",
                               directory_ ? " in " + directory_->path().string() : ""));
  }

  LoopResult end() {
    save();  // first: an evaluation or a sample that throws ends the run, and costs no steps
    // A run that is resumed after its last step may have these already.
    std::vector<int64_t> is_missing = {0, 0};
    if (log_) {
      is_missing = {!log_->is_evaluated(step_), resumed_at_ < step_ || !log_->is_sampled(step_)};
    }
    if (group() != nullptr) is_missing = group()->all_reduce(is_missing, Reduce::kMax);
    if (is_missing[0] != 0) evaluate();
    if (is_missing[1] != 0) sample();
    if (log_) log_->sync(step_);
    finish();
    const RunCounters counters = log_ ? log_->counters() : RunCounters();
    return {step_, counters.skipped, counters.first_held_out_loss, counters.held_out_loss,
            counters.loss};
  }

  void finish() {
    finish_removing();
    if (directory_ == nullptr) return;
    draw_loss({directory_->path()}, directory_->path() / "loss", job_.bigram_loss);
    log_->finish();
  }

  const Job& job_;
  const LoopOptions& options_;
  SignalGuard signals_;
  TrainStep train_step_;
  RecordedStep steps_;
  const RunDirectory* directory_;
  std::unique_ptr<RunLog> log_;
  std::unique_ptr<CheckpointInWriting> saving_;  // on the ranks that write
  std::future<std::string> removing_;            // on the first; why it could not, or empty
  bool has_told_of_waiting_ = false, is_state_checked_ = false;
  int64_t step_ = 0, resumed_at_ = 0, saved_at_ = -1;  // updates done
};

// One of several processes would train alone, and write where the others write. (Tasks of srun may
// be meant to: a sweep.)
void check_group(const Job& job) {
  if (job.parallel->world_size() > 1) return;
  const Environment environment = read_environment();
  require(
      environment.world_size == 1 || environment.launcher == "srun",
      "[train] expected job.parallel of data_parallelism() or full_sharding() with the Group of ",
      environment.world_size, " ranks (started by ", environment.launcher,
      "), got a job of one process on rank ", environment.rank);
}

}  // namespace

LoopResult run(const Job& job, const LoopOptions& options) {
  check_group(job);
  check_savable(job);
  require(options.steps >= 0, "[train] expected steps of at least 0, got ", options.steps);
  require(options.keep_checkpoints >= 0,
          "[train] expected keep_checkpoints of at least 0 (all), got ", options.keep_checkpoints);
  require(options.max_skipped_in_a_row >= 1,
          "[train] expected max_skipped_in_a_row of at least 1, got ",
          options.max_skipped_in_a_row);
  std::optional<RunDirectory> directory;
  if (job.parallel->is_main_rank()) directory.emplace(options.run_directory, options.resume);
  return run(job, options, directory ? &*directory : nullptr);
}

LoopResult run(const Job& job, const LoopOptions& options, const RunDirectory* directory) {
  std::optional<Loop> loop;
  try {
    return loop.emplace(job, options, directory).run();
  } catch (const Interrupted&) {
    throw;  // every rank stops at the same step
  } catch (const AgreedError&) {
    throw;  // as do these
  } catch (const std::exception& error) {
    // The others wait for this rank: they end now, and with its sentence. Before, a checkpoint that
    // this rank writes alone is finished.
    if (writing_group(job) == nullptr) loop.reset();
    if (const Group* group = job.parallel->group()) group->fail(error.what());
    throw;
  }
}

}  // namespace flashstep
