// Data parallelism for a module of your own:
//
//   flashstep::Group group = flashstep::init();
//   flashstep::DistributedDataParallel net(my_net, group);  // a shared_ptr or module holder
//   ...
//   auto loss = criterion(net(x), y);  // takes what my_net's forward takes
//   loss.backward();                   // ends with the means over the ranks
//   optimizer.step();
//
// Every rank starts from rank 0's parameters and buffers, computes the gradients of its own part of
// the batch, and updates with their mean (S. Li et al., "PyTorch Distributed: Experiences on
// Accelerating Data Parallel Training", VLDB 2020). The mean over ranks is the mean over the global
// batch when the parts are of equal size; of an uneven last batch, drop the rest, or weight the
// loss of each rank by its share of the rows (share_of_batch).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "flashstep/detail/module_synchronizer.h"
#include "flashstep/group.h"

namespace flashstep {

// When gradients travel, and in how many pieces. docs/parallel.md tells what each costs.

enum class Strategy {
  kNaive,       // one all-reduce per parameter, one after the other, after backward
  kFlat,        // one all-reduce for all (of a device and dtype), after backward
  kOverlapped,  // one per parameter, while backward goes on
  kBucketed,    // one per bucket of parameters, while backward goes on
  kTorch,       // c10d's own Reducer: the baseline
};
Strategy strategy_by_name(const std::string& name);  // "naive", ..., "torch"; else UserError
std::string strategy_name(Strategy strategy);
std::vector<std::string> strategy_names();

// Averages gradients over the ranks of a group, for any list of parameters.
//
//   GradientReducer reducer(net->parameters(), group);
//   loss.backward();
//   reducer.finish_gradient_synchronization();   // every .grad is now the mean over the ranks
//   optimizer.step();
//
// DistributedDataParallel wraps a module with it. How the strategies differ, and what each costs:
// docs/parallel.md.
//
// All who use one group on a GPU send in the same order on all ranks: two reducers of it must not
// fill their buckets in another order here than there.
//
// A CUDA graph may hold a step, from zero_grad on, after some outside of one (docs/parallel.md, "In
// a CUDA graph"). UserError, in the backward that is captured, for what hosts must do in a step:
// the first one, debug, allow_unused, Gloo's messages. kTorch says nothing.

class Reduction;
class GradientScatter;

constexpr double kBytesPerMegabyte = 1e6;

struct ReducerOptions {
  Strategy strategy = Strategy::kBucketed;
  // A bucket is closed by the parameter whose gradient brings it to at least this (MB = 10^6
  // bytes). 0: chosen by the size of all gradients, the backend and the ranks of a machine.
  double bucket_megabytes = 0;
  // After the first step, buckets are made anew in the order in which gradients became ready on
  // rank 0 (kOverlapped, kBucketed).
  bool reorder = true;
  // Some rank may have no gradient for some parameter in some step. It counts as zero there; a
  // parameter without gradient on any rank keeps its .grad as it was. A gradient may also come
  // fewer times than in the first step. Costs a small all-reduce a step, and buckets that wait for
  // such a parameter are sent after backward only. Off: a sentence names the parameters.
  bool allow_unused = false;
  // kBucketed: gradients are copied side by side into one flat tensor a bucket, and .grad becomes a
  // view of it. Else they stay where autograd has put them, and a bucket is many tensors in one
  // launch, which NCCL takes as they are and Gloo copies. Unless given: flat on Gloo, else in
  // place, but flat where gradients are divided (scatter_to) between machines. Divided ones in flat
  // buckets are reduce-scattered; in place they are all-reduced, which sends twice the bytes and,
  // over NCCL, copies hardly any of them.
  std::optional<bool> flat_buckets = std::nullopt;
  // Buckets in place between GPUs of one machine, under NCCL, are averaged by copies from GPU to
  // GPU; false: by NCCL, as they are between machines. Takes up to (W - 1) 160 MiB of memory; the
  // sums of more than two ranks are rounded differently. What each costs: docs/parallel.md.
  bool peer_copies = true;
  // Means that come from other GPUs by copies stay where they arrive, from the third step on, and
  // .grad is a view of that memory: the next step writes over it, also where somebody has kept it.
  // Saves a copy of most gradients, and takes about (W - 1) / W of their memory for good, where the
  // first two steps have left room. Changes nothing without peer_copies, with a
  // communication_dtype, and while gradients are divided.
  bool gradient_as_bucket_view = false;
  // Gradients travel in this dtype (kBFloat16, say); undefined: their own, but float32 over Gloo
  // where they are kept with fewer bits than their parameter's (set_grad_dtype).
  std::optional<at::ScalarType> communication_dtype = std::nullopt;
  // Every step: ranks compare what they are about to reduce, the buckets' order, names, shapes and
  // dtypes and (without allow_unused) which gradients there are. Before anything is sent, so all of
  // it is sent after backward; the first difference is named on all ranks. Not for kTorch.
  bool debug = false;
};

class GradientReducer {
 public:
  // Parameters that need no gradient are left alone; one that is given twice (tied weights) is
  // reduced once. A gradient has the dtype that set_grad_dtype() has announced by now, else its
  // parameter's (kTorch: UserError for any other); one that comes in another is refused when the
  // step is finished, as a gradient that is missing. `names`, for messages, goes with `parameters`;
  // empty: "parameter 0", ... The group must outlive the reducer. All ranks call it: UserError, on
  // all of them, that names the first option or parameter in which two ranks differ (name, shape,
  // place, dtype or that of the gradient).
  GradientReducer(const std::vector<at::Tensor>& parameters, const Group& group,
                  ReducerOptions options = {}, const std::vector<std::string>& names = {});
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Before a backward whose gradients shall be averaged. Only kTorch needs it;
  // DistributedDataParallel's forward calls it.
  void prepare_for_backward();

  // After the last backward of a step: returns when every .grad is the mean over the ranks (on a
  // GPU: when the current stream has been told to wait for it). Between backward and this, leave
  // .grad alone. MachineError for a lost rank. UserError for a parameter without gradient (but see
  // allow_unused), or whose gradient came fewer times than in the first step, outside of no_sync:
  // on all ranks, in the first step before anything is sent. What ends a backward itself: a
  // gradient that is sparse, or that comes more often than in the first step; of the latter this
  // then tells all ranks. A step so refused is over, its gradients are worth nothing, and the next
  // one is as any. Over NCCL, where the host waits for nobody, a later step's is thrown on the rank
  // that it is true of, which cannot go on; all ranks' means of what is missing are NaN, and the
  // other ranks learn of it when that one has ended. The same with allow_unused.
  void finish_gradient_synchronization();

  // The norm of the means that this left, over all parameters, where peer copies carried them: it
  // came along with their sums, without another pass over them. () float32, the same bits on all
  // ranks, until the next backward; else undefined.
  at::Tensor gradient_norm() const;

  // While the guard lives, backward only adds gradients up (gradient accumulation). The guard must
  // not outlive the reducer.
  class NoSync {
   public:
    explicit NoSync(GradientReducer& reducer);
    ~NoSync();
    NoSync(NoSync&& other) noexcept;
    NoSync& operator=(NoSync&&) = delete;

   private:
    GradientReducer* reducer_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // False under no_sync.
  bool is_enabled() const;
  // True after a backward that finish_gradient_synchronization has not followed yet.
  bool is_unfinished() const;

  // True while some .grad holds this rank's own gradients, of backwards under no_sync, that no
  // backward outside of it has ended with the means of. kTorch does not know.
  bool holds_local_gradients() const;

  // After a backward that broke off at the same place on all ranks, or a capture of one into a CUDA
  // graph, which none replays: the step has not been. Waits for what is in flight, and until the
  // group's limit where another rank has started less.
  void forget_step();

  // The order of parameters that buckets follow, as indices into reduced_parameters(). From three
  // ranks on, a value's place in a bucket changes the bits of its sum: a checkpoint keeps the
  // order, and a resumed run gives it back before its first step. Empty, and without effect:
  // kTorch.
  std::vector<int64_t> bucket_order() const;
  // With the size that buckets had, MB; 0: as it is. UserError unless a permutation.
  void set_bucket_order(const std::vector<int64_t>& order, double bucket_megabytes = 0);

  // The next step is again taken as the first: gradients are counted, buckets made anew. After a
  // change of what backward does. All ranks call it at the same step.
  void record_again();

  // From the next step on the means are divided instead of being on every rank: `scatter` takes the
  // buckets, made as its layouts say, and after the step's last backward .grad
  // holds nothing. Null: as before. False, without effect, for a strategy without buckets and for a
  // single process. UserError while somebody else holds the scatter that was given before. What
  // ShardedOptimizer calls for flat shards.
  bool scatter_to(const std::shared_ptr<GradientScatter>& scatter);

  // Whether divided means wait for the optimizer's step: another backward would replace them.
  bool holds_divided_means() const;

  // What is reduced: the distinct parameters that need gradients, in their first order.
  const std::vector<at::Tensor>& reduced_parameters() const;
  // Of each one's gradient.
  const std::vector<at::ScalarType>& gradient_dtypes() const;
  // Indices into reduced_parameters(), bucket by bucket; empty for kTorch.
  std::vector<std::vector<int64_t>> buckets() const;
  // "bucketed, 31 buckets of up to 298 MB (chosen), by copies"; the last is transport()
  std::string describe() const;
  // What buckets are set up to travel by: "copies" (peer_copies, where there are any), "NCCL",
  // "Gloo"; "" for a single process. Where there are copies, NCCL still carries other dtypes than
  // float32, float64, float16 and bfloat16.
  std::string transport() const;
  // As given, except that bucket_megabytes is the size in use.
  const ReducerOptions& options() const;
  // Whether that size was chosen here, not given.
  bool bucket_size_is_chosen() const { return bucket_size_is_chosen_; }

 private:
  bool bucket_size_is_chosen_;
  std::unique_ptr<Reduction> reduction_;
};

// M is the module's class (for a holder made by TORCH_MODULE, the class behind it). The wrapper is
// a module itself, with `module` as its only child: parameters, train(), eval() and saving work on
// it.
template <typename M>
class DistributedDataParallel : public torch::nn::Module {
 public:
  DistributedDataParallel(std::shared_ptr<M> module, const Group& group,
                          ReducerOptions options = {})
      : module_(register_module("module", not_null(std::move(module), "parallel"))),
        synchronizer_(std::make_unique<ModuleSynchronizer>(*module_, group, options)) {}
  DistributedDataParallel(const torch::nn::ModuleHolder<M>& module, const Group& group,
                          ReducerOptions options = {})
      : DistributedDataParallel(module.ptr(), group, options) {}

  // The module's own forward. The outermost backward through what it returns (a tensor, or tuples,
  // vectors, maps, optionals of tensors) ends with the means of the gradients, unless it runs under
  // no_sync(). It throws what finish_gradient_synchronization() does.
  template <typename... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    synchronizer_->before_forward();
    using Result = decltype(module_->forward(std::forward<Arguments>(arguments)...));
    if constexpr (std::is_void_v<Result>) {
      module_->forward(std::forward<Arguments>(arguments)...);
    } else {
      Result result = module_->forward(std::forward<Arguments>(arguments)...);
      if (torch::GradMode::is_enabled()) {
        for_each_tensor(result, [this](const at::Tensor& t) { synchronizer_->watch(t); });
      }
      return result;
    }
  }
  template <typename... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  // GradientReducer's, after checking that the module still has the parameters that were wrapped.
  // Nothing where backward has ended with it. By hand for a loss that is made of none of forward's
  // results, and on all ranks in steps that some rank takes no part in.
  void finish_gradient_synchronization() { synchronizer_->finish(); }
  [[nodiscard]] GradientReducer::NoSync no_sync() { return reducer().no_sync(); }
  // no_sync() while `condition`: for the loop over micro-batches, `!is_last`.
  [[nodiscard]] std::optional<GradientReducer::NoSync> no_sync_if(bool condition) {
    if (!condition) return std::nullopt;
    return no_sync();
  }
  // Buffers (running statistics, say) are rank 0's again. They are not kept equal by themselves.
  // UserError, on all ranks, for others than rank 0's.
  void broadcast_buffers() { synchronizer_->broadcast_buffers(); }

  const std::shared_ptr<M>& module() const { return module_; }
  GradientReducer& reducer() { return synchronizer_->reducer(); }
  const Group& group() const { return synchronizer_->group(); }

 private:
  std::shared_ptr<M> module_;
  std::unique_ptr<ModuleSynchronizer> synchronizer_;
};

// Ranks whose batches differ in size, or of which some have none left while others go on.
//
//   while (true) {
//     const Batch batch = next();                                      // may be empty
//     const auto share = share_of_batch(batch.rows, group);
//     if (share.rows == 0) break;                                      // on all ranks at once
//     if (batch.rows > 0) (loss(net, batch) * share.weight).backward();
//     else give_zero_gradients(net.reducer());
//     net.finish_gradient_synchronization();
//     optimizer.step();
//   }
//
// Between backward, or give_zero_gradients(), and finish_gradient_synchronization() no rank calls
// another collective: those with rows have sent their gradients by then, those without have not.

struct BatchShare {
  int64_t rows = 0;   // of all ranks together
  double weight = 0;  // for the mean loss of this rank's rows: own rows times W over all rows.
                      // Where a loss ignores targets, give those that count instead of rows
};

// With the loss so weighted, the mean over the ranks is the mean over all rows. All ranks call it
// before each step, with the rows of the whole step: where gradients are accumulated, of all its
// micro-batches together, each of whose mean losses counts by its share of them. Costs one small
// message.
BatchShare share_of_batch(int64_t own_rows, const Group& group);

// On a rank without rows, instead of the step's last backward: parameters without gradient get one
// of zeros, what earlier micro-batches have added up stays. With allow_unused it does nothing, for
// a gradient that is missing counts as zero already (and one that is missing on all ranks leaves
// its parameter alone). Not for strategy torch, which sends from within backward: UserError.
void give_zero_gradients(GradientReducer& reducer);

}  // namespace flashstep
