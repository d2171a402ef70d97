// Flat shards: parameters lie one behind the other in flat tensors, and rank r updates part r of W
// equal ones of each, wherever a parameter begins or ends (stages 1 and 2 of S. Rajbhandari et al.,
// "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020).
#pragma once

#include <memory>
#include <unordered_map>

#include "flashstep/data_parallel.h"
#include "flashstep/group.h"
#include "flashstep/parallel/buckets.h"
#include "flashstep/parallel/exchange.h"
#include "flashstep/parallel/gradient_scatter.h"
#include "flashstep/parallel/shard_plan.h"

namespace flashstep {

// Parts begin at multiples of this, counted from the beginning of every parameter they cut: two
// AVX-512 registers, which the widest loops of LibTorch take at a time, so that a part's last
// elements are computed by the same instructions as in the whole parameter.
inline constexpr int64_t kPartAlignmentBytes = 128;

// plan_buckets with slots at multiples of kPartAlignmentBytes, of the parameter and in `dtypes`,
// and each numel a multiple of world_size times that, at least once it (also where all parameters
// are empty).
std::vector<BucketLayout> plan_flat(const std::vector<at::Tensor>& parameters,
                                    const std::vector<at::ScalarType>& dtypes,
                                    const std::vector<int64_t>& order, double bucket_bytes,
                                    int world_size);

class FlatShards : public ShardPlan {
 public:
  // `reducer`, if not null, gives every rank the means of its parts only (GradientScatter); it must
  // outlive this, and serves one at a time. Else .grad is expected to hold the mean on every rank.
  FlatShards(const Group& group, double bucket_bytes, double part_bytes, GradientReducer* reducer,
             bool peer_copies = true);
  ~FlatShards() override;  // the reducer averages again

  // Moves the trainable ones of the parameters into flat memory: data_ptr changes, the tensor stays
  // the same.
  int owner(const at::Tensor& parameter) const override;
  std::vector<int64_t> elements_by_rank() const override { return loads_; }
  // These two: UserError, on every rank, if a parameter has left its flat memory.
  void bring_gradients(const std::vector<OwnPiece>& own) override;
  std::vector<at::Tensor> gradients(const std::vector<OwnPiece>& own) override;
  void drop_gradients() override;
  bool divided() const override { return group_.world_size() > 1; }
  size_t parts() const override { return parts_.size(); }
  void send(size_t part) override { exchange_.start_gather(parts_[part]); }
  void finish() override;
  std::string transport() const override { return exchange_.transport(); }

 protected:
  std::vector<OwnPiece> divide(const std::vector<GroupedParameter>& parameters) override;

 private:
  struct Place {
    at::Tensor parameter;
    at::Tensor flat;
    int64_t offset;       // elements
    int64_t bucket = -1;  // of scatter_; -1: its gradient is not divided
    size_t slot = 0;
  };
  void add_flat(const BucketLayout& layout, const std::vector<GroupedParameter>& parameters,
                int64_t scatter_bucket, std::vector<OwnPiece>& own);
  void add_reduced(const std::vector<GroupedParameter>& parameters, std::vector<OwnPiece>& own);
  int first_owner(const Place& place) const;
  void check_memory() const;
  at::Tensor gradient_of(const OwnPiece& piece) const;

  const Group& group_;
  const double bucket_bytes_, part_bytes_;
  GradientReducer* reducer_;
  std::shared_ptr<GradientScatter> scatter_;  // null: gradients are not divided
  Exchange exchange_;
  std::unordered_map<void*, Place> places_;
  std::vector<int64_t> loads_;                  // elements, by rank
  std::vector<std::vector<at::Tensor>> parts_;  // of the update: the flats that belong to it
  double open_bytes_ = 0;                       // in the last part
};

}  // namespace flashstep
