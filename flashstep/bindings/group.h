// A group of ranks that Python made, as our objects use it.
#pragma once

#include <optional>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/custom_class.h>

#include "flashstep/group.h"

namespace flashstep::bindings {

class GroupObject : public torch::CustomClassHolder {
 public:
  explicit GroupObject(c10::intrusive_ptr<c10d::ProcessGroup> process_group)
      : group_(std::move(process_group)) {}
  explicit GroupObject(const Environment& alone) : group_(alone) {}
  const Group& group() const { return group_; }
  int64_t rank() const { return group_.rank(); }
  int64_t world_size() const { return group_.world_size(); }

 private:
  const Group group_;
};

}  // namespace flashstep::bindings
