#include "flashstep/attention/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "flashstep/attention/cpu/backward.cc"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per instruction set

#include "flashstep/attention/cpu/bf16-inl.h"
#include "flashstep/attention/cpu/pass.h"
#include "flashstep/attention/cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashstep::attention_cpu {
namespace HWY_NAMESPACE {
namespace {

// Task: the two numbers kept of each query row, for one tile of queries of one head.
template <typename T>
void prepare_rows(const BackwardPass& pass, int64_t task) {
  const auto& problem = pass.problem;
  const auto& plan = pass.plan;
  const int64_t head = task / plan.query_tiles, first = task % plan.query_tiles * plan.query_tile;
  const int64_t batch = head / problem.heads;
  const int rows = static_cast<int>(std::min<int64_t>(plan.query_tile, problem.n - first));
  const auto out =
      rows_of<T>(pass.args.out, batch, head % problem.heads, first, rows, problem.head_dim);
  const auto grad =
      rows_of<T>(pass.args.grad_out, batch, head % problem.heads, first, rows, problem.head_dim);
  for (int r = 0; r < rows; ++r) {
    auto products = hn::Zero(Floats());
    for (int c = 0; c < problem.head_dim; c += kLanes) {
      products = hn::MulAdd(load(out.data + r * out.stride + c, problem.head_dim - c),
                            load(grad.data + r * grad.stride + c, problem.head_dim - c), products);
    }
    const int64_t row = head * problem.n + first + r;
    const float grad_logsumexp =
        pass.args.grad_logsumexp == nullptr ? 0.0f : pass.args.grad_logsumexp[row];
    const bool sees_nothing = pass.args.logsumexp[row] == -INFINITY;
    pass.logsumexp[row] = sees_nothing ? INFINITY : pass.args.logsumexp[row];
    pass.delta[row] = sees_nothing ? 0.0f : sum_of(products) - grad_logsumexp;
  }
}

// A worker's arrays.
template <typename Word>
struct Scratch {
  Scratch(const BackwardPlan& plan, Word* words)
      : keys(words + plan.keys),
        keys_transposed(words + plan.keys_transposed),
        values_transposed(words + plan.values_transposed),
        queries(words + plan.queries),
        queries_right(words + plan.queries_right),
        grads(words + plan.grads),
        grads_right(words + plan.grads_right),
        rounded(words + plan.rounded),
        scores(floats(words + plan.scores)),
        weight_grads(floats(words + plan.weight_grads)),
        grad_k(floats(words + plan.grad_k)),
        grad_v(floats(words + plan.grad_v)),
        logsumexp(floats(words + plan.logsumexp)),
        delta(floats(words + plan.delta)) {}
  static float* floats(Word* words) { return reinterpret_cast<float*>(words); }

  Word *keys, *keys_transposed, *values_transposed, *queries, *queries_right, *grads, *grads_right;
  Word* rounded;
  float *scores, *weight_grads, *grad_k, *grad_v, *logsumexp, *delta;
};

// Where a tile of queries meets a tile of keys.
struct Meeting {
  int64_t batch, head;  // of the queries
  int64_t query, key;   // the first ones
  int queries, keys;
  float* grad_q;  // partial sums of these rows
};

template <typename Dot, typename T>
HWY_INLINE void load_queries(const BackwardPass& pass, const Scratch<typename Dot::Word>& scratch,
                             const Meeting& at) {
  const auto& problem = pass.problem;
  const int64_t panel_stride = pass.plan.query_tile / Dot::kPerWord * kPanel;
  const auto q = rows_of<T>(pass.args.q, at.batch, at.head, at.query, at.queries, problem.head_dim);
  const auto grad =
      rows_of<T>(pass.args.grad_out, at.batch, at.head, at.query, at.queries, problem.head_dim);
  Dot::pack_left(q, pass.scale.sign, scratch.queries);
  Dot::pack_right(q, pass.scale.sign, panel_stride, scratch.queries_right);
  Dot::pack_left(grad, 1.0f, scratch.grads);
  Dot::pack_right(grad, 1.0f, panel_stride, scratch.grads_right);
  const int64_t row = (at.batch * problem.heads + at.head) * problem.n + at.query;
  std::copy_n(pass.logsumexp + row, at.queries, scratch.logsumexp);
  std::copy_n(pass.delta + row, at.queries, scratch.delta);
  // Rows of padding have weights exp(-infinity).
  std::fill_n(scratch.logsumexp + at.queries, kMaxBlockRows, INFINITY);
  std::fill_n(scratch.delta + at.queries, kMaxBlockRows, 0.0f);
}

// The five products of one tile of queries and one of keys.
template <typename Dot>
HWY_INLINE void multiply_tiles(const BackwardPass& pass, const Scratch<typename Dot::Word>& scratch,
                               const Meeting& at) {
  using Word = typename Dot::Word;
  const auto& plan = pass.plan;
  const int dim = pass.problem.head_dim;
  const Visible visible = visible_in_tile(pass.problem, at.query, at.key);
  // S = Q K^T and dP = dO V^T.
  Product<Word> product;
  product.panel_stride = plan.depth / Dot::kPerWord * kPanel;
  product.out_stride = kStride;
  product.rows = at.queries;
  product.columns = at.keys;
  product.depth = plan.depth;
  product.visible = visible;
  product.left = scratch.queries;
  product.right = scratch.keys_transposed;
  product.out = scratch.scores;
  multiply<Dot, Side::kPlain, Hidden::kOutputs>(product);
  product.left = scratch.grads;
  product.right = scratch.values_transposed;
  product.out = scratch.weight_grads;
  multiply<Dot, Side::kPlain, Hidden::kOutputs>(product);

  const int padded = static_cast<int>(round_up(at.queries, kRowUnit));
  score_gradients(scratch.scores, scratch.weight_grads, padded, at.keys, visible, pass.scale,
                  {scratch.logsumexp, scratch.delta});

  // dV += P^T dO and dK += dS^T Q.
  product.panel_stride = plan.query_tile / Dot::kPerWord * kPanel;
  product.out_stride = plan.padded_dim;
  product.rows = at.keys;
  product.columns = dim;
  product.depth = at.queries;
  product.update = Update::kAdd;
  product.left = Dot::round_transposed(scratch.scores, padded, at.keys, scratch.rounded);
  product.right = scratch.grads_right;
  product.out = scratch.grad_v;
  multiply<Dot, Side::kTransposed, Hidden::kDepthOfQueries>(product);
  product.left = Dot::round_transposed(scratch.weight_grads, padded, at.keys, scratch.rounded);
  product.right = scratch.queries_right;
  product.out = scratch.grad_k;
  multiply<Dot, Side::kTransposed, Hidden::kDepthOfQueries>(product);

  // dQ += dS K.
  product.panel_stride = plan.key_tile / Dot::kPerWord * kPanel;
  product.rows = at.queries;
  product.depth = at.keys;
  product.left = Dot::round_left(scratch.weight_grads, padded, at.keys, scratch.rounded);
  product.right = scratch.keys;
  product.out = at.grad_q;
  multiply<Dot, Side::kPlain, Hidden::kDepthOfKeys>(product);
}

template <typename T>
HWY_INLINE void write_rows(const float* from, int64_t from_stride, float factor, int rows,
                           int width, T* to, int64_t to_stride) {
  const auto scale = hn::Set(Floats(), factor);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < width; c += kLanes) {
      store(hn::Mul(load(from + r * from_stride + c), scale), to + r * to_stride + c, width - c);
    }
  }
}

// The tiles of queries that see one of the keys first_key..end_key - 1.
HWY_INLINE Range query_tiles(const BackwardPass& pass, int64_t first_key, int64_t end_key) {
  const int64_t last_key = std::min(end_key, pass.problem.m) - 1;
  return attention_kernel::tiles_of(
      {seeing_queries(pass.problem, first_key).begin, seeing_queries(pass.problem, last_key).end},
      pass.plan.query_tile);
}

// Those that the sums of a chunk reach.
HWY_INLINE Range tiles_of_chunk(const BackwardPass& pass, int64_t chunk) {
  const int64_t keys = pass.plan.tiles_per_chunk * pass.plan.key_tile;
  return query_tiles(pass, chunk * keys, (chunk + 1) * keys);
}

// Task: one chunk of keys of one head of the wave; chunks of early keys, which more queries see,
// come first.
template <typename Dot, typename T>
void chunk_task(const BackwardPass& pass, int64_t task, int64_t heads, int worker) {
  using Word = typename Dot::Word;
  const auto& problem = pass.problem;
  const auto& plan = pass.plan;
  const int64_t group = problem.heads / problem.kv_heads;
  const int64_t head = task % heads, chunk = task / heads;
  const int64_t batch = (pass.first_head + head) / problem.kv_heads;
  const int64_t kv_head = (pass.first_head + head) % problem.kv_heads;
  const int dim = problem.head_dim;
  const Scratch<Word> scratch(plan, pass.scratch_of<Word>(worker));
  float* grad_q = pass.partial_grad_q(head, chunk);
  const int64_t head_rows = plan.query_tiles * plan.query_tile;
  const Range reached = tiles_of_chunk(pass, chunk);
  const int64_t tile_floats = static_cast<int64_t>(plan.query_tile) * plan.padded_dim;
  for (int64_t g = 0; g < group; ++g) {
    float* const of_head = grad_q + g * head_rows * plan.padded_dim;
    std::fill(of_head + reached.begin * tile_floats, of_head + reached.end * tile_floats, 0.0f);
  }
  const int64_t last_tile = std::min((chunk + 1) * plan.tiles_per_chunk, plan.key_tiles);
  for (int64_t tile = chunk * plan.tiles_per_chunk; tile < last_tile; ++tile) {
    const int64_t key = tile * plan.key_tile;
    const int keys = static_cast<int>(std::min<int64_t>(plan.key_tile, problem.m - key));
    const auto k = rows_of<T>(pass.args.k, batch, kv_head, key, keys, dim);
    const auto v = rows_of<T>(pass.args.v, batch, kv_head, key, keys, dim);
    Dot::pack_right(k, 1.0f, plan.key_tile / Dot::kPerWord * kPanel, scratch.keys);
    Dot::pack_transposed(k, plan.depth / Dot::kPerWord * kPanel, scratch.queries,
                         scratch.keys_transposed);
    Dot::pack_transposed(v, plan.depth / Dot::kPerWord * kPanel, scratch.queries,
                         scratch.values_transposed);
    const int64_t sums = round_up(keys, kRowUnit) * plan.padded_dim;
    std::fill_n(scratch.grad_k, sums, 0.0f);
    std::fill_n(scratch.grad_v, sums, 0.0f);
    const Range tiles = query_tiles(pass, key, key + keys);
    for (int64_t g = 0; g < group; ++g) {
      for (int64_t query_tile = tiles.begin; query_tile < tiles.end; ++query_tile) {
        const int64_t i = query_tile * plan.query_tile;
        const int queries = static_cast<int>(std::min<int64_t>(plan.query_tile, problem.n - i));
        const Meeting at = {batch,
                            kv_head * group + g,
                            i,
                            key,
                            queries,
                            keys,
                            grad_q + (g * head_rows + i) * plan.padded_dim};
        load_queries<Dot, T>(pass, scratch, at);
        multiply_tiles<Dot>(pass, scratch, at);
      }
    }
    const auto& ks = pass.args.grad_k.strides;
    const auto& vs = pass.args.grad_v.strides;
    write_rows(scratch.grad_k, plan.padded_dim, std::abs(problem.scale), keys, dim,
               static_cast<T*>(pass.args.grad_k.data) + batch * ks.batch + kv_head * ks.head +
                   key * ks.row,
               ks.row);
    write_rows(scratch.grad_v, plan.padded_dim, 1.0f, keys, dim,
               static_cast<T*>(pass.args.grad_v.data) + batch * vs.batch + kv_head * vs.head +
                   key * vs.row,
               vs.row);
  }
}

// Task: one tile of grad_q: its partial sums added up in the order of the chunks.
template <typename T>
void merge_tile(const BackwardPass& pass, int64_t task) {
  const auto& problem = pass.problem;
  const auto& plan = pass.plan;
  const int64_t group = problem.heads / problem.kv_heads;
  const int64_t wave_head = task / plan.query_tiles;  // among the wave's query heads
  const int64_t head = pass.first_head * group + wave_head;
  const int64_t first = task % plan.query_tiles * plan.query_tile;
  const int64_t rows = std::min<int64_t>(plan.query_tile, problem.n - first);
  const int64_t at =
      (wave_head % group * plan.query_tiles * plan.query_tile + first) * plan.padded_dim;
  float* sums = nullptr;  // in the first chunk's that reaches the tile
  for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
    const Range reached = tiles_of_chunk(pass, chunk);
    const int64_t tile = task % plan.query_tiles;
    if (tile < reached.begin || tile >= reached.end) continue;
    float* const more = pass.partial_grad_q(wave_head / group, chunk) + at;
    if (sums == nullptr) {
      sums = more;
      continue;
    }
    for (int64_t i = 0; i < rows * plan.padded_dim; i += kLanes) {
      store(hn::Add(load(sums + i), load(more + i)), sums + i);
    }
  }
  if (sums == nullptr) {  // queries that see no key
    sums = pass.partial_grad_q(wave_head / group, 0) + at;
    std::fill_n(sums, rows * plan.padded_dim, 0.0f);
  }
  const auto& s = pass.args.grad_q.strides;
  write_rows(sums, plan.padded_dim, problem.scale, static_cast<int>(rows), problem.head_dim,
             static_cast<T*>(pass.args.grad_q.data) + head / problem.heads * s.batch +
                 head % problem.heads * s.head + first * s.row,
             s.row);
}

}  // namespace

void prepare(const BackwardPass& pass, int64_t task) {
  with_operands(pass.problem.element, 1, [&](auto /*operands*/, auto element) HWY_ATTR {
    prepare_rows<decltype(element)>(pass, task);
  });
}

void chunk(const BackwardPass& pass, int64_t task, int64_t heads, int worker) {
  with_operands(pass.problem.element, pass.plan.elements_per_word,
                [&](auto operands, auto element) HWY_ATTR {
                  chunk_task<decltype(operands), decltype(element)>(pass, task, heads, worker);
                });
}

void merge(const BackwardPass& pass, int64_t task) {
  with_operands(pass.problem.element, 1, [&](auto /*operands*/, auto element) HWY_ATTR {
    merge_tile<decltype(element)>(pass, task);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace flashstep::attention_cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashstep::attention_cpu {

HWY_EXPORT(prepare);
HWY_EXPORT(chunk);
HWY_EXPORT(merge);

void backward(const Backward& args, const Parallel& parallel) {
  const auto problem = attention_kernel::with_bounded_mask(args.problem);
  BackwardPass pass{args, problem, plan_backward(problem, this_machine()),
                    split_scale(problem.scale)};
  const auto& plan = pass.plan;
  const int64_t kv_heads = problem.batches * problem.kv_heads;
  const int64_t heads = problem.batches * problem.heads, group = problem.heads / problem.kv_heads;
  const auto rows = allocate(2 * heads * problem.n);
  const auto partial = allocate(plan.heads_per_wave * plan.chunks * plan.grad_q_floats);
  const auto scratch = allocate(parallel.workers * plan.scratch_words);
  pass.logsumexp = rows.get();
  pass.delta = rows.get() + heads * problem.n;
  pass.grad_q = partial.get();
  pass.scratch = scratch.get();
  parallel.run(heads * plan.query_tiles, [&](int64_t task, int /*worker*/) {
    HWY_DYNAMIC_DISPATCH(prepare)(pass, task);
  });
  for (pass.first_head = 0; pass.first_head < kv_heads; pass.first_head += plan.heads_per_wave) {
    const int64_t wave = std::min(plan.heads_per_wave, kv_heads - pass.first_head);
    parallel.run(wave * plan.chunks, [&](int64_t task, int worker) {
      HWY_DYNAMIC_DISPATCH(chunk)(pass, task, wave, worker);
    });
    parallel.run(wave * group * plan.query_tiles, [&](int64_t task, int /*worker*/) {
      HWY_DYNAMIC_DISPATCH(merge)(pass, task);
    });
  }
}

}  // namespace flashstep::attention_cpu
#endif  // HWY_ONCE
