#include "flashstep/attention/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "flashstep/attention/cpu/forward.cc"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per instruction set

#include "flashstep/attention/cpu/bf16-inl.h"
#include "flashstep/attention/cpu/pack-inl.h"
#include "flashstep/attention/cpu/pass.h"
#include "flashstep/attention/cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashstep::attention_cpu {
namespace HWY_NAMESPACE {
namespace {

// A worker's arrays.
template <typename Word>
struct Scratch {
  Scratch(const ForwardPlan& plan, Word* words)
      : queries(words + plan.queries),
        weights(words + plan.weights),
        packing(words + plan.packing),
        keys(words + plan.keys),
        scores(floats(words + plan.scores)),
        out(floats(words + plan.out)),
        top(floats(words + plan.top)),
        weight_sum(floats(words + plan.weight_sum)),
        factor(floats(words + plan.factor)) {}
  static float* floats(Word* words) { return reinterpret_cast<float*>(words); }

  Word *queries, *weights, *packing, *keys;
  float *scores, *out, *top, *weight_sum, *factor;
};

// Packs one tile of keys and values of a head, counted over batches.
template <typename Dot, typename T>
HWY_INLINE void pack_keys(const ForwardPass& pass, int64_t head, int64_t tile,
                          typename Dot::Word* scratch, typename Dot::Word* out) {
  const auto& plan = pass.plan;
  const auto& problem = pass.problem;
  const int64_t batch = head / problem.kv_heads, kv_head = head % problem.kv_heads;
  const int64_t first = tile * plan.key_tile;
  const int rows = static_cast<int>(std::min<int64_t>(plan.key_tile, problem.m - first));
  const int dim = problem.head_dim;
  Dot::pack_transposed(rows_of<T>(pass.args.k, batch, kv_head, first, rows, dim),
                       plan.depth / Dot::kPerWord * kPanel, scratch, out);
  Dot::pack_right(rows_of<T>(pass.args.v, batch, kv_head, first, rows, dim), 1.0f,
                  plan.key_tile / Dot::kPerWord * kPanel, out + plan.key_words);
}

// Task: one tile of keys of one head of the wave.
template <typename Dot, typename T>
void pack_tile(const ForwardPass& pass, int64_t task, int worker) {
  using Word = typename Dot::Word;
  const int64_t head = task / pass.plan.key_tiles, tile = task % pass.plan.key_tiles;
  const Scratch<Word> scratch(pass.plan, pass.scratch_of<Word>(worker));
  pack_keys<Dot, T>(pass, pass.first_head + head, tile, scratch.packing,
                    pass.packed_tile<Word>(head, tile));
}

// Rows [row, row + rows) of the query tile attend to the keys of a packed tile that they see; the
// first of them sees `visible` of its `keys`.
template <typename Dot>
HWY_INLINE void attend_block(const ForwardPass& pass, const Scratch<typename Dot::Word>& scratch,
                             const typename Dot::Word* tile, int row, int rows, int keys,
                             Visible visible) {
  using Word = typename Dot::Word;
  const auto& plan = pass.plan;
  const int dim = pass.problem.head_dim;
  // From a whole panel on: keys before it no row sees.
  const int first = static_cast<int>(std::clamp<int64_t>(visible.begin, 0, keys)) / kPanel * kPanel;
  const int columns = static_cast<int>(std::min<int64_t>(keys, rows - 1 + visible.end)) - first;
  if (columns <= 0) return;
  visible = {visible.begin - first, visible.end - first};
  Product<Word> scores;
  scores.left = scratch.queries + row * kStride;
  scores.right = tile + first / kPanel * (plan.depth / Dot::kPerWord * kPanel);
  scores.panel_stride = plan.depth / Dot::kPerWord * kPanel;
  scores.out = scratch.scores;
  scores.out_stride = kStride;
  scores.rows = rows;
  scores.columns = columns;
  scores.depth = plan.depth;
  multiply<Dot, Side::kPlain, Hidden::kOutputs>(scores);

  const Running running = {scratch.top + row, scratch.weight_sum + row * kLanes};
  softmax_rows(scratch.scores, rows, columns, visible, pass.scale, running, scratch.factor);

  Product<Word> sums;
  sums.left = Dot::round_left(scratch.scores, rows, columns, scratch.weights);
  sums.right = tile + plan.key_words + first / Dot::kPerWord * kPanel;
  sums.panel_stride = plan.key_tile / Dot::kPerWord * kPanel;
  sums.out = scratch.out + row * kStride;
  sums.out_stride = kStride;
  sums.rows = rows;
  sums.columns = dim;
  sums.depth = columns;
  sums.update = Update::kScaleAndAdd;
  sums.factor = scratch.factor;
  multiply<Dot, Side::kPlain, Hidden::kOutputs>(sums);
}

template <typename T>
HWY_INLINE void write_rows(const ForwardPass& pass, int64_t batch, int64_t head, int64_t first,
                           int rows, const float* sums, const float* top, const float* weight_sum) {
  const auto& problem = pass.problem;
  const auto& s = pass.args.out.strides;
  T* out = static_cast<T*>(pass.args.out.data) + batch * s.batch + head * s.head + first * s.row;
  float* logsumexp = pass.args.logsumexp + (batch * problem.heads + head) * problem.n + first;
  for (int r = 0; r < rows; ++r) {
    const float sum = sum_of(load(weight_sum + r * kLanes));
    const float weight = sum == 0 ? NAN : sum;  // scores all -infinity have no softmax
    const bool fully_masked = visible_keys(problem, first + r).size() == 0;
    const auto factor = hn::Set(Floats(), fully_masked ? 0.0f : 1 / weight);
    for (int c = 0; c < problem.head_dim; c += kLanes) {
      store(hn::Mul(load(sums + r * kStride + c), factor), out + r * s.row + c,
            problem.head_dim - c);
    }
    logsumexp[r] = fully_masked ? -INFINITY : top[r] * pass.scale.natural + std::log(weight);
  }
}

// Task: one tile of queries of one head; later queries, which see more, first.
template <typename Dot, typename T>
void attend_tile(const ForwardPass& pass, int64_t task, int worker) {
  using Word = typename Dot::Word;
  const auto& plan = pass.plan;
  const auto& problem = pass.problem;
  const int64_t group = problem.heads / problem.kv_heads;
  const int64_t head = pass.first_head * group + task / plan.query_tiles;  // over batches
  const int64_t first = (plan.query_tiles - 1 - task % plan.query_tiles) * plan.query_tile;
  const int rows = static_cast<int>(std::min<int64_t>(plan.query_tile, problem.n - first));
  const int64_t batch = head / problem.heads;

  const Scratch<Word> scratch(plan, pass.scratch_of<Word>(worker));
  Dot::pack_left(
      rows_of<T>(pass.args.q, batch, head % problem.heads, first, rows, problem.head_dim),
      pass.scale.sign, scratch.queries);
  const int64_t padded = round_up(rows, kRowUnit);
  std::fill_n(scratch.top, padded, -FLT_MAX);
  std::fill_n(scratch.weight_sum, padded * kLanes, 0.0f);
  for (int64_t r = 0; r < padded; ++r)
    std::fill_n(scratch.out + r * kStride, plan.padded_dim, 0.0f);
  std::fill_n(scratch.factor, kMaxBlockRows, 1.0f);

  const Range seen = {visible_keys(problem, first).begin,
                      visible_keys(problem, first + rows - 1).end};
  const Range tiles = attention_kernel::tiles_of(seen, plan.key_tile);
  for (int64_t index = tiles.begin; index < tiles.end; ++index) {
    const int64_t key = index * plan.key_tile;
    if (!plan.shared) pack_keys<Dot, T>(pass, head / group, index, scratch.packing, scratch.keys);
    const Word* tile =
        plan.shared ? pass.packed_tile<Word>(head / group - pass.first_head, index) : scratch.keys;
    const int keys = static_cast<int>(std::min<int64_t>(plan.key_tile, problem.m - key));
    for (int row = 0; row < rows; row += kBlockRows) {
      attend_block<Dot>(pass, scratch, tile, row, std::min(kBlockRows, rows - row), keys,
                        visible_in_tile(problem, first + row, key));
    }
  }
  write_rows<T>(pass, batch, head % problem.heads, first, rows, scratch.out, scratch.top,
                scratch.weight_sum);
}

}  // namespace

void pack(const ForwardPass& pass, int64_t task, int worker) {
  with_operands(pass.problem.element, pass.plan.elements_per_word,
                [&](auto operands, auto element) HWY_ATTR {
                  pack_tile<decltype(operands), decltype(element)>(pass, task, worker);
                });
}

void attend(const ForwardPass& pass, int64_t task, int worker) {
  with_operands(pass.problem.element, pass.plan.elements_per_word,
                [&](auto operands, auto element) HWY_ATTR {
                  attend_tile<decltype(operands), decltype(element)>(pass, task, worker);
                });
}

}  // namespace HWY_NAMESPACE
}  // namespace flashstep::attention_cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashstep::attention_cpu {

HWY_EXPORT(pack);
HWY_EXPORT(attend);

void forward(const Forward& args, const Parallel& parallel) {
  const auto problem = attention_kernel::with_bounded_mask(args.problem);
  ForwardPass pass{args, problem, plan_forward(problem, this_machine()),
                   split_scale(problem.scale)};
  const int64_t heads = problem.batches * problem.kv_heads,
                group = problem.heads / problem.kv_heads;
  const auto scratch = allocate(parallel.workers * pass.plan.scratch_words);
  const auto packed =
      allocate(pass.plan.shared ? pass.plan.heads_per_wave * pass.plan.head_words : 0);
  pass.scratch = scratch.get();
  pass.packed = packed.get();
  for (pass.first_head = 0; pass.first_head < heads; pass.first_head += pass.plan.heads_per_wave) {
    const int64_t wave = std::min(pass.plan.heads_per_wave, heads - pass.first_head);
    if (pass.plan.shared) {
      parallel.run(wave * pass.plan.key_tiles, [&](int64_t task, int worker) {
        HWY_DYNAMIC_DISPATCH(pack)(pass, task, worker);
      });
    }
    parallel.run(wave * group * pass.plan.query_tiles, [&](int64_t task, int worker) {
      HWY_DYNAMIC_DISPATCH(attend)(pass, task, worker);
    });
  }
}

}  // namespace flashstep::attention_cpu
#endif  // HWY_ONCE
