// A group of processes that compute together: c10d's process group (Gloo for CPU tensors, NCCL for
// CUDA tensors) over a TCPStore, with a watch over every rank: when one hangs, dies or fails, every
// other rank throws a MachineError that names it (LostRank, error.h), instead of waiting for ever.
//
//   flashstep::Group group = flashstep::init();
//   auto work = group.process_group().allreduce(tensors);  // any collective of c10d
//   group.wait(work, "all-reduce of gradients");
//   const double mean = group.all_reduce(loss, flashstep::Reduce::kMean);
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "flashstep/detail/environment.h"

namespace flashstep {

class OutsideCollectives;

struct Timeouts {
  // For all ranks to start and connect.
  std::chrono::milliseconds start = std::chrono::minutes(5);
  // A rank that was not heard for this long is lost. Ranks are heard while they compute, too: a
  // thread of its own sends a heartbeat.
  std::chrono::milliseconds silence = std::chrono::seconds(30);
  // A collective that takes longer fails, although every rank is heard: some rank is caught
  // elsewhere, or launched another one.
  std::chrono::milliseconds collective = std::chrono::minutes(30);
  // After a rank is lost: for this process to notice, by wait() or check(), before on_stuck.
  std::chrono::milliseconds grace = std::chrono::seconds(10);
};

struct GroupOptions {
  bool nccl = false;      // CUDA tensors go through NCCL (a CUDA build); CPU tensors always Gloo
  int device_index = -1;  // the GPU of this rank; -1: gpu_of_rank() with nccl, else none
  // Ranks may have the same GPU, between which NCCL carries nothing: for what copies carry alone
  // (ReducerOptions::peer_copies). The same on all ranks.
  bool shared_gpus = false;
  Timeouts timeouts;
  // Called from a thread of the group with the sentence, when a rank is lost and this process is
  // caught in something that cannot be interrupted. A program gives end_process; empty: nothing.
  std::function<void(const std::string& sentence)> on_stuck;
};

enum class Reduce { kSum, kMean, kMin, kMax };  // NaN, where one is

class Group {
 public:
  // Blocks until all ranks have arrived (Timeouts::start). MachineError names the ranks that have
  // not; UserError if two processes say they are the same rank, if two have the same GPU or only
  // some have one, or NCCL was not built in. With more than one rank SIGPIPE is ignored from now
  // on, and c10d's log silenced (TORCH_CPP_LOG_LEVEL).
  explicit Group(const Environment& environment, GroupOptions options = {});
  // Takes a process group that was made elsewhere (Python's, for one): nobody is watched, and
  // errors are c10d's in one sentence. Values on the CPU go through its CPU backend. With a limit
  // and NCCL, copies between GPUs of one machine are used too: a process that waits for another
  // rank's for so long ends with a sentence, as NCCL's own watchdog would end it. All ranks give
  // one, or none.
  explicit Group(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                 std::chrono::milliseconds copies_limit = std::chrono::milliseconds(0));
  // Says goodbye. Rank 0, when it holds the store, stays until the others have left too. In a
  // process that was forked later it does nothing.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  bool is_first() const { return rank_ == 0; }
  // This rank's GPU; the CPU of a group that has none (GroupOptions), or was made elsewhere.
  at::Device device() const { return device_; }
  // Whether all ranks are processes of one machine, as their environment says; of a process group
  // that was made elsewhere, where copies may be used, as its kernel says.
  bool is_on_one_machine() const { return is_on_one_machine_; }

  // For collectives: by device, through Gloo or NCCL. Every rank launches the same collectives in
  // the same order, from one thread.
  c10d::ProcessGroup& process_group() const { return *process_group_; }
  const c10::intrusive_ptr<c10d::ProcessGroup>& shared_process_group() const {
    return process_group_;
  }

  // Gloo: returns when `work` is done. NCCL: when the current stream has been told to wait for it.
  // LostRank, "[all-reduce of gradients] rank 2 (process 4711 on node7) ...", when a rank is lost,
  // has failed or left; `what` says what this rank was doing.
  void wait(const c10::intrusive_ptr<c10d::Work>& work, const std::string& what) const;

  // Runs `body`; errors of the network in it become the same MachineError, others pass. For code
  // that waits by itself (c10d's Reducer), and for launching collectives, which can fail as well.
  template <typename Body>
  decltype(auto) guarded(const std::string& what, Body&& body) const {
    try {
      return std::forward<Body>(body)();
    } catch (...) {
      explain(what);
    }
  }

  // At step boundaries: MachineError if a rank was lost or NCCL reports an error.
  void check(const std::string& what = "training") const;

  // The ranks that give the same color, in their order: a group of its own, with connections of its
  // own, that belongs to this one. The same watch looks after it: a rank that is lost ends the
  // collectives of all parts, and is named by its number in the whole group. All ranks call it, in
  // the same order; who is divided as before gets the same group. As many collectives are launched
  // in every part, else the watch takes the ranks of some for late. UserError for a part, and for a
  // process group that was made elsewhere, unless take_part() has got the part.
  const Group& split(int64_t color) const;
  // Of a process group that was made elsewhere: what split() returns where the ranks give these
  // colors, in their order.
  void take_part(const std::vector<int64_t>& colors, std::unique_ptr<Group> part);

  // Of high priority, for what messages between GPUs are made of and for copies: as with the stream
  // of a communicator, all who use the group have the same one, and all ranks give it the same work
  // in the same order. `device` is a GPU.
  c10::Stream side_stream(at::Device device) const;

  // Flashstep's own: collectives that do not go through process_group(), for the watch. Null
  // for one rank, and for a process group that was made elsewhere, without a limit.
  OutsideCollectives* outside() const;
  // Those, and what went by NCCL, in this group and its parts: what the watch compares.
  uint64_t launched_on_gpu() const;

  // Tells the other ranks that this one ends with `sentence`: they end with it too, at once. For
  // the handler of an exception that the others cannot see.
  void fail(const std::string& sentence) const;

  // The following go through Gloo, on the CPU; every rank calls them in the same order with values
  // of the same length. They throw as wait() does.

  // Returns when all ranks have called it; `timeout` instead of Timeouts::collective.
  void barrier(const std::string& what = "barrier",
               std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) const;
  // Element by element over the ranks, in rank order's fixed sum: the same bits on every rank.
  double all_reduce(double value, Reduce reduce) const { return all_reduce(one(value), reduce)[0]; }
  template <std::integral T>
  int64_t all_reduce(T value, Reduce reduce) const {  // kMean: rounds towards zero
    return all_reduce(one(static_cast<int64_t>(value)), reduce)[0];
  }
  std::vector<double> all_reduce(const std::vector<double>& values, Reduce reduce) const;
  std::vector<int64_t> all_reduce(const std::vector<int64_t>& values, Reduce reduce) const;
  // Every rank's value or text, in rank order; texts may differ in length.
  std::vector<double> all_gather(double value) const;
  std::vector<int64_t> all_gather(int64_t value) const;
  template <std::integral T>
  std::vector<int64_t> all_gather(T value) const {
    return all_gather(static_cast<int64_t>(value));
  }
  std::vector<std::string> all_gather(const std::string& text) const;
  // What rank `from` passes (the others' argument is ignored); for JSON, configurations, decisions.
  std::string broadcast(const std::string& text, int from = 0) const;
  // Overwrites a contiguous CPU or CUDA tensor with rank `from`'s.
  void broadcast(at::Tensor tensor, int from = 0) const;

 private:
  struct Internals;
  template <typename T>
  static std::vector<T> one(T value) {
    return {value};
  }
  Group(const Group& whole, const Environment& own, const std::string& name);  // a part
  void connect();
  void connect_gloo();
  void connect_nccl();
  void guard(const std::function<void()>& also_end = nullptr) const;
  void part_or_tell();
  bool part_together() const;
  void leave_gloo();
  bool wait_in_turns(c10d::Work& work, const std::string& what) const;
  // Inside a handler: throws MachineError for an error of the network, else the same exception.
  [[noreturn]] void explain(const std::string& what) const;

  int rank_, world_size_;
  at::Device device_ = at::kCPU;
  bool is_on_one_machine_ = false;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  std::unique_ptr<Internals> internals_;
};

// Overwrites a contiguous CPU or CUDA tensor with its sum (mean, ...) over the ranks, element by
// element; kMean is for floating-point ones. Through NCCL it is launched on the current stream,
// whose later work sees the result. A CUDA tensor of a group without NCCL goes through Gloo and the
// host's memory. Throws as Group::wait does; `what` says what this rank was doing. UserError,
// before anything is sent, for another tensor.
void all_reduce(const Group& group, at::Tensor tensor, Reduce reduce,
                const std::string& what = "all-reduce");

// For GroupOptions::on_stuck: "flashstep: SENTENCE" on stderr, and the process ends with exit code
// 1 at once.
void end_process(const std::string& sentence);

// How a program joins the ranks that it was started as.

// The group of this process and those that were started with it, by torchrun, mpirun, srun or
// `flashstep launch`; of itself alone, if nobody says more.
//
// Where there is a GPU, this rank's is group.device() and the current device from now on, and CUDA
// tensors go through NCCL, if it was built in; everything else goes through Gloo. The cores of a
// machine are shared among its ranks (unless OMP_NUM_THREADS says how many each has), a lost rank
// ends a process that is caught in a collective (GroupOptions::on_stuck), and rank 0 says in a line
// on stderr what there is. `options`: nccl and device_index are chosen here.
//
// Throws what Group's constructor throws, on every rank: UserError for an environment that
// contradicts itself or ranks that share a GPU, MachineError for ranks that do not come.
Group init(GroupOptions options = {});

}  // namespace flashstep
