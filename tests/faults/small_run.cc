#include "tests/faults/small_run.h"

#include <torch/types.h>

#include "flashstep/base/hash.h"
#include "flashstep/base/text.h"
#include "flashstep/checkpoint.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/train/metrics_log.h"
#include "flashstep/train/tensorboard.h"

namespace flashstep::testing {
namespace {

void update(at::Tensor& weights, at::Tensor& momentum, int64_t step) {
  momentum.mul_(0.9).add_(weights.sin(), 0.1 * static_cast<double>(step % 7));
  weights.sub_(momentum, 0.01);
}

}  // namespace

void continue_run(const SmallRun& run) {
  make_directories(run.directory);
  const FileLock lock(run.directory / "lock", "the run is in use");
  const std::filesystem::path checkpoints = run.directory / "checkpoints";
  prepare_checkpoints(checkpoints);
  MetricsLog metrics(run.directory / "metrics.jsonl");

  at::Tensor weights = torch::arange(run.size, torch::kFloat), momentum = torch::zeros({run.size});
  int64_t done = 0;
  const auto warn = [](const std::string& sentence) {
    throw UserError(sentence);
  };  // none is damaged
  if (const auto checkpoint = load_newest(checkpoints, warn)) {
    done = checkpoint->step;
    weights = checkpoint->model.at(0).second;
    momentum = checkpoint->optimizer.at(0).second;
  }
  discard_after(checkpoints, done);
  const int64_t last_metric = metrics.truncate_after(done);
  require(last_metric == (done == 0 ? -1 : done), "expected metrics up to step ", done, ", got ",
          last_metric);
  EventWriter events(run.directory / "tensorboard", done + 1);

  for (int64_t step = done + 1; step <= run.steps; ++step) {
    update(weights, momentum, step);
    const double loss = weights.square().mean().item<double>();
    metrics.append(str("{\"step\":", step, ",\"loss\":", fixed(loss, 9), "}"));
    events.scalar(step, "loss", loss);
    if (step % run.save_every == 0 || step == run.steps) {
      metrics.sync();
      save_checkpoint(checkpoints, {step, {{"w", weights}}, {{"w.m", momentum}}, "{}"}, run.keep);
    }
  }
}

std::string outcome(const SmallRun& run) {
  const std::filesystem::path checkpoints = run.directory / "checkpoints";
  std::string text = read_file(run.directory / "metrics.jsonl");
  std::vector<int64_t> steps = list_checkpoints(checkpoints);
  // A process killed between its last save and the removal of older ones leaves one more.
  if (static_cast<int64_t>(steps.size()) > run.keep)
    steps.erase(steps.begin(), steps.end() - run.keep);
  for (const int64_t step : steps) {
    const auto directory = checkpoint_directory(checkpoints, step);
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
      text += str(step, " ", name, " ", hash_file(directory / name), "\n");
    }
  }
  return text;
}

}  // namespace flashstep::testing
