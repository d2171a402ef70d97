#include "flashstep/bench/replica.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <utility>

#include "flashstep/amp.h"
#include "flashstep/base/heap.h"
#include "flashstep/bench/model_run.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/detail/module_synchronizer.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/measure/memory.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/train/parallelize.h"
#include "flashstep/train/tensor_memory.h"

namespace flashstep::tools {
namespace {

using at::Tensor;

// Of the comparison's gradient descent: far enough for the movement to stand out of the weights'
// own rounding, near enough that no loss explodes.
constexpr double kDescentRate = 0.1;

// The larger one; NaN if one is.
double worse(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

double largest_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = worse(largest, (a[i] - b[i]).abs().max().item<double>());
  return largest;
}

}  // namespace

std::unique_ptr<Group> begin_rank(const ParallelCase& c) {
  keep_memory_of_tensors();
  measure::offer_to_oom_killer();
  // The ranks share the machine's cores, unless somebody said how.
  if (c.ranks > 1 && std::getenv("OMP_NUM_THREADS") == nullptr)
    at::set_num_threads(std::max(1, at::get_num_threads() / static_cast<int>(c.ranks)));
  return make_rank_group(c.backend(), c.device);
}

Replica::Replica(const Workload& workload, Group& group, at::Device device)
    : workload_(workload),
      group_(group),
      device_(device),
      model_(make_model(workload.model, static_cast<uint64_t>(workload.seed), device_)) {
  for (int rank = 0; rank < group.world_size(); ++rank) {
    rows_.push_back(random_rows(workload.model, workload.batch_size,
                                static_cast<uint64_t>(workload.seed + rank), device_));
  }
}

void Replica::divide(const ParallelConfig& division) {
  if (!recorded_.empty()) synchronize(device_);  // replays need what they hold
  recorded_.clear();
  model_->zero_grad();
  optimizer_.reset();
  parallel_.reset();
  // Peaks are compared: nobody begins with blocks that were cut for another's tensors.
  if (device_.is_cuda()) {
    synchronize(device_);
    measure::release_cached_gpu_memory();
  } else {
    give_freed_memory_back();
  }
  if (device_.is_cuda() && is_in_bf16(workload_.precision)) {  // as flashstep train has it
    keep_gradients_in(division.wrapper == "torch" ? at::kFloat : at::kBFloat16,
                      model_->parameters());
  }
  broadcast_from_first(model_->parameters(), group_);
  Group* group = division.wrapper == "none" ? nullptr : &group_;
  parallel_ = parallelize(*model_, division, group);
  optimizer_ =
      make_optimizer(*model_, torch::optim::AdamWOptions(kLearningRate), division, *parallel_);
}

Tensor Replica::forward() {
  parallel_->begin_micro_batch(/*is_last=*/true);
  return loss_of(*model_, rows_[static_cast<size_t>(group_.rank())], workload_.precision);
}

void Replica::backward(const Tensor& loss) {
  loss.backward();
  parallel_->synchronize_gradients();
}

void Replica::make_gradients() {
  zero_grad();
  backward(forward());
}

void Replica::record(const std::function<void()>& update) {
  synchronize(device_);
  group_.barrier("recording a step");  // no rank's collectives are in flight
  // Gradients of the steps before lie in memory that a replay does not know.
  zero_grad();
  if (device_.is_cuda()) measure::release_cached_gpu_memory();
  Tensor loss;
  const auto add = [&](const std::function<void()>& part) {
    const RecordedWork* before = recorded_.empty() ? nullptr : recorded_.back().get();
    recorded_.push_back(std::make_unique<RecordedWork>(part, before));
  };
  try {
    add([&] { loss = forward(); });
    add([&] {
      backward(loss);
      loss.reset();
    });
    add(update);
  } catch (...) {
    recorded_.clear();
    throw;
  }
}

void Replica::replay(Marks& marks) {
  constexpr size_t kBackward = 1;
  marks.set();
  for (size_t part = 0; part < recorded_.size(); ++part) {
    recorded_[part]->replay();
    marks.set();
    if (part == kBackward) marks.set();  // with all that it waited for
  }
}

void Replica::step(Marks& marks) {
  if (!recorded_.empty()) return replay(marks);
  marks.set();
  zero_grad();
  const Tensor loss = forward();
  marks.set();
  loss.backward();
  marks.set();
  parallel_->synchronize_gradients();
  marks.set();
  update();
  marks.set();
}

std::vector<StepTimes> Replica::run(int64_t steps) {
  synchronize(device_);
  Marks marks(device_);
  for (int64_t i = 0; i < steps; ++i) step(marks);
  const std::vector<double> seconds = marks.seconds(), leads = marks.leads();
  constexpr size_t kMarks = 5;  // of a step
  std::vector<StepTimes> times;
  for (size_t at = 0; at + kMarks <= seconds.size() + 1; at += kMarks) {
    const double waited = seconds[at + 2], backward = seconds[at + 1] + waited;
    times.push_back({seconds[at], backward, seconds[at + 3],
                     seconds[at] + backward + seconds[at + 3], waited, leads[at]});
  }
  return times;
}

// `part` under the profiler, whose start, and first sight of every kind of event, takes time: a
// step goes before. Then the ranks come together, and in `before` the host gets ahead again. On the
// first rank only: what slows down the others' hosts, too, is waited for there.
std::pair<Trace, double> Replica::trace_part(const std::function<void()>& before,
                                             const std::function<void()>& part) {
  Marks marks(device_);
  const auto body = [&] {
    run(1);
    group_.barrier("beginning a traced step");
    before();
    marks.set();
    part();
    at::zeros({1}, device_);  // something ends right at the mark, and nothing computes after it
    marks.set();
    synchronize(device_);
    // Gloo's threads note a collective's end when its result is there already, and an end that is
    // not noted before the profiler's is lost.
    if (device_.is_cpu()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  Trace whole;
  if (group_.is_first()) {
    whole = trace(device_, body);
  } else {
    body();
  }
  return {std::move(whole), marks.seconds().front()};
}

Trace Replica::trace_step() {
  Marks unread(device_);
  const auto one = [&] { step(unread); };
  auto [whole, seconds] = trace_part(one, one);
  if (!recorded_.empty()) {
    // CUDA deals a graph's kernels out to streams of its own choosing.
    whole.compute.insert(whole.compute.end(), whole.copies.begin(), whole.copies.end());
    whole.compute = measure::merged(std::move(whole.compute), kLaunchGap);
    whole.copies.clear();
  }
  return last_part(whole, seconds);
}

UpdateTrace Replica::trace_update() {
  make_gradients();
  synchronize(device_);
  group_.barrier("beginning an update");
  const double begin = measure::steady_seconds();
  update();
  const double host_seconds = measure::steady_seconds() - begin;
  const auto [whole, seconds] = trace_part([this] { make_gradients(); }, [this] { update(); });
  return {last_part(whole, seconds), seconds, host_seconds};
}

std::vector<Tensor> Replica::copy_of_weights() const {
  std::vector<Tensor> copies;
  for (const Tensor& parameter : model_->parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

void Replica::descend() {
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : model_->parameters()) parameter.sub_(parameter.grad(), kDescentRate);
}

double Replica::weight_error(const ParallelConfig& division, int64_t steps, bool recorded) {
  const Determinism deterministic(true, /*warn_only=*/true);
  divide({.wrapper = "none"});
  const std::vector<Tensor> begin = copy_of_weights();
  for (int64_t i = 0; i < steps; ++i) {
    zero_grad();
    for (const TokenRows& rows : rows_) {
      const Tensor loss = loss_of(*model_, rows, workload_.precision);
      (loss / static_cast<double>(rows_.size())).backward();
    }
    descend();
  }
  const std::vector<Tensor> expected = copy_of_weights();
  {
    const torch::NoGradGuard no_grad;
    std::vector<Tensor> parameters = model_->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(begin[i]);
  }
  divide(division);
  if (recorded) {
    for (int64_t i = 0; i < kStepsBeforeRecording; ++i) make_gradients();  // without an update
    record([this] { descend(); });
    run(steps);
  } else {
    for (int64_t i = 0; i < steps; ++i) {
      make_gradients();
      descend();
    }
  }
  zero_grad();
  const torch::NoGradGuard no_grad;
  const double error =
      largest_difference(model_->parameters(), expected) / largest_difference(expected, begin);
  return group_.all_reduce(error, Reduce::kMax);  // NaN where a rank has it
}

void Replica::describe(Record& record) const {
  const GradientReducer* reducer = parallel_->reducer();
  const auto* sharded = dynamic_cast<const ShardedOptimizerBase*>(optimizer_.get());
  record.facts["bucket_megabytes"] = reducer ? reducer->options().bucket_megabytes : 0;
  record.facts["buckets"] = reducer ? reducer->describe() : "";
  record.facts["gradients by"] = reducer ? reducer->transport() : "";
  record.facts["updates by"] = sharded ? sharded->transport() : "";
}

}  // namespace flashstep::tools
