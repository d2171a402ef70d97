#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "flashstep/data_parallel.h"
#include "flashstep/error.h"
#include "flashstep/parallel/backend.h"
#include "flashstep/parallel/bucket_reduction.h"
#include "flashstep/parallel/cost.h"
#include "flashstep/parallel/divided_tensors.h"
#include "flashstep/parallel/torch_reduction.h"

namespace flashstep {
namespace {

ReducedParameters choose(const std::vector<at::Tensor>& parameters,
                         const std::vector<std::string>& names) {
  require(names.empty() || names.size() == parameters.size(),
          "[parallel] expected a name for each of ", parameters.size(), " parameters, got ",
          names.size());
  ReducedParameters chosen;
  std::set<void*> seen;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    const std::string name = names.empty() ? flashstep::str("parameter ", i) : names[i];
    require_tensor(
        name, parameter.defined() && parameter.is_leaf(),
        "[parallel] expected parameters that autograd collects gradients for (leaves), got ", name,
        parameter.defined() ? ", which was computed" : ", which is undefined");
    refuse_left_shard(name, parameter, "[parallel]");
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
    require_tensor(name, parameter.layout() == at::kStrided,
                   "[parallel] expected dense parameters, got ", name, ", which is sparse");
    chosen.tensors.push_back(parameter);
    chosen.names.push_back(name);
  }
  return chosen;
}

// c10d's Reducer, the baseline, comes with the size it has in PyTorch, which is that of Gloo here.
double chosen_megabytes(const ReducedParameters& parameters, const Group& group,
                        Strategy strategy) {
  const bool nccl = strategy != Strategy::kTorch && goes_through_nccl(parameters.tensors, group);
  const int ranks = group.is_on_one_machine() ? group.world_size() : 2;
  return chosen_bucket_bytes(gradient_bytes(parameters.tensors), nccl, ranks) / kBytesPerMegabyte;
}

std::unique_ptr<Reduction> make_reduction(ReducedParameters parameters, const Group& group,
                                          const ReducerOptions& options) {
  if (options.strategy == Strategy::kTorch) {
    return std::make_unique<TorchReduction>(std::move(parameters), group, options);
  }
  return std::make_unique<BucketReduction>(std::move(parameters), group, options);
}

}  // namespace

GradientReducer::GradientReducer(const std::vector<at::Tensor>& parameters, const Group& group,
                                 ReducerOptions options, const std::vector<std::string>& names)
    : bucket_size_is_chosen_(options.bucket_megabytes == 0) {
  require(options.bucket_megabytes >= 0,
          "[parallel] expected bucket_megabytes of at least 0 (0: chosen), got ",
          options.bucket_megabytes);
  require(!options.communication_dtype || at::isFloatingType(*options.communication_dtype),
          "[parallel] expected a floating-point communication_dtype");
  ReducedParameters chosen = choose(parameters, names);
  require(
      divided_tensors(chosen.tensors).empty(),
      "[parallel] expected parameters that every rank has whole, got shards of a fully sharded ",
      "module, whose backward ends with their means already");
  check_agreement(options, group);
  check_agreement(chosen, group);
  if (bucket_size_is_chosen_)
    options.bucket_megabytes = chosen_megabytes(chosen, group, options.strategy);
  reduction_ = make_reduction(std::move(chosen), group, options);
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::prepare_for_backward() { reduction_->prepare_for_backward(); }
void GradientReducer::finish_gradient_synchronization() { reduction_->finish(); }
bool GradientReducer::is_unfinished() const { return reduction_->is_unfinished(); }
bool GradientReducer::holds_divided_means() const { return reduction_->holds_divided_means(); }
bool GradientReducer::holds_local_gradients() const { return reduction_->holds_local_gradients(); }
at::Tensor GradientReducer::gradient_norm() const { return reduction_->gradient_norm(); }
void GradientReducer::forget_step() { reduction_->forget_step(); }
std::vector<int64_t> GradientReducer::bucket_order() const { return reduction_->order(); }
void GradientReducer::set_bucket_order(const std::vector<int64_t>& order, double bucket_megabytes) {
  reduction_->set_order(order, bucket_megabytes);
}
void GradientReducer::record_again() { reduction_->record_again(); }
const std::vector<at::Tensor>& GradientReducer::reduced_parameters() const {
  return reduction_->parameters().tensors;
}
const std::vector<at::ScalarType>& GradientReducer::gradient_dtypes() const {
  return reduction_->gradient_dtypes();
}
std::vector<std::vector<int64_t>> GradientReducer::buckets() const { return reduction_->buckets(); }
const ReducerOptions& GradientReducer::options() const { return reduction_->options(); }
std::string GradientReducer::describe() const {
  const Strategy strategy = options().strategy;
  std::string text = strategy_name(strategy);
  const char* chosen = bucket_size_is_chosen() ? " (chosen)" : "";
  if (strategy == Strategy::kTorch)
    text += flashstep::str(", buckets of ", options().bucket_megabytes, " MB", chosen);
  if (strategy != Strategy::kBucketed) return text;
  double most = 0;
  const auto buckets = this->buckets();
  for (const std::vector<int64_t>& bucket : buckets) {
    double bytes = 0;
    for (const int64_t index : bucket) {
      bytes += static_cast<double>(reduced_parameters()[index].numel()) *
               static_cast<double>(c10::elementSize(gradient_dtypes()[index]));
    }
    most = std::max(most, bytes);
  }
  text += flashstep::str(", ", buckets.size(),
                         buckets.size() == 1 ? " bucket of up to " : " buckets of up to ",
                         std::ceil(most / kBytesPerMegabyte), " MB", chosen);
  if (!transport().empty()) text += ", by " + transport();
  return text;
}
std::string GradientReducer::transport() const { return reduction_->transport(); }
bool GradientReducer::scatter_to(const std::shared_ptr<GradientScatter>& scatter) {
  return reduction_->scatter_to(scatter);
}
bool GradientReducer::is_enabled() const { return reduction_->is_enabled(); }

GradientReducer::NoSync::NoSync(GradientReducer& reducer) : reducer_(&reducer) {
  reducer_->reduction_->enter_no_sync();
}
GradientReducer::NoSync::NoSync(NoSync&& other) noexcept
    : reducer_(std::exchange(other.reducer_, nullptr)) {}
GradientReducer::NoSync::~NoSync() {
  if (reducer_ != nullptr) reducer_->reduction_->leave_no_sync();
}

}  // namespace flashstep
