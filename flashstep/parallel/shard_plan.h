// Which rank updates what of an optimizer's parameters, and how the others get it: whole parameters
// (whole_shards.h) or equal parts of flat memory (flat_shards.h). Every rank makes the same calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/detail/named_tensors.h"

namespace flashstep {

class GradientReducer;
class Group;
struct ShardOptions;

// A parameter that an optimizer got, and the group that names it first.
struct GroupedParameter {
  at::Tensor tensor;
  size_t group;
};

// What this rank updates: elements [begin, end) of `parameter` in the order of its memory.
struct OwnPiece {
  at::Tensor parameter;
  int64_t begin, end;
  at::Tensor inner;  // what the optimizer inside is given: the parameter itself, or (end - begin)
  size_t group;
  size_t part;  // of the update
};

class ShardPlan {
 public:
  virtual ~ShardPlan() = default;

  // Divides further parameters between the ranks; pieces of earlier ones stay. Returns this rank's
  // new pieces.
  std::vector<OwnPiece> add(const std::vector<GroupedParameter>& parameters);
  // The rank that updates the parameter, or its first element; -1: not divided here.
  virtual int owner(const at::Tensor& parameter) const = 0;
  // Elements of trainable parameters, by rank.
  virtual std::vector<int64_t> elements_by_rank() const = 0;

  // bring_gradients(), first: UserError where gradients are this rank's own still, or parameters
  // were fully sharded since.
  void begin_update(const std::vector<OwnPiece>& own);
  // Whose means the gradients are; it must outlive the plan.
  void use_means_of(const GradientReducer* reducer) { means_ = reducer; }
  // Begins an update: sees to it that every piece has its gradient in inner.grad(), undefined for
  // none.
  virtual void bring_gradients(const std::vector<OwnPiece>& own) = 0;
  // The gradients that the pieces are updated with, each element on one rank (`divided`) or on all.
  virtual std::vector<at::Tensor> gradients(const std::vector<OwnPiece>& own) = 0;
  virtual bool divided() const = 0;
  // Of divided gradients that no update will use.
  virtual void drop_gradients() {}

  // An update goes part by part: when all ranks have updated theirs of one, it is in flight while
  // they update the next.
  virtual size_t parts() const = 0;
  virtual void send(size_t part) = 0;
  // All parameters have arrived (on a GPU: when the current stream goes on).
  virtual void finish() = 0;
  // What sent them last: "copies", "NCCL", "Gloo"; "" if nothing was sent yet.
  virtual std::string transport() const = 0;

 protected:
  virtual std::vector<OwnPiece> divide(const std::vector<GroupedParameter>& parameters) = 0;

 private:
  const GradientReducer* means_ = nullptr;  // null: not known
  std::vector<at::Tensor> parameters_;
};

// A plan for an optimizer of these parameters, which add() gives it: flat tensors are sized by
// them. `group`, and options.reducer, must outlive it. All ranks call it: UserError, on all of
// them, that names the first parameter, option or line of `lines` in which two ranks differ.
std::unique_ptr<ShardPlan> make_shard_plan(const NamedTensors& parameters, const Group& group,
                                           const ShardOptions& options,
                                           const std::vector<std::string>& lines = {});

}  // namespace flashstep
