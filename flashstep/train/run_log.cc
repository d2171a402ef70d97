#include "flashstep/train/run_log.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>
#include <torch/cuda.h>

#include "flashstep/base/terminal.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"

namespace flashstep {
namespace {

using measure::steady_seconds;
using torch::Tensor;
using OrderedJson = nlohmann::ordered_json;

constexpr double kFlushSeconds = 0.5;  // people see the bar move
constexpr size_t kMostPending = 256;   // and the device's queue of small tensors stays short

constexpr const char* kHeldOut = "val_loss";

// Of an evaluated step's line; the bigram model's loss, where known, stands beside.
OrderedJson held_out_members(double loss, double bigram_loss) {
  OrderedJson members = {{kHeldOut, loss}};
  if (std::isfinite(bigram_loss)) members["bigram_loss"] = bigram_loss;
  return members;
}

// What the part of samples.txt begins with.
std::string heading_of(int64_t step) { return flashstep::str("=== after step ", step, " ===\n"); }

}  // namespace

RunLog::RunLog(const RunDirectory& directory, const Job& job, const LoopOptions& options,
               int64_t first_step, RunCounters counters)
    : job_(job),
      options_(options),
      samples_(directory.samples()),
      metrics_(directory.metrics()),
      counters_(counters),
      flushed_at_s_(steady_seconds()) {
  if (!options.quiet) {
    bar_ = std::make_unique<ProgressBar>("training", ProgressBar::Unit::kCount);
  }
  const int64_t kept = metrics_.truncate_after(first_step == 0 ? -1 : first_step);
  if (first_step > 0 && kept < first_step) {
    warn(flashstep::str(
        "[resume] metrics.jsonl ",
        kept < 0 ? std::string("is missing or empty") : flashstep::str("ends at step ", kept),
        ", the checkpoint is of step ", first_step, ": the lines between were lost"));
  }
  written_ = kept;
  if (is_evaluated(first_step)) {  // after the checkpoint was written
    const OrderedJson loss = OrderedJson::parse(metrics_.last())[kHeldOut];
    counters_.held_out_loss =
        loss.is_number() ? loss.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!std::isfinite(counters_.first_held_out_loss))
      counters_.first_held_out_loss = counters_.held_out_loss;
  }
  events_ =
      std::make_unique<EventWriter>(directory.tensorboard(), first_step == 0 ? 0 : first_step + 1);
}

void RunLog::add(int64_t step, double learning_rate, StepResult result) {
  pending_.push_back({step, learning_rate, std::move(result)});
}

void RunLog::look() {
  for (; looked_at_ < pending_.size(); ++looked_at_) {
    const Pending& entry = pending_[looked_at_];
    if (!entry.result.skipped.is_cpu()) return;
    count_skipped(entry.step, entry.result.skipped.item<float>() != 0);
  }
}

bool RunLog::is_due() const {
  return pending_.size() >= kMostPending || steady_seconds() - flushed_at_s_ >= kFlushSeconds;
}

void RunLog::count_skipped(int64_t step, bool skipped) {
  counters_.skipped += skipped;
  if (gave_up()) return;  // steps that were under way already
  counters_.skipped_in_a_row = skipped ? counters_.skipped_in_a_row + 1 : 0;
  if (counters_.skipped_in_a_row < options_.max_skipped_in_a_row) return;
  gave_up_at_ = step;
  counters_.skipped_in_a_row = 0;  // who resumes has changed something, and is counted anew
}

std::string RunLog::why_given_up() const {
  return flashstep::str(
      "[train] the loss or a gradient was not finite in ", options_.max_skipped_in_a_row,
      options_.max_skipped_in_a_row == 1 ? " step" : " steps", " in a row, up to step ",
      gave_up_at_,
      "; expected finite ones: try a lower learning rate or a longer warm-up. The state is "
      "saved, to be resumed if its parameters are finite and steps are left");
}

RunLog::Pause::Pause(RunLog* log) : log_(log) {
  if (log_ == nullptr) return;
  if (!log_->pending_.empty()) {
    const torch::Device device = log_->pending_.back().result.loss.device();
    if (device.is_cuda())
      torch::cuda::synchronize(device.index());  // the steps' own work ends here
  }
  began_s_ = steady_seconds();
}

RunLog::Pause::~Pause() {
  if (log_ != nullptr) log_->paused_s_ += steady_seconds() - began_s_;
}

void RunLog::flush(int64_t step, std::optional<double> held_out_loss) {
  std::vector<Tensor> values;  // loss, norm, skipped of each step
  for (const Pending& entry : pending_) {
    for (const Tensor& value : {entry.result.loss, entry.result.grad_norm, entry.result.skipped}) {
      values.push_back(value.to(entry.result.loss.device(), at::kFloat));
    }
  }
  const Tensor on_host = values.empty() ? Tensor() : at::stack(values).cpu();
  const double elapsed_s = steady_seconds() - flushed_at_s_ - paused_s_;
  if (!pending_.empty() && job_.tokens_per_step > 0) {
    tokens_per_s_ = static_cast<double>(pending_.size()) *
                    static_cast<double>(job_.tokens_per_step) / elapsed_s;
  }
  const double step_s = pending_.empty() ? 0 : elapsed_s / static_cast<double>(pending_.size());
  if (held_out_loss) counters_.held_out_loss = *held_out_loss;

  for (size_t i = 0; i < pending_.size(); ++i) {
    const Pending& entry = pending_[i];
    const float* row = on_host.const_data_ptr<float>() + 3 * i;
    const bool skipped = row[2] != 0;
    counters_.loss = row[0];
    OrderedJson line = {
        {"step", entry.step}, {"loss", row[0]}, {"grad_norm", row[1]}, {"lr", entry.learning_rate}};
    std::vector<std::pair<std::string, double>> scalars = {
        {"loss/train", row[0]}, {"grad_norm", row[1]}, {"lr", entry.learning_rate}};
    if (tokens_per_s_ > 0) {
      line["tokens_per_s"] = std::round(tokens_per_s_);
      scalars.emplace_back("tokens_per_s", tokens_per_s_);
    }
    line["step_ms"] = std::round(step_s * 1e6) / 1e3;
    if (held_out_loss && entry.step == step) {
      line.update(held_out_members(*held_out_loss, job_.bigram_loss));
      scalars.emplace_back("loss/val", *held_out_loss);
    }
    if (skipped) line["skipped"] = true;
    metrics_.append(line.dump());
    written_ = entry.step;
    events_->scalars(entry.step, scalars);
    if (i >= looked_at_) count_skipped(entry.step, skipped);
  }
  if (pending_.empty() && held_out_loss) {
    const OrderedJson members = held_out_members(*held_out_loss, job_.bigram_loss);
    if (written_ == step) {
      const std::string text = members.dump();
      metrics_.add_to_last(text.substr(1, text.size() - 2));
    } else {
      OrderedJson line = {{"step", step}};
      line.update(members);
      metrics_.append(line.dump());
      written_ = step;
    }
    events_->scalar(step, "loss/val", *held_out_loss);
  }
  pending_.clear();
  looked_at_ = 0;
  if (held_out_loss && !std::isfinite(counters_.first_held_out_loss)) {
    counters_.first_held_out_loss = *held_out_loss;
  }
  show(step);
  flushed_at_s_ = steady_seconds();
  paused_s_ = 0;
}

bool RunLog::is_evaluated(int64_t step) const {
  if (written_ != step || step < 0) return false;
  const OrderedJson line = OrderedJson::parse(metrics_.last(), nullptr, /*allow_exceptions=*/false);
  return line.is_object() && line.contains(kHeldOut);
}

bool RunLog::is_sampled(int64_t step) const {
  if (!std::filesystem::exists(samples_)) return false;
  return read_file(samples_).find(heading_of(step)) != std::string::npos;
}

void RunLog::sync(int64_t step) {
  if (!pending_.empty()) flush(step);
  metrics_.sync();
}

// The bar: loss, tokens/s, share of the limit; the bar itself adds the time left.
void RunLog::show(int64_t step) {
  if (!bar_) return;
  std::vector<std::string> parts;  // what matters most first: a narrow terminal shows no more
  if (std::isfinite(counters_.loss)) parts.push_back("loss " + fixed(counters_.loss, 3));
  if (tokens_per_s_ > 0) {
    parts.push_back(with_commas(static_cast<int64_t>(tokens_per_s_)) + " tokens/s");
  }
  if (std::isfinite(counters_.held_out_loss)) {
    parts.push_back("held-out " + fixed(counters_.held_out_loss, 3));
  }
  if (counters_.skipped > 0) parts.push_back(flashstep::str(counters_.skipped, " skipped"));
  if (tokens_per_s_ > 0 && job_.flops_per_step > 0 && job_.limit_flops_per_s > 0) {
    const double steps_per_s = tokens_per_s_ / static_cast<double>(job_.tokens_per_step);
    parts.push_back(fixed(100 * steps_per_s * job_.flops_per_step / job_.limit_flops_per_s, 0) +
                    " % of the machine's limit");
  }
  bar_->update(static_cast<uint64_t>(step), static_cast<uint64_t>(options_.steps), join(parts));
}

void RunLog::warn(const std::string& line) {
  if (bar_) return print(line);
  std::fprintf(stderr, "%s\n", line.c_str());
}

void RunLog::print(const std::string& line) {
  if (bar_) bar_->print(line);
}

// samples.txt has one part a step; a resumed run writes a part again instead of a second time.
void RunLog::sample(int64_t step, const std::string& text) {
  const std::string heading = heading_of(step);
  std::string all = step > 0 && std::filesystem::exists(samples_) ? read_file(samples_) : "";
  all.resize(std::min(all.size(), all.find(heading)));
  write_file(samples_, all + heading + text + "\n");
  events_->text(step, "samples", text);
  print(flashstep::str("--- sample after step ", step, " ---\n", shown_on(stderr, text), "\n---"));
}

void RunLog::finish() {
  if (bar_) bar_->finish();
}

}  // namespace flashstep
