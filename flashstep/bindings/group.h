// A group of ranks that Python made, as our objects use it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/custom_class.h>

#include "flashstep/group.h"

namespace flashstep::bindings {

class GroupObject : public torch::CustomClassHolder {
 public:
  explicit GroupObject(c10::intrusive_ptr<c10d::ProcessGroup> process_group)
      : group_(process_group, copies_limit(*process_group)) {}
  explicit GroupObject(const Environment& alone) : group_(alone) {}
  // What Group::take_part() takes.
  void take_part(std::vector<int64_t> colors, c10::intrusive_ptr<c10d::ProcessGroup> part) {
    group_.take_part(colors, std::make_unique<Group>(part, copies_limit(*part)));
  }
  const Group& group() const { return group_; }
  int64_t rank() const { return group_.rank(); }
  int64_t world_size() const { return group_.world_size(); }

 private:
  // How long NCCL lets a rank wait, in this group; 0 where CUDA tensors do not go through NCCL.
  static std::chrono::milliseconds copies_limit(c10d::ProcessGroup& process_group);

  Group group_;
};

}  // namespace flashstep::bindings
