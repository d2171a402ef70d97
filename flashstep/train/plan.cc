#include "flashstep/train/plan.h"

#include <algorithm>

#include "flashstep/comm/peer_mean.h"
#include "flashstep/comm/rounds_of_means.h"
#include "flashstep/error.h"
#include "flashstep/model/cost.h"
#include "flashstep/ops/cost.h"
#include "flashstep/parallel/cost.h"
#include "flashstep/train/cost.h"

namespace flashstep {
namespace {

constexpr double kMiB = 1048576.0, kGiB = 1073741824.0;
// cuBLAS's, one for the host's thread and one for autograd's (cuBLAS: 32 MiB on Hopper), and
// the most that a product takes while it runs (products/lt.cc).
constexpr double kLibraryWorkspace = 2 * 32 * kMiB, kProductWorkspace = 32 * kMiB;
// Of a run on a CPU: the program, LibTorch and its threads; and what is free in the heap between
// tensors, as a share of these (plan_cpu_test).
constexpr double kHostProcess = 0.22 * kGiB, kHostHeapShare = 0.04;
// Of the host's memory, for its system and the pages of files that are read and written: an
// assumption.
constexpr double kHostReserveShare = 0.05, kLeastHostReserve = 0.5 * kGiB;
constexpr int64_t kMachineGpus = 8;
// Of the memory, for pieces between tensors of launched steps: an assumption, no run was so close.
constexpr double kLaunchedShare = 0.97;

// One rank's run, as a plan needs it.
struct Run {
  Config config;
  int64_t ranks = 1;
  int64_t dividing = 1;  // ranks that divide a copy of the weights, or the moments
  PlanDevice device = {};
  int64_t recomputed = 0;
  bool is_full = false, is_flat = false, divides_moments = false, uses_copies = false;
  double divided = 0, small = 0;               // elements of matrices, of norms
  double root = 0, unit = 0;                   // of matrices outside of blocks, of a block
  double head = 0;                             // of the head's, which is the embedding's if tied
  double gradient = 4, travel = 4;             // bytes of an element
  double state_share = 1, gradient_share = 1;  // that a rank keeps of matrices'
  double muon = 0, muon_flops = 0;             // elements that Muon updates, and its products
  // Of compute copies: those that no AdamW of this rank writes, cast in every step.
  double cast_share = 0;
  StateWidths widths = {};

  const ModelConfig& model() const { return config.model; }
  FullShardStep sharded() const {
    const FullShardSizes sizes{divided, root, unit, travel, uses_copies};
    return is_full ? full_shard_step(sizes, static_cast<int>(dividing)) : FullShardStep();
  }
  KeptBlocks kept(Recompute recompute) const {
    const TrainConfig& train = config.train;
    KeptBlocks kept;
    kept.shape = {.batch_size = train.batch_size,
                  .seq_len = model().context_length,
                  .bf16 = train.precision == "bf16",
                  .naive_attention = model().attention == "naive",
                  .on_gpu = device.is_gpu,
                  .recompute = recompute,
                  .short_stream = has_short_stream(train, device.is_gpu),
                  .float8 = train.bf16_products == "fp8"};
    kept.recomputed = recompute == Recompute::kNone ? 0 : recomputed;
    kept.group = std::min(train.recompute_group, model().num_layers);
    return kept;
  }
};

Run make_run(const Config& given, int64_t ranks, const PlanDevice& device) {
  Run run{.config = given, .ranks = ranks, .dividing = ranks, .device = device};
  Config& config = run.config;
  if (config.model.vocab_size == 0) config.model.vocab_size = config.tokenizer.vocab_size;
  config.model = resolved(config.model);
  const int64_t blocks = config.model.num_layers, first = config.train.recompute_blocks;
  run.recomputed = first == 0 ? blocks : std::min(first, blocks);
  if (config.parallel.shard_ranks > 0) run.dividing = config.parallel.shard_ranks;
  const ParameterCounts counts = parameter_counts(config.model);
  run.small = static_cast<double>(counts.norms);
  run.divided = static_cast<double>(counts.total()) - run.small;
  run.root = static_cast<double>(counts.embedding + counts.head);
  run.head = static_cast<double>(counts.embedding);  // has its size, or is it
  run.unit = static_cast<double>(block_parameter_count(config.model) - 2 * config.model.d_model);
  const std::string& shards = config.parallel.shard_optimizer;
  run.is_full = shards == "full" && run.dividing > 1;
  run.is_flat = shards == "flat" && ranks > 1;
  run.divides_moments = shards != "none" && ranks > 1;
  run.uses_copies = device.is_gpu && ranks > 1 && config.parallel.peer_copies == "all";
  if (config.optimizer.kind == "muon") {
    const double share = run.divides_moments ? 1 / static_cast<double>(ranks) : 1;
    run.muon = run.unit * static_cast<double>(blocks);
    run.muon_flops = share * muon_flops_of_block(config.model) * static_cast<double>(blocks);
  }
  const bool is_short = device.is_gpu && config.train.precision == "bf16";
  run.gradient = has_bf16_gradients(config, device.is_gpu) ? 2 : 4;
  run.travel = is_short ? 2 : 4;
  const auto shares = static_cast<double>(run.dividing);
  if (run.is_full) run.state_share = 1 / shares;
  if (run.is_full || run.is_flat) run.gradient_share = 1 / shares;
  // With flat shards AdamW updates pieces, and knows no copy; with whole ones its own parameters'.
  if (run.divides_moments && !run.is_full) run.cast_share = run.is_flat ? 1 : 1 - 1 / shares;
  const bool is_narrow = config.train.weights == "bf16";
  run.widths = {.parameter = is_narrow ? 2.0 : 4.0,
                .gradient = run.gradient,
                .moment = config.train.moments == "bf16" ? 2.0 : 4.0,
                .copy = is_short && !is_narrow ? 2.0 : 0.0};
  return run;
}

// What a step makes and frees again, at one moment of it.
struct Moment {
  double kept = 0, gradients = 0, temporaries = 0;
  double total() const { return kept + gradients + temporaries; }
};

// The fullest moment: the loss, its gradient, the backward of some block, or the update.
Moment fullest(const Run& run, const KeptBlocks& kept) {
  const ModelConfig& model = run.model();
  const double block = run.gradient * run.unit, head = run.gradient * run.head;
  const double share = run.config.optimizer.in_backward ? 0 : run.gradient_share;
  const double all = share * run.gradient * run.divided + 4 * run.small;
  // With several micro-batches the gradients of those before are there all along.
  const double before = run.config.train.accumulation_steps > 1 ? all : 0;
  // Kernels add later ones up in place (ops/gradient_sum), where a rank keeps whole gradients.
  const bool adds_up = before > 0 && run.device.is_gpu && run.gradient_share == 1;
  const double fresh = adds_up ? 0 : head + block;
  const double workspace = run.device.is_gpu ? kProductWorkspace : 0;
  const FullShardStep sharded = run.sharded();

  std::vector<Moment> moments;
  const double after_forward = kept_bytes(model, kept);
  moments.push_back({after_forward, before, head_forward_bytes(model, kept.shape) + workspace});
  moments.push_back({after_forward, before, head_backward_bytes(model, kept.shape, run.gradient)});
  for (int64_t i = 0; i < model.num_layers; ++i) {
    PassShape shape = kept.shape;
    if (i >= kept.recomputed) shape.recompute = recompute_of_others(shape.recompute);
    const auto behind = static_cast<double>(model.num_layers - 1 - i);
    const double in_flight =
        std::min(behind / static_cast<double>(kUnitsInFlight), 1.0) * sharded.in_flight;
    const double own = share * block * behind;
    moments.push_back({kept_bytes_in_backward(model, kept, i),
                       std::max(before, own) + fresh + in_flight,
                       block_backward_bytes(model, shape) + workspace});
  }
  const double largest = static_cast<double>(model.d_model * std::max(model.d_ff, model.d_model));
  const double at_once =
      std::min(run.muon, std::max(static_cast<double>(kMostMuonElements), largest));
  const double muon = (run.device.is_gpu ? 1 : 2) * kMuonBytes * at_once;
  if (run.config.optimizer.in_backward) {
    for (Moment& moment : moments) moment.temporaries += muon;
  }
  moments.push_back({0, all + (run.is_full ? 2 * head : 0), muon});
  return *std::ranges::max_element(moments, {}, &Moment::total);
}

double bucket_bytes(const Run& run) {
  const double given = run.config.parallel.bucket_megabytes * 1e6;
  const double gradients = run.gradient * run.divided;
  if (given > 0) return given;
  const auto ranks = static_cast<int>(run.ranks);
  if (run.is_flat) return chosen_flat_bytes(gradients, run.device.is_gpu, ranks);
  return chosen_bucket_bytes(gradients, run.device.is_gpu, run.uses_copies ? ranks : 2);
}

// Whether copies between GPUs carry the means of buckets (comm/peer_mean.h), flat shards' too.
bool has_peer_means(const Run& run) {
  const ParallelConfig& parallel = run.config.parallel;
  return run.uses_copies && parallel.wrapper == "bucketed" && parallel.flat_buckets != "yes" &&
         !run.is_full;
}

double transit_bytes(const Run& run) {
  if (run.ranks == 1 || run.is_full) return 0;
  const int world_size = static_cast<int>(run.ranks);
  double means = 0;
  if (has_peer_means(run)) {
    const double bucket = std::max(kLeastBucketBytes, kMostOfBucket * bucket_bytes(run));
    const double round = std::min(
        {run.gradient * run.divided, bucket, static_cast<double>(kMostPeerMeanShare) * world_size});
    means = kMostOfShare * all_reduce_bytes(round, world_size);
    if (!run.is_flat) return means;
  }
  ShardedStepSizes sizes;
  sizes.bytes = run.gradient * run.divided;
  sizes.bucket_bytes = bucket_bytes(run);
  sizes.part_bytes = 64e6;  // ShardOptions
  sizes.nccl = run.device.is_gpu;
  sizes.one_machine = run.uses_copies;
  const Sharding sharding = run.is_flat           ? Sharding::kFlat
                            : run.divides_moments ? Sharding::kWhole
                                                  : Sharding::kNone;
  return means + sharded_step(sharding, sizes, world_size).transit_bytes;
}

// Of means by copies, which stay where they arrive if there is room.
double kept_means_bytes(const Run& run) {
  const double gradients = has_peer_means(run) && !run.is_flat ? run.gradient * run.divided : 0;
  return all_reduce_bytes(gradients, static_cast<int>(run.ranks)) / 2;
}

void plan_memory(const Run& run, const KeptBlocks& kept, PlannedLevel& level) {
  StateBytes state = state_bytes(run.state_share * run.divided, run.widths);
  // An embedding is looked up in float32, unless it is gathered.
  if (!run.is_full) state.copies -= run.widths.copy * (run.root - run.head);
  const StateBytes norms = state_bytes(run.small, {.moment = run.widths.moment});
  state.parameters += norms.parameters;
  state.optimizer -= run.widths.moment * run.muon;  // which has one
  // Moments may be divided where parameters are whole.
  const double share = run.divides_moments ? 1 / static_cast<double>(run.dividing) : 1;
  state.optimizer = share / run.state_share * state.optimizer + norms.optimizer;
  const FullShardStep sharded = run.sharded();
  const Moment moment = fullest(run, kept);
  level.kept_bytes = kept_bytes(run.model(), kept);
  const auto add = [&](const char* name, double bytes) {
    level.parts.push_back({name, bytes});
    level.tensor_bytes += bytes;
  };
  add(run.is_full ? "parameters, shards" : "parameters", state.parameters);
  add("compute copies", state.copies);
  add(run.muon > 0 ? "moments" : "AdamW's moments", state.optimizer);
  add("gathered units and root", sharded.slots);
  add("inboxes of gradients", sharded.inboxes);
  add("messages and buckets", transit_bytes(run));
  add("kept for backward", moment.kept);
  add("gradients", moment.gradients);
  add("temporaries of head or block", moment.temporaries);
  add("workspace of products", run.device.is_gpu ? kLibraryWorkspace : 0);
  const double memory = run.device.memory_bytes;
  level.used_bytes = level.tensor_bytes;
  if (!run.device.is_gpu) {
    level.parts.push_back({"process", kHostProcess});
    level.parts.push_back({"heap's reserve", kHostHeapShare * level.tensor_bytes});
    level.used_bytes += kHostProcess + kHostHeapShare * level.tensor_bytes;
    const double processes = static_cast<double>(run.ranks);  // share the machine
    const double room = memory - std::max(kLeastHostReserve, kHostReserveShare * memory);
    level.fit = processes * level.used_bytes <= room ? Fit::kYes : Fit::kNo;
    return;
  }
  const double context = measure::gpu_context_bytes();
  const double launched = (level.tensor_bytes + context) / kLaunchedShare;
  level.parts.push_back({"CUDA, NCCL, libraries", context});
  // A recorded step makes such copies in memory of its own; that of the launched steps' stays.
  level.parts.push_back({"allocator's reserve", measure::allocator_reserve_bytes(moment.total()) +
                                                    run.cast_share * state.copies});
  for (size_t i = level.parts.size() - 2; i < level.parts.size(); ++i)
    level.used_bytes += level.parts[i].bytes;
  const bool is_launched = run.config.train.graph == "off";
  level.fit = level.used_bytes <= memory       ? Fit::kYes
              : launched > memory              ? Fit::kNo
              : is_launched                    ? Fit::kYes
              : run.config.train.graph == "on" ? Fit::kNo
                                               : Fit::kLaunched;
  const double means = kept_means_bytes(run);
  if (means > 0 && level.used_bytes + means <= (1 - kFreeBesideKeptMeans) * memory) {
    add("means from other ranks", means);
    level.used_bytes += means;
    level.means_stay = true;
  }
}

// Bytes through memory and seconds exposed, of what ranks exchange.
void add_exchange(const Run& run, bool means_stay, double update_s, PlannedTime& time) {
  const measure::StepRates& rates = *run.device.rates;
  const int world_size = static_cast<int>(run.ranks);
  if (run.is_full) {
    const FullShardStep sharded = run.sharded();
    const auto steps = static_cast<double>(run.config.train.accumulation_steps);
    time.memory_s += steps * sharded.moved / rates.memory;
    time.communication_s = sharded.exposed / rates.link;
    return;
  }
  // Means: pushed and pushed back, both read here and written there; summed up; and copied into
  // place but for those that stay.
  const double gradients = run.gradient * run.divided;
  const double sent = all_reduce_bytes(gradients, world_size);
  const double summed = gradients * (1 + 1.0 / world_size);
  time.memory_s += (2 * sent + summed + (means_stay ? 0 : sent)) / rates.memory;
  // Of flat shards all buckets are as large, of the others the last one is not.
  const double last =
      run.is_flat ? bucket_bytes(run) : std::min(bucket_bytes(run), kLeastBucketBytes);
  time.communication_s = std::min(gradients, last) / rates.link;
  if (!run.divides_moments) return;
  // Updated parameters travel beside the rest of the update, through the memory that bounds it.
  const double updated = all_gather_bytes(run.widths.parameter * run.divided, world_size);
  time.communication_s += std::max(0.0, updated / rates.link - update_s);
  const double cast = run.cast_share * (4 + run.widths.copy) * run.divided;
  time.memory_s += (2 * updated + cast) / rates.memory;
}

std::optional<PlannedTime> plan_time(const Run& run, const KeptBlocks& kept, bool means_stay) {
  const TrainConfig& train = run.config.train;
  const bool is_known = run.device.rates && run.device.is_gpu && train.precision == "bf16" &&
                        !kept.shape.naive_attention && run.ranks <= kMachineGpus &&
                        (run.ranks == 1 || run.uses_copies) && run.dividing == run.ranks;
  if (!is_known) return std::nullopt;
  const measure::StepRates& rates = *run.device.rates;
  const ModelConfig& model = run.model();
  const measure::AttentionRates& attention = rates.attention;
  const auto steps = static_cast<double>(train.accumulation_steps);
  const PassWork work = pass_work(model, kept);
  PlannedTime time;
  time.products_s = (steps * work.product_flops + run.muon_flops) / rates.products +
                    steps * work.float8_flops / rates.products_of_8_bits;
  time.attention_s =
      steps *
      (work.attention_forward_flops / attention.forward(model.head_dim(), model.context_length) +
       work.attention_backward_flops / attention.backward(model.head_dim(), model.context_length));
  time.launches_s = steps * work.kernels * rates.kernel_s;
  const double own =
      run.divides_moments ? run.divided / static_cast<double>(run.ranks) : run.divided;
  const double update_s = update_traffic_bytes(own, run.widths) / rates.memory;
  // Means by copies bring it along.
  const double norm_s = run.ranks > 1 && !run.is_full ? 0 : run.gradient * own / rates.memory;
  // Micro-batches after the first read float32 gradients and write them again.
  const double sums = 8 * (steps - 1) * run.divided * (run.is_full ? run.gradient_share : 1);
  time.memory_s = (steps * work.moved_bytes + sums) / rates.memory + update_s + norm_s;
  if (run.ranks > 1) add_exchange(run, means_stay, update_s, time);
  return time;
}

PlannedLevel plan_level(const Run& run, const std::string& name, int64_t blocks) {
  PlannedLevel level;
  level.recompute = name;
  level.blocks = blocks;
  const KeptBlocks kept = run.kept(recompute_by_name(name));
  plan_memory(run, kept, level);
  level.time = plan_time(run, kept, level.means_stay);
  return level;
}

// The fewest blocks of the level that must be recomputed.
std::optional<PlannedLevel> fewest_blocks(Run run, const std::string& name) {
  const int64_t all = run.recomputed;
  for (run.recomputed = 1; run.recomputed < all; ++run.recomputed) {
    PlannedLevel level = plan_level(run, name, run.recomputed);
    if (level.fit == Fit::kYes) return level;
  }
  return std::nullopt;
}

bool is_better(const PlannedLevel& a, const PlannedLevel& b) {
  if (a.fit != b.fit && (a.fit == Fit::kNo || b.fit == Fit::kNo)) return a.fit > b.fit;
  if (a.time && b.time && a.time->total_s() != b.time->total_s())
    return a.time->total_s() < b.time->total_s();
  return false;  // levels are in the order of what they cost
}

}  // namespace

const PlannedLevel& Plan::level(const std::string& recompute) const {
  const auto found = std::ranges::find(levels, recompute, &PlannedLevel::recompute);
  require(found != levels.end(),
          "[plan] expected a level of recomputation that makes a difference, ", "got ", recompute);
  return *found;
}

Plan plan_run(const Config& config, int64_t ranks, const PlanDevice& device) {
  require(ranks >= 1 && ranks <= 1 << 20, "[plan] expected 1 to 1,048,576 ranks, got ", ranks);
  require(config.train.precision != "fp16",
          "[plan] expected train.precision fp32 or bf16, whose memory has formulas, got fp16");
  check_config(config);
  check_device(config, device.is_gpu);
  require(config.train.bf16_products == "exact" || !device.rates ||
              device.rates->products_of_8_bits > 0,
          "[plan] expected a GPU of compute capability 8.9 or higher for train.bf16_products fp8, ",
          "got one without products of 8 bits");
  check_processes(config, ranks);
  const Run run = make_run(config, ranks, device);
  const TrainConfig& train = run.config.train;
  Plan plan;
  plan.model = run.model();
  plan.parameters = run.divided + run.small;
  plan.tokens =
      static_cast<double>(train.batch_size * train.accumulation_steps * plan.model.context_length);
  plan.step_flops = static_cast<double>(train.accumulation_steps) *
                    step_flops(plan.model, train.batch_size, plan.model.context_length);
  for (const std::string& name : recompute_names()) {
    const Recompute recompute = recompute_by_name(name);
    const bool is_fused = device.is_gpu && train.precision == "bf16";
    if (!is_fused && (recompute == Recompute::kNorms || recompute == Recompute::kInner)) continue;
    if (name == train.recompute) plan.chosen = plan.levels.size();
    plan.levels.push_back(
        plan_level(run, name, recompute == Recompute::kNone ? 0 : train.recompute_blocks));
  }
  auto best = std::ranges::min_element(plan.levels, is_better);
  std::optional<PlannedLevel> some = *best;
  for (const PlannedLevel& level : plan.levels) {
    if (level.recompute == "none" || !level.time || level.fit == Fit::kNo) continue;
    const auto fewer = fewest_blocks(run, level.recompute);
    if (fewer && is_better(*fewer, *some)) some = fewer;
  }
  if (is_better(*some, *best)) {
    plan.levels.push_back(*some);
    best = plan.levels.end() - 1;
  }
  if (best->fit != Fit::kNo) plan.recommended = best - plan.levels.begin();
  return plan;
}

}  // namespace flashstep
