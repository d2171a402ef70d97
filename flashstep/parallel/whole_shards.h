// Shards of whole parameters: each has one owner, the largest go first to the rank that has least.
#pragma once

#include <unordered_map>

#include "flashstep/group.h"
#include "flashstep/parallel/exchange.h"
#include "flashstep/parallel/shard_plan.h"

namespace flashstep {

class WholeShards : public ShardPlan {
 public:
  // An owner's parameters are updated and sent in parts of about `part_bytes`.
  WholeShards(const Group& group, double part_bytes, bool peer_copies = true);

  int owner(const at::Tensor& parameter) const override;
  std::vector<int64_t> elements_by_rank() const override { return loads_; }
  // They are where they are.
  void bring_gradients(const std::vector<OwnPiece>& /*own*/) override { exchange_.begin(); }
  std::vector<at::Tensor> gradients(const std::vector<OwnPiece>& own) override;
  bool divided() const override { return false; }
  size_t parts() const override { return parts_.size(); }
  void send(size_t part) override;
  void finish() override { exchange_.finish(); }
  std::string transport() const override { return exchange_.transport(); }

 protected:
  std::vector<OwnPiece> divide(const std::vector<GroupedParameter>& parameters) override;

 private:
  struct Part {
    std::vector<at::Tensor> tensors;
    std::vector<int> owners;
  };
  const Group& group_;
  const double part_bytes_;
  Exchange exchange_;
  std::unordered_map<void*, int> owners_;
  std::vector<int64_t> loads_;  // elements, by rank
  std::vector<double> bytes_;   // the same in bytes
  std::vector<Part> parts_;
};

}  // namespace flashstep
