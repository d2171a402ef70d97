#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "flashstep/base/text.h"
#include "flashstep/checkpoint.h"
#include "flashstep/comm/agreement.h"
#include "flashstep/detail/environment.h"
#include "flashstep/error.h"
#include "flashstep/sharded_optimizer.h"
#include "flashstep/train/run_state.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

// One of several processes that know nothing of each other would write where the others write.
const Group* group_of(const ModelRef& model, const torch::optim::Optimizer& optimizer) {
  const Group* group = model.group();
  const auto* sharded = dynamic_cast<const ShardedOptimizerBase*>(&optimizer);
  if (group == nullptr && sharded != nullptr) group = &sharded->group();
  if (group != nullptr && group->world_size() > 1) return group;
  const Environment environment = read_environment();
  require(group != nullptr || environment.world_size == 1 || environment.launcher == "srun",
          "[checkpoint] expected the wrapped model (DistributedDataParallel or another) of ",
          environment.world_size, " ranks (started by ", environment.launcher,
          "), got a module of one process on rank ", environment.rank);
  return nullptr;
}

// What a checkpoint keeps of it; its steps are somebody else's.
class Wrapped : public Parallelism {
 public:
  Wrapped(const Group* group, const ModelRef& model)
      : group_(group), reducer_(model.reducer()), units_(model.units()) {}
  const Group* group() const override { return group_; }
  GradientReducer* reducer() const override { return reducer_; }
  ShardedUnits* units() const override { return units_; }

 private:
  const Group* group_;
  GradientReducer* reducer_;
  ShardedUnits* units_;
};

Job job_of(const ModelRef& model, torch::optim::Optimizer& optimizer, const Group* group) {
  Job job{model.module(), optimizer, {}};
  if (group != nullptr || model.units() != nullptr)
    job.parallel = std::make_shared<Wrapped>(group, model);
  return job;
}

// What rank 0 does alone.
void on_first(const Group* group, const std::function<void()>& work) {
  on_first_rank(group, "[rank 0] ", work);
}

}  // namespace

void save(const fs::path& directory, ModelRef model, torch::optim::Optimizer& optimizer,
          int64_t step, const SaveOptions& options) {
  require(step >= 0, "[checkpoint] expected a number of updates of at least 0, got ", step);
  const Group* const group = group_of(model, optimizer);
  const Job job = job_of(model, optimizer, group);
  const NamedTensors step_state =
      options.scaler != nullptr ? options.scaler->state() : NamedTensors();
  const Checkpoint checkpoint = make_checkpoint(job, step_state, {}, step);
  if (group != nullptr) group->check("saving a checkpoint");
  on_first(group, [&] { prepare_checkpoints(directory); });
  if (const Group* const together = writing_group(job)) {
    save_checkpoint(directory, checkpoint, options.keep, together);
  } else {
    on_first(group, [&] { save_checkpoint(directory, checkpoint, options.keep); });
  }
}

int64_t load_if_exists(const fs::path& directory, ModelRef model,
                       torch::optim::Optimizer& optimizer, const SaveOptions& options) {
  const Group* const group = group_of(model, optimizer);
  const Job job = job_of(model, optimizer, group);
  check_savable(job);  // rather than after the steps to the first save
  std::optional<StoredCheckpoint> checkpoint;
  on_first(group, [&] {
    const auto warn = [](const std::string& sentence) {
      std::fprintf(stderr, "%s\n", sentence.c_str());
    };
    if (fs::exists(directory)) prepare_checkpoints(directory);
    checkpoint = open_newest(directory, warn);
  });
  checkpoint = share_checkpoint(std::move(checkpoint), group);
  if (!checkpoint) return 0;
  const int64_t step = checkpoint->step;
  try {
    restore_checkpoint(std::move(*checkpoint), job, [&](const NamedTensors& state) {
      if (options.scaler != nullptr) options.scaler->load_state(state);
    });
  } catch (const AgreedError&) {
    throw;
  } catch (const std::exception& error) {
    if (group != nullptr) group->fail(first_line(error.what()));  // others may wait for this rank
    throw;
  }
  on_first(group, [&] { discard_after(directory, step); });
  return step;
}

}  // namespace flashstep
