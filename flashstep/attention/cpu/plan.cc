#include "flashstep/attention/cpu/plan.h"

#include "flashstep/base/text.h"

namespace flashstep::attention_cpu {
namespace {

// Enough tasks that the last ones to end do not matter, on as many as 16 threads.
constexpr int64_t kTasksWanted = 32;
// Packed keys and values, or partial gradients, of a wave of heads, unless few tasks need more.
// Above 32 MiB malloc maps fresh pages at every call, which cost more than they hold.
constexpr int64_t kPackedBytes = int64_t{16} << 20;
constexpr int64_t kPartialBytes = int64_t{24} << 20;
// The most that the partial gradients of one long head may take.
constexpr int64_t kMostPartialBytes = int64_t{512} << 20;
// One more array of grad_q, written and added up, costs as much as 10 keys of every query: 4 %.
constexpr int64_t kChunkKeys = 256;
// But a short head is cut in so many chunks all the same.
constexpr int64_t kFewChunks = 8;

// Equal tiles of at most `most` rows, a multiple of `unit`.
int equal_tile(int64_t rows, int64_t most, int64_t unit) {
  const int64_t tiles = ceil_div(rows, std::max(most, unit));
  return static_cast<int>(round_up(ceil_div(rows, tiles), unit));
}

// Hands out consecutive arrays, each beginning on a cache line.
class Offsets {
 public:
  int64_t take(int64_t words) {
    const int64_t begin = end_;
    end_ += round_up(words, 16);  // 16 words of 4 bytes: a cache line
    return begin;
  }
  // The whole, and a line more: the arrays of two workers share none, nor a power of two.
  int64_t total() const { return end_ + 16; }

 private:
  int64_t end_ = 0;
};

int elements_per_word(const Problem& problem, const Machine& machine) {
  return machine.bf16_dot && problem.element == attention_kernel::Element::kBfloat16 ? 2 : 1;
}

int depth_of(const Problem& problem, int elements_per_word) {
  return static_cast<int>(round_up(problem.head_dim, kDepthUnit * elements_per_word));
}

}  // namespace

ForwardPlan plan_forward(const Problem& problem, const Machine& machine) {
  ForwardPlan plan{};
  plan.elements_per_word = elements_per_word(problem, machine);
  plan.padded_dim = static_cast<int>(round_up(problem.head_dim, kMaxPanel));
  plan.depth = depth_of(problem, plan.elements_per_word);
  // A tile's keys and values stay in a quarter of the second-level cache while query rows pass by.
  const int64_t key_bytes = 2 * plan.padded_dim * 4 / plan.elements_per_word;
  const int64_t most_keys =
      std::clamp<int64_t>(machine.l2_bytes / 4 / key_bytes, kMaxPanel, kMaxTile);
  plan.key_tile = equal_tile(problem.m, most_keys / kMaxPanel * kMaxPanel, kMaxPanel);
  plan.key_tiles = ceil_div(problem.m, plan.key_tile);

  const int64_t rows = problem.batches * problem.heads * problem.n;
  const int64_t most_rows =
      std::clamp<int64_t>(rows / kTasksWanted, 2 * kMaxBlockRows, 8 * kMaxBlockRows);
  plan.query_tile = equal_tile(problem.n, most_rows / kMaxBlockRows * kMaxBlockRows, kMaxBlockRows);
  plan.query_tiles = ceil_div(problem.n, plan.query_tile);

  plan.key_words = static_cast<int64_t>(plan.key_tile) * plan.depth / plan.elements_per_word;
  plan.tile_words = plan.key_words +
                    static_cast<int64_t>(plan.key_tile) * plan.padded_dim / plan.elements_per_word;
  plan.head_words = plan.tile_words * plan.key_tiles;
  plan.heads_per_wave = std::clamp<int64_t>(kPackedBytes / (4 * plan.head_words), 1,
                                            problem.batches * problem.kv_heads);
  plan.shared = problem.heads / problem.kv_heads * plan.query_tiles > 1;
  if (!plan.shared) plan.heads_per_wave = problem.batches * problem.kv_heads;

  Offsets offsets;
  const int64_t query_rows = plan.query_tile + kMaxBlockRows;
  plan.queries = offsets.take(query_rows * kStride);
  plan.scores = offsets.take(kMaxBlockRows * kStride);
  plan.weights = offsets.take(kMaxBlockRows * kStride);
  plan.packing = offsets.take(16 * kStride);  // the rows of a vector
  plan.keys = offsets.take(plan.shared ? 0 : plan.tile_words);
  plan.out = offsets.take(query_rows * kStride);
  plan.top = offsets.take(query_rows);
  plan.weight_sum = offsets.take(query_rows * 16);  // a vector a row
  plan.factor = offsets.take(2 * kMaxPanel);
  plan.scratch_words = offsets.total();
  return plan;
}

BackwardPlan plan_backward(const Problem& problem, const Machine& machine) {
  BackwardPlan plan{};
  plan.elements_per_word = elements_per_word(problem, machine);
  plan.padded_dim = static_cast<int>(round_up(problem.head_dim, kMaxPanel));
  plan.depth = depth_of(problem, plan.elements_per_word);
  const int64_t kv_heads = problem.batches * problem.kv_heads;
  // Of T keys and T queries the cache holds K twice, V, grad_k, grad_v, Q twice, grad_out twice and
  // two tiles of scores: three quarters of the second level.
  int64_t most = 128;
  while (most > 32 &&
         (9 * most * plan.padded_dim + 2 * most * most) * 4 > machine.l2_bytes * 3 / 4) {
    most -= 16;
  }
  // Short sequences of few heads are cut finer, for tasks enough.
  const int64_t most_keys = std::clamp<int64_t>(kv_heads * problem.m / 8, 32, most);
  plan.key_tile = equal_tile(problem.m, most_keys / 16 * 16, 16);
  plan.query_tile = equal_tile(problem.n, most, 16);
  plan.key_tiles = ceil_div(problem.m, plan.key_tile);
  plan.query_tiles = ceil_div(problem.n, plan.query_tile);

  const int64_t group = problem.heads / problem.kv_heads;
  plan.grad_q_rows = group * plan.query_tiles * plan.query_tile;
  plan.grad_q_floats = plan.grad_q_rows * plan.padded_dim;
  const int64_t bytes = 4 * plan.grad_q_floats;
  const int64_t cheap = std::min(problem.m / kChunkKeys, kPartialBytes / bytes);
  const int64_t wanted =
      std::min({ceil_div(kTasksWanted, kv_heads), plan.key_tiles, std::max(kFewChunks, cheap),
                std::max<int64_t>(1, kMostPartialBytes / bytes)});
  plan.tiles_per_chunk = ceil_div(plan.key_tiles, wanted);
  plan.chunks = ceil_div(plan.key_tiles, plan.tiles_per_chunk);
  const int64_t wave =
      std::max(kPartialBytes / (plan.chunks * bytes), ceil_div(kTasksWanted, plan.chunks));
  plan.heads_per_wave = std::min(wave, kv_heads);

  Offsets offsets;
  const int64_t words = plan.elements_per_word;
  const int64_t key_panels = static_cast<int64_t>(plan.key_tile) * plan.padded_dim / words;
  const int64_t transposed = round_up(plan.key_tile, kMaxPanel) * plan.depth / words;
  const int64_t query_panels = static_cast<int64_t>(plan.query_tile) * plan.padded_dim / words;
  const int64_t query_rows = plan.query_tile + kMaxBlockRows,
                key_rows = plan.key_tile + kMaxBlockRows;
  plan.keys = offsets.take(key_panels);
  plan.keys_transposed = offsets.take(transposed);
  plan.values_transposed = offsets.take(transposed);
  plan.queries = offsets.take(query_rows * kStride);
  plan.queries_right = offsets.take(query_panels);
  plan.grads = offsets.take(query_rows * kStride);
  plan.grads_right = offsets.take(query_panels);
  plan.scores = offsets.take(query_rows * kStride);
  plan.weight_grads = offsets.take(query_rows * kStride);
  plan.rounded = offsets.take(query_rows * kStride);
  plan.grad_k = offsets.take(key_rows * plan.padded_dim);
  plan.grad_v = offsets.take(key_rows * plan.padded_dim);
  plan.logsumexp = offsets.take(query_rows);
  plan.delta = offsets.take(query_rows);
  plan.scratch_words = offsets.total();
  return plan;
}

std::string to_string(const ForwardPlan& plan) {
  return str("keys ", plan.key_tiles, " x ", plan.key_tile, ", queries ", plan.query_tiles, " x ",
             plan.query_tile, ", heads a wave ", plan.heads_per_wave, ", packed KiB a head ",
             plan.head_words * 4 / 1024, ", scratch KiB a worker ", plan.scratch_words * 4 / 1024);
}

std::string to_string(const BackwardPlan& plan) {
  return str("keys ", plan.key_tiles, " x ", plan.key_tile, " in ", plan.chunks,
             " chunks, queries ", plan.query_tiles, " x ", plan.query_tile, ", heads a wave ",
             plan.heads_per_wave, ", grad_q KiB a chunk ", plan.grad_q_floats * 4 / 1024,
             ", scratch KiB a worker ", plan.scratch_words * 4 / 1024);
}

}  // namespace flashstep::attention_cpu
