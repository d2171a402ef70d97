// Gradients of a Python module's parameters, averaged over the ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/custom_class.h>

#include "flashstep/bindings/group.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"

namespace flashstep::bindings {

class GradientMeans : public torch::CustomClassHolder {
 public:
  // `parameters` and `buffers` as the module has them, tied ones once.
  GradientMeans(c10::intrusive_ptr<GroupObject> group, NamedTensors parameters,
                std::vector<at::Tensor> buffers, const ReducerOptions& options);

  void before_forward() { synchronizer_->before_forward(); }
  void watch(std::vector<at::Tensor> outputs);
  void finish() { synchronizer_->finish(); }
  void forget_step() { reducer().forget_step(); }
  void enter_no_sync() { guards_.push_back(reducer().no_sync()); }
  void leave_no_sync() {
    require(!guards_.empty(),
            "[parallel] expected as many calls of leave_no_sync() as of "
            "enter_no_sync(), got one more");
    guards_.pop_back();
  }
  void broadcast_buffers() { synchronizer_->broadcast_buffers(); }
  std::string describe() { return reducer().describe(); }
  std::vector<int64_t> bucket_order() { return reducer().bucket_order(); }
  void set_bucket_order(std::vector<int64_t> order, double megabytes) {
    reducer().set_bucket_order(order, megabytes);
  }
  double bucket_megabytes() { return reducer().options().bucket_megabytes; }
  GradientReducer& reducer() { return synchronizer_->reducer(); }
  const c10::intrusive_ptr<GroupObject>& group() const { return group_; }

 private:
  const c10::intrusive_ptr<GroupObject> group_;
  const NamedTensors parameters_;
  const std::vector<at::Tensor> buffers_;
  std::unique_ptr<ModuleSynchronizer> synchronizer_;
  std::vector<GradientReducer::NoSync> guards_;  // gone before the reducer
};

}  // namespace flashstep::bindings
