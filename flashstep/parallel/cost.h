// What data parallelism costs: the only home of these formulas. Derived in docs/parallel.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashstep {

// Bytes that each rank sends (and receives) for a collective over `bytes` on `world_size` ranks in
// a ring, which no algorithm among equal ranks can undercut (Patarasuk and Yuan, "Bandwidth optimal
// all-reduce algorithms for clusters of workstations", 2009).
double all_reduce_bytes(double bytes, int world_size);      // 2 (W - 1) / W of them
double reduce_scatter_bytes(double bytes, int world_size);  // (W - 1) / W
double all_gather_bytes(double bytes, int world_size);      // (W - 1) / W

// Bytes of memory per rank beyond parameters and activations, when a step's gradients are ready.
// `parameters`: elements that are trained; `state_bytes_per_parameter`: of the optimizer, 8 for
// AdamW with float32 moments; `bucket_bytes`: 0 when gradients are reduced in place.
struct Memory {
  double gradients = 0;      // what single-process training has too
  double communication = 0;  // beyond that, at most
  double optimizer_state = 0;
};
Memory data_parallel_memory(int64_t parameters, double gradient_bytes_per_parameter,
                            double bucket_bytes, double state_bytes_per_parameter,
                            int state_shards);

// What a step costs each rank with the optimizer's state divided, or not: docs/parallel.md,
// "Sharded optimizers".
enum class Sharding { kNone, kWhole, kFlat };
struct ShardedStep {
  double sent_bytes = 0;      // and received: gradients, then parameters
  double launches = 0;        // of collectives
  double gradient_bytes = 0;  // kept until the update
  double transit_bytes = 0;   // at most, of what is in flight, beside what is kept
  double state_bytes = 0;
};
struct ShardedStepSizes {
  double bytes = 0;         // of all parameters, and so of all gradients
  double state_bytes = 0;   // of the whole optimizer
  double bucket_bytes = 0;  // kFlat: of a flat tensor, too; infinity: all in one
  double part_bytes = 0;    // ShardOptions::part_megabytes
  bool nccl = true;         // else Gloo
  // With nccl: GPUs of one machine. What was updated goes by copies, which are no launches, and
  // kFlat's gradients are all-reduced in place; by copies they are no launches either.
  bool one_machine = false;
};
ShardedStep sharded_step(Sharding sharding, const ShardedStepSizes& sizes, int world_size);

// Time that communication adds to a step when it runs beside backward: what is sent after backward
// has ended is the last bucket, and every bucket costs a start.
struct BucketModel {
  double bytes = 0;             // of all gradients
  double bytes_per_second = 0;  // at which an all-reduce works through gradients
  double overhead_s = 0;        // of one bucket: launch and synchronization
};
double bucket_overhead_s(const BucketModel& model, double bucket_bytes);  // b / w + (s / b) o
double best_bucket_bytes(const BucketModel& model);                       // sqrt(s w o)

// Buckets are not chosen smaller, and the last one closes there (plan_buckets). PyTorch's default
// (MiB there): enough for small models, and on Gloo, where a bucket is a copy, little memory.
inline constexpr double kLeastBucketBytes = 25e6;

// A bucket closes with the tensor that fills it, so that it is larger: by so much, as a rule.
inline constexpr double kMostOfBucket = 1.25;
// Smaller buckets of small tensors are packed into one, which lies in memory twice.
inline constexpr double kMostPackedBytes = 32 << 20;

// What bucket_megabytes 0 stands for, in bytes: on NCCL the best bucket of the model as it was
// measured between two H200s, at least 25 MB; elsewhere 25 MB. Between more GPUs of one machine a
// bucket waits for the slowest of them, so that its overhead grows: up to 8, as many as were
// measured. What may be packed stays as small.
double chosen_bucket_bytes(double gradient_bytes, bool nccl, int ranks_of_a_machine);
// The same for flat shards, whose buckets are copies: not so large that what is in flight takes
// more than what a rank keeps of its gradients, s / W, as long as that allows 25 MB.
double chosen_flat_bytes(double gradient_bytes, bool nccl, int world_size);

// ---- Stages of ZeRO (Rajbhandari et al., 2020): each divides one thing more among the ranks.

enum class ZeroStage { kNone, kState, kGradients, kParameters };  // 0 (plain DDP), 1, 2, 3 (FSDP)
struct ZeroSizes {                                                // of the whole model
  double parameter_bytes = 0, gradient_bytes = 0, state_bytes = 0;
  double sent_parameter_bytes = 0;  // one copy of the parameters, in the dtype that travels
  double sent_gradient_bytes = 0;
  double layer_bytes = 0;  // the largest layer that is gathered at once, as it travels
};
struct ZeroCost {  // of each rank
  double parameters = 0, gradients = 0, state = 0;
  double gathered = 0;    // kParameters: whole layers, the one that computes and the next
  double sent_bytes = 0;  // and received, a step
  double total() const { return parameters + gradients + state + gathered; }
};
// Sent: gradients all-reduced, or reduce-scattered and the updated parameters all-gathered, which
// is the same; kParameters gathers them twice, for each pass.
ZeroCost zero_cost(ZeroStage stage, const ZeroSizes& sizes, int world_size);

// ---- Full sharding (docs/full_sharding.md; parallel/unit.cc, copied_messages.cc). W ranks.

// Gradients of so many units travel while the next are computed.
constexpr size_t kUnitsInFlight = 2;

struct FullShardSizes {  // elements of what is divided
  double elements = 0;   // in all
  double root = 0;       // of the root, which is whole from its forward to the end of backward
  double unit = 0;       // of the largest other unit
  double travel = 4;     // bytes of an element as it travels and computes
  bool copies = false;   // from GPU to GPU, not by collectives
};
struct FullShardStep {
  double slots = 0;      // whole tensors: the root's, the unit's that computes and the next one's
  double inboxes = 0;    // gradients that others have sent
  double in_flight = 0;  // gradients of two units that travel; by collectives with their messages
  double sent = 0;       // by a rank: units gathered for each pass, the root once, gradients
  double moved = 0;      // through a GPU's memory by copies: pushed, arrived, summed up
  double exposed = 0;    // sent while nothing computes: the first unit and the root, both ways
};
FullShardStep full_shard_step(const FullShardSizes& sizes, int world_size);

// ---- All-reduce in a ring of N ranks, S bytes

enum class AllReduce {
  kRing,            // reduce-scatter, then all-gather, of S / N bytes a step
  kTwoRings,        // one half of the bytes each way round at once, over links to two neighbours
  kWholeTensors,    // N - 1 times: pass on the tensor that came last, and add it to the sum
  kThroughOneRank,  // sum up along a chain of ranks, then send the sum back along it
};
struct Link {
  double bytes_per_second = 0;  // that a rank sends to one neighbour
  double latency_s = 0;         // of one message besides its bytes
};
struct AllReduceCost {
  double steps = 0;       // one after the other
  double sent_bytes = 0;  // by the rank that sends most
  double seconds = 0;
};
AllReduceCost all_reduce_cost(AllReduce algorithm, double bytes, int world_size, const Link& link);

// The size below which kWholeTensors, with half the steps, is faster than kRing: o w N / (N - 2);
// infinite for two ranks.
double whole_tensors_limit_bytes(int world_size, const Link& link);

// ---- Feed-forward layers on a mesh of accelerators, compute against communication
//
// B tokens of the whole batch, width D, inner width F, m matrices (D, F) or (F, D), e bytes an
// element. A pass forward takes 2 m B D F FLOPs, backward twice that. X ranks divide the batch, Y
// divide F (column parallel, then row parallel: one all-reduce of (B / X, D) a pass). C FLOP/s and
// W bytes/s of each. Compute-bound: computing takes at least as long as sending.

struct FeedForward {
  double d_model = 0, d_ff = 0;
  int matrices = 3;  // SwiGLU; 2 for a plain one
  double element_bytes = 2;
};
struct Accelerator {
  double flops_per_s = 0;  // C
  double bytes_per_s = 0;  // W: sent by one accelerator
};
struct Mesh {
  int data = 1;         // X
  int tensor = 1;       // Y
  bool sharded = true;  // weights are divided over X and gathered (FSDP); else whole (DP)
  // Links of an accelerator for each axis, by which W is multiplied (M_X and M_Y of Austin et al.,
  // "How to scale your model", 2025).
  double data_links = 1, tensor_links = 1;
};
struct PassTimes {  // of each accelerator
  double flops = 0;
  double compute_s = 0;
  double data_s = 0;    // weights or their gradients, over X
  double tensor_s = 0;  // activations or their gradients, over Y
};
PassTimes forward_times(const FeedForward& layer, double tokens, const Mesh& mesh,
                        const Accelerator& accelerator);
PassTimes backward_times(const FeedForward& layer, double tokens, const Mesh& mesh,
                         const Accelerator& accelerator);

double feed_forward_parameters(const FeedForward& layer, int64_t blocks);  // m D F a block

// Kept for backward by a stack of `blocks` such layers: the input of every matrix product. The
// function between two of them is taken to need nothing of its own; three need D + 3 F, two D + F.
double feed_forward_saved_bytes(const FeedForward& layer, int64_t blocks, double tokens);

// Per rank when state and every second layer's activations are divided by N: (state + half) / N +
// half. And the smallest N with which that is less than `limit_bytes`; 0 if none is.
double divided_bytes(double state_bytes, double saved_bytes, int64_t ranks);
int64_t least_ranks(double state_bytes, double saved_bytes, double limit_bytes);

// Most ranks with which a pass is compute-bound. DP (backward) and FSDP (both passes): 1 + 2 B W /
// (e C). TP: 1 + m F W / (e C) forward, twice the fraction backward.
double most_data_parallel(const FeedForward& layer, double tokens, const Accelerator& accelerator);
double most_tensor_parallel_forward(const FeedForward& layer, const Accelerator& accelerator);
double most_tensor_parallel_backward(const FeedForward& layer, const Accelerator& accelerator);

// The same for N = X Y at the best split, forward, with (N - 1) / N taken for 1: 2 m B F (W / e
// C)^2 when both axes send at once, a quarter of it when one waits for the other. Both at X / Y = 2
// B / (m F).
double most_mesh(const FeedForward& layer, double tokens, const Accelerator& accelerator,
                 bool at_once);
double best_mesh_ratio(const FeedForward& layer, double tokens);

// Tokens of the whole batch from which on the forward pass is compute-bound on this mesh, (N - 1) /
// N taken for 1; infinite when Y alone is too large. At once: X e C / (2 W M_X). One after the
// other: that over 1 - Y e C / (m F W M_Y). One rank on an axis sends nothing there: with X = 1 the
// result is 0, with Y = 1 the divisor is 1.
double least_tokens(const FeedForward& layer, const Mesh& mesh, const Accelerator& accelerator,
                    bool at_once);

}  // namespace flashstep
