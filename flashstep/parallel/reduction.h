// What GradientReducer does, per strategy. BucketReduction is ours, TorchReduction c10d's.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/data_parallel.h"
#include "flashstep/parallel/buckets.h"

namespace flashstep {

// The distinct parameters that need gradients, and how messages call them.
struct ReducedParameters {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
};

// Every rank must have the same options, and the same parameters in the same order: UserError, on
// all ranks, that names the first difference from rank 0.
void check_agreement(const ReducerOptions& options, const Group& group);
void check_agreement(const ReducedParameters& parameters, const Group& group);
// And a gradient for each: UserError that names those that some rank, or every one, has none for.
// `missing` are this rank's, as indices.
void check_agreement(const std::vector<int64_t>& missing, const ReducedParameters& parameters,
                     const Group& group);

// One parameter in one line, to be compared.
std::string line_of(const at::Tensor& tensor, const std::string& name);

// "fc1.weight, fc2.bias and 3 more"
std::string names_of(const std::vector<int64_t>& indices, const std::vector<std::string>& names);

class Reduction {
 public:
  Reduction(ReducedParameters parameters, const Group& group, const ReducerOptions& options)
      : parameters_(std::move(parameters)),
        gradient_dtypes_(flashstep::gradient_dtypes(parameters_.tensors)),
        group_(group),
        options_(options) {}
  virtual ~Reduction() = default;

  virtual void prepare_for_backward() {}
  virtual void finish() = 0;
  virtual bool is_unfinished() const = 0;
  virtual void forget_step() {}
  // GradientReducer's.
  bool holds_local_gradients() const;
  virtual std::string transport() const = 0;
  virtual std::vector<int64_t> order() const { return {}; }
  virtual void set_order(const std::vector<int64_t>& /*order*/, double /*bucket_megabytes*/) {}
  virtual void record_again() {}
  virtual std::vector<std::vector<int64_t>> buckets() const { return {}; }
  virtual bool holds_divided_means() const { return false; }
  // GradientReducer's; undefined where only a pass over the gradients can tell.
  virtual at::Tensor gradient_norm() const { return {}; }
  // False: it cannot.
  virtual bool scatter_to(const std::shared_ptr<GradientScatter>& /*scatter*/) { return false; }

  void enter_no_sync() { ++no_sync_depth_; }
  void leave_no_sync() { --no_sync_depth_; }
  bool is_enabled() const { return no_sync_depth_ == 0; }
  const ReducedParameters& parameters() const { return parameters_; }
  // Of each parameter's gradient, as it was announced when this was made.
  const std::vector<at::ScalarType>& gradient_dtypes() const { return gradient_dtypes_; }
  const ReducerOptions& options() const { return options_; }

 protected:
  const ReducedParameters parameters_;
  const std::vector<at::ScalarType> gradient_dtypes_;
  const Group& group_;
  ReducerOptions options_;
  std::atomic<bool> holds_own_gradients_ = false;  // .grad has what was not averaged

 private:
  int no_sync_depth_ = 0;
};

}  // namespace flashstep
