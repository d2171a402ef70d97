#include <algorithm>
#include <new>
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "flashstep/bench/allreduce.h"
#include "flashstep/bench/bare_collectives.h"
#include "flashstep/bench/ranks.h"
#include "flashstep/bench/turns.h"
#include "flashstep/error.h"
#include "flashstep/group.h"
#include "flashstep/measure/clock.h"

namespace flashstep::tools {

namespace {

// Of calls in a sample and of samples. A sample is long against what the ranks' starts differ by,
// and against the clock; one call is enough where it takes that long.
constexpr double kSampleSeconds = 5e-3;
constexpr int64_t kMostCalls = 50, kLeastSamples = 3, kMostSamples = 40;
// As nccl-tests has them, of the size that is measured; fewer where one takes long.
constexpr int64_t kWarmupCalls = 5;
constexpr double kWarmupSeconds = 0.2;

struct Summer {
  std::string name;
  std::function<void()> call;
};

// One case on this rank.
class CaseTurns {
 public:
  CaseTurns(const Group& group, const AllreduceCase& c, const AllreduceTask& task)
      : group_(group), case_(c), task_(task) {}

  // Of flashstep, and of the bare library where it can be called.
  std::vector<Record> run() {
    std::vector<Record> records;
    if (!take_memory()) {
      records.push_back(record_of("flashstep"));
      records.back().outcome.status = Status::kOutOfMemory;
      return records;
    }
    const std::vector<Summer> implementations = make_implementations();
    std::vector<int64_t> wrong;
    for (const Summer& implementation : implementations) {
      records.push_back(record_of(implementation.name));
      wrong.push_back(count_wrong_of(implementation));
    }
    const Plan plan = plan_of(implementations);
    for (int64_t turn = 0; turn < plan.samples; ++turn) {
      // In turns, and each first as often: what the machine does beside meets both alike.
      for (size_t i = 0; i < implementations.size(); ++i) {
        const size_t which = (i + static_cast<size_t>(turn)) % implementations.size();
        take_sample(implementations[which], plan.calls, records[which]);
      }
    }
    for (size_t i = 0; i < implementations.size(); ++i)
      records[i].facts["wrong"] = wrong[i] + count_wrong_of(implementations[i]);
    return records;
  }

 private:
  struct Plan {
    int64_t calls, samples;
  };

  Record record_of(const std::string& implementation) const {
    return {.key = key_of(case_), .implementation = implementation};
  }

  // False, on every rank, when it is too little on one.
  bool take_memory() {
    bool taken = true;
    try {
      tensor_ = at::empty({case_.bytes / element_bytes(case_.dtype)},
                          at::TensorOptions(scalar_type(case_.dtype)).device(device()));
      fill();
    } catch (const c10::OutOfMemoryError&) {
      taken = false;
    } catch (const std::bad_alloc&) {
      taken = false;
    }
    return group_.all_reduce(taken ? 1 : 0, Reduce::kMin) == 1;
  }

  std::vector<Summer> make_implementations() {
    std::vector<Summer> implementations = {
        {"flashstep", [this] { all_reduce(group_, tensor_, Reduce::kSum); }}};
    if (case_.backend == "nccl")
      implementations.push_back({"bare", make_bare_nccl(group_, tensor_)});
    if (case_.device == "cpu") implementations.push_back({"bare", make_bare_gloo(group_, tensor_)});
    return implementations;
  }

  at::Device device() const { return case_.device == "cpu" ? at::kCPU : at::kCUDA; }
  bool on_gpu() const { return case_.device == "cuda"; }
  void fill() { fill_pattern(tensor_, case_.dtype, case_.ranks, group_.rank()); }
  double slowest(double seconds) const { return group_.all_reduce(seconds, Reduce::kMax); }
  void synchronize() const {
    if (on_gpu()) c10::impl::VirtualGuardImpl(at::kCUDA).getStream(tensor_.device()).synchronize();
  }

  int64_t count_wrong_of(const Summer& implementation) {
    fill();
    implementation.call();
    return group_.all_reduce(count_wrong(tensor_, case_.dtype, case_.ranks), Reduce::kSum);
  }

  // How many calls and samples fit, by the slower implementation on the slowest rank.
  Plan plan_of(const std::vector<Summer>& implementations) {
    double call_seconds = 0;
    for (const Summer& implementation : implementations) {
      double last = 0, spent = 0;
      for (int64_t call = 0; call < kWarmupCalls && spent < kWarmupSeconds; ++call) {
        spent += last = sample_alone(implementation, 1);
      }
      call_seconds = std::max(call_seconds, last);
    }
    if (task_.quick) return {1, 1};
    const auto bounded = [](double wanted, int64_t least, int64_t most) {
      return static_cast<int64_t>(
          std::clamp(wanted, static_cast<double>(least), static_cast<double>(most)));
    };
    const int64_t calls = bounded(kSampleSeconds / call_seconds, 1, kMostCalls);
    const double sample_seconds = call_seconds * static_cast<double>(calls);
    return {calls, bounded(task_.cell_seconds / sample_seconds, kLeastSamples, kMostSamples)};
  }

  void take_sample(const Summer& implementation, int64_t calls, Record& record) {
    const double alone = sample_alone(implementation, calls);
    record.samples["alone"].push_back(alone);
    record.samples["seconds"].push_back(on_gpu() ? sample_in_a_row(implementation, calls) : alone);
  }

  void prepare() {
    fill();
    synchronize();
    group_.barrier();
  }

  // Seconds a call, of calls one after the other on the GPU, on the slowest rank.
  double sample_in_a_row(const Summer& implementation, int64_t calls) {
    prepare();
    implementation.call();  // meets the other ranks: those behind it start together
    return slowest(seconds_of_calls([&](int64_t) { implementation.call(); }, tensor_.device(), 0, 1,
                                    calls)[0]);
  }

  // Seconds from a call's launch to its end, by the host's clock, on the slowest rank.
  double sample_alone(const Summer& implementation, int64_t calls) {
    prepare();
    const double start = measure::steady_seconds();
    for (int64_t i = 0; i < calls; ++i) {
      implementation.call();
      synchronize();
    }
    return slowest((measure::steady_seconds() - start) / static_cast<double>(calls));
  }

  const Group& group_;
  const AllreduceCase& case_;
  const AllreduceTask& task_;
  at::Tensor tensor_;
};

}  // namespace

void measure_allreduce(const AllreduceTask& task,
                       const std::function<void(const Record&)>& report) {
  require(!task.cases.empty(), "[bench allreduce] expected cases, got none");
  const AllreduceCase& first = task.cases.front();
  // Before the group is made, so that every rank says so, not only the first to look.
  const int64_t ranks = read_environment().world_size;
  for (const AllreduceCase& c : task.cases) {
    require(c.ranks == ranks && c.backend == first.backend && c.device == first.device,
            "[bench allreduce] expected cases of ", ranks, " ranks, got ", describe(c));
  }
  const auto group = make_rank_group(first.backend, first.device);
  std::optional<GpuStream> stream;
  if (first.device == "cuda") stream.emplace();
  for (const AllreduceCase& c : task.cases) {
    tell_progress(describe(c));
    begin_unit(describe(c), *group);
    for (const Record& record : CaseTurns(*group, c, task).run()) report(record);
  }
}

}  // namespace flashstep::tools
