// The strategies naive, flat, overlapped and bucketed: they differ in how parameters are put into
// buckets, and in when a bucket is sent.
//
//   strategy     bucket                    gradient              sent
//   naive        one parameter             reduced in place      after backward, one by one
//   flat         all of a kind             copied into a slot    after backward
//   overlapped   one parameter             reduced in place      when its gradient is ready
//   bucketed     up to bucket_megabytes    copied into a slot    when its gradients are ready
//
// "Ready" is the moment at which the gradient has come as many times as in the first step, which is
// therefore sent as a whole after backward (a parameter in a recomputed part can get its gradient
// in several pieces, and only the first step tells in how many). Buckets are always sent in their
// order, for every rank must launch the same collectives in the same order. On NCCL buckets, too,
// are reduced in place (flat_buckets). With debug all is sent after backward, when ranks have
// compared it. Where gradients are divided (scatter_to), the buckets of flat and bucketed are what
// the scatter lays out, and copied into, but for NCCL on one machine (flat_buckets).
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flashstep/error.h"
#include "flashstep/parallel/bucket.h"
#include "flashstep/parallel/gradient_hooks.h"
#include "flashstep/parallel/reduction.h"

namespace flashstep {

class BucketReduction : public Reduction {
 public:
  BucketReduction(ReducedParameters parameters, const Group& group, const ReducerOptions& options);

  void finish() override;
  bool is_unfinished() const override;
  void forget_step() override;
  std::vector<int64_t> order() const override;
  void set_order(const std::vector<int64_t>& order, double bucket_megabytes) override;
  void record_again() override;
  std::vector<std::vector<int64_t>> buckets() const override;
  bool scatter_to(const std::shared_ptr<GradientScatter>& scatter) override;
  bool holds_divided_means() const override;
  std::string transport() const override;
  at::Tensor gradient_norm() const override;

 private:
  // How often the gradient of one parameter has come since the last finish(), and when last.
  struct Count {
    int64_t fired = 0, expected = 0, last = 0;
  };
  bool follows_backward() const;
  bool sends_in_backward() const;
  void make_buckets();
  void fired(int64_t index);
  void check_gradient(int64_t index) const;
  bool is_announced(int64_t index) const;
  std::vector<int64_t> unannounced() const;
  std::optional<UserError> mistake_of(const std::vector<int64_t>& unannounced) const;
  void compare_first(const std::optional<UserError>& mistake, const std::vector<int64_t>& missing);
  bool all_hear() const;
  void fill(int64_t index);
  void send_full_buckets();
  std::vector<int64_t> missing() const;
  void compare_plans() const;
  std::optional<UserError> deviation(const std::vector<int64_t>& missing) const;
  void send_rest(const std::vector<int64_t>& missing, const std::vector<int64_t>& unannounced);
  void wait_for_all(const std::vector<int64_t>& missing);
  void check_capture(const at::Device& device) const;
  void mark_divided();
  void record();
  void move_kept_means();
  bool can_keep_means() const;
  void keep_means();
  void take_room_for_means();
  void count_first_seen();
  void begin_next_step();
  void forget_counts();

  Averaging averaging_;
  const bool host_waits_;                      // in finish(), for messages: not on NCCL
  std::map<std::string, SideStream> streams_;  // by device
  std::vector<Bucket> buckets_;
  std::vector<std::pair<size_t, size_t>> places_;  // of each parameter: bucket and slot
  std::vector<int64_t> order_;
  std::vector<Count> counts_;
  int64_t clock_ = 0;      // counts gradients, to order them
  size_t next_ = 0;        // the first bucket that was not sent yet
  bool recording_ = true;  // this step is taken as the first
  bool order_is_given_ = false;
  std::optional<size_t> kept_bytes_;  // of the memory where means stay; 0: there is no room
  bool norm_is_known_ = false;        // to peers, of the last step's means
  bool is_broken_ = false;  // an earlier step threw half-way, or ranks differ about its end
  std::optional<UserError> came_again_;  // what this step's backward ended with
  mutable std::mutex mutex_;             // hooks come from the threads of several devices
  GradientHooks hooks_;                  // last: gone before what it calls
};

}  // namespace flashstep
