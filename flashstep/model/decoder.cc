#include "flashstep/model/decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "flashstep/error.h"
#include "flashstep/model/cuda/decode.h"
#include "flashstep/ops/cuda_element.h"
#include "flashstep/ops/recorded_work.h"

namespace flashstep {
namespace {

using at::Tensor;
using model_cuda::AttendToken;
using model_cuda::RowProducts;
using ops_cuda::element_of;

// What sample() in generate.h draws, on the GPU. Returns (2) float64: the token, and the largest
// logit, which is NaN where one is.
Tensor drawn(const Tensor& logits, const GenerateOptions& options, const Tensor& uniform) {
  const auto result = [](const Tensor& token, const Tensor& largest) {
    return at::cat({token.view({1}).to(at::kDouble), largest.view({1}).to(at::kDouble)});
  };
  if (options.temperature == 0) {
    const auto [largest, token] = logits.max(0);
    return result(token, largest);
  }
  auto [values, ids] = logits.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  const int64_t kept = options.top_k > 0 ? std::min(options.top_k, values.size(0)) : values.size(0);
  const Tensor best = values.narrow(0, 0, 1);
  values = values.narrow(0, 0, kept).to(at::kDouble);
  const Tensor weights =
      at::where(values == best, 1.0, ((values - best) / options.temperature).exp());
  const Tensor sums = weights.cumsum(0);
  Tensor reach = sums.narrow(0, kept - 1, 1);
  if (options.top_p < 1) {
    const Tensor last = at::searchsorted(sums, reach * options.top_p).clamp_max(kept - 1);
    reach = sums.index_select(0, last);
  }
  const Tensor found = at::searchsorted(sums, uniform * reach, /*out_int32=*/false, /*right=*/true)
                           .clamp_max(kept - 1);
  return result(ids.index_select(0, found), best);
}

bool is_plain(const Tensor& weight, const Tensor& like) {
  return weight.device() == like.device() && weight.scalar_type() == like.scalar_type() &&
         weight.is_contiguous() && reinterpret_cast<uintptr_t>(weight.const_data_ptr()) % 16 == 0;
}

}  // namespace

bool Decoder::takes(Transformer& model) {
  const ModelConfig& config = model->config();
  const Tensor& head = model->lm_head->weight;
  const at::ScalarType type = head.scalar_type();
  const auto takes_width = [](int64_t width) {
    return width % 8 == 0 && width <= model_cuda::kWidestRow;
  };
  using Runner = Tensor (*)(std::span<const BlockCall>, Tensor);
  const Runner* const runner = model->block_runner().target<Runner>();
  if (!head.is_cuda() || (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf) ||
      !takes_width(config.d_model) || !takes_width(config.d_ff) || config.head_dim() % 8 != 0 ||
      config.head_dim() > model_cuda::kWidestHead || runner == nullptr ||
      *runner != run_blocks_in_order || !is_plain(model->token_embeddings->weight, head) ||
      !is_plain(head, head))
    return false;
  for (const TransformerBlock& block : model->layers) {
    for (const Linear& linear :
         {block->attn->q_proj, block->attn->k_proj, block->attn->v_proj, block->attn->output_proj,
          block->ffn->w1, block->ffn->w2, block->ffn->w3}) {
      if (!is_plain(linear->weight, head)) return false;
    }
  }
  return true;
}

struct Decoder::State {
  // What the host tells and is told, in pinned memory.
  struct Told {
    int64_t token, position;
    double uniform;
  };

  State(Transformer& model, KeyValueCache& cache, const GenerateOptions& options)
      : model(model), cache(cache), options(options), config(model->config()) {
    cache.check(config, /*batch=*/1);
    const Tensor& head = model->lm_head->weight;
    const auto floats = head.options().dtype(at::kFloat);
    x = at::empty({config.d_model}, floats);
    qkv = at::empty({config.d_model + 2 * config.kv_width()}, floats);
    attended = at::empty({config.d_model}, floats);
    gated = at::empty({config.d_ff}, floats);
    logits = at::empty({config.vocab_size}, floats);
    arrived = at::zeros({config.num_heads}, floats.dtype(at::kInt));
    told = at::zeros({3}, floats.dtype(at::kLong));
    told_on_host = at::zeros({3}, at::TensorOptions(at::kLong).pinned_memory(true));
    drawn_on_host = at::zeros({2}, at::TensorOptions(at::kDouble).pinned_memory(true));
    const auto norm = [&](const RmsNorm& module) {
      const Tensor weight = module->weight.detach().to(floats).contiguous();
      norms.push_back(is_plain(weight, weight) ? weight : weight.clone());
    };
    for (const TransformerBlock& block : model->layers) {
      norm(block->ln1);
      norm(block->ln2);
    }
    norm(model->ln_final);
    rotary = model->rotary_rows(0, config.context_length, head.device());
    multiprocessors = at::cuda::getDeviceProperties(head.get_device())->multiProcessorCount;
    partials = at::empty({attend_token_partials(attention(0))}, floats);
  }

  AttendToken attention(int64_t layer) {
    const LayerCache& of_layer = cache.layer(layer);
    return {.qkv = qkv.const_data_ptr<float>(),
            .cos = rotary.cos.const_data_ptr<float>(),
            .sin = rotary.sin.const_data_ptr<float>(),
            .keys = of_layer.keys.mutable_data_ptr(),
            .values = of_layer.values.mutable_data_ptr(),
            .type = element_of(of_layer.keys),
            .position = told.const_data_ptr<int64_t>() + 1,
            .out = attended.mutable_data_ptr<float>(),
            .partials = partials.defined() ? partials.mutable_data_ptr<float>() : nullptr,
            .arrived = reinterpret_cast<unsigned*>(arrived.mutable_data_ptr<int>()),
            .heads = config.num_heads,
            .kv_heads = config.kv_heads(),
            .head_dim = config.head_dim(),
            .capacity = of_layer.keys.size(2),
            .window = config.window,
            .multiprocessors = multiprocessors};
  }

  RowProducts products(std::initializer_list<const Linear*> linears, const Tensor& of,
                       const Tensor& y) const {
    RowProducts a{};
    size_t i = 0;
    for (const Linear* linear : linears) {
      a.weights[i] = (*linear)->weight.const_data_ptr();
      a.rows[i++] = (*linear)->weight.size(0);
    }
    a.type = element_of((*linears.begin())->get()->weight);
    a.width = of.size(0);
    a.x = of.const_data_ptr<float>();
    a.y = y.mutable_data_ptr<float>();
    a.multiprocessors = multiprocessors;
    return a;
  }
  RowProducts of_norm(RowProducts a, size_t norm) const {
    a.norm_weight = norms[norm].const_data_ptr<float>();
    a.epsilon = static_cast<float>(config.norm_epsilon);
    return a;
  }
  static RowProducts onto(RowProducts a) {
    a.added = a.y;
    return a;
  }

  // All of a token's work, on the current stream.
  void enqueue() {
    const c10::cuda::CUDAStream stream = at::cuda::getCurrentCUDAStream();
    const auto run = [&](auto kernel, const auto& arguments) {
      C10_CUDA_CHECK(kernel(arguments, stream));
    };
    C10_CUDA_CHECK(cudaMemcpyAsync(told.mutable_data_ptr(), told_on_host.const_data_ptr(),
                                   sizeof(Told), cudaMemcpyHostToDevice, stream));
    const Tensor& table = model->token_embeddings->weight;
    run(model_cuda::embed_token,
        model_cuda::EmbedToken{table.const_data_ptr(), element_of(table),
                               told.const_data_ptr<int64_t>(), x.mutable_data_ptr<float>(),
                               config.d_model});
    for (int64_t i = 0; i < config.num_layers; ++i) {
      const TransformerBlock& block = model->layers[i];
      const CausalSelfAttention& attn = block->attn;
      const SwigluNetwork& ffn = block->ffn;
      run(model_cuda::row_products,
          of_norm(products({&attn->q_proj, &attn->k_proj, &attn->v_proj}, x, qkv), 2 * i));
      run(model_cuda::attend_token, attention(i));
      run(model_cuda::row_products, onto(products({&attn->output_proj}, attended, x)));
      RowProducts gates = of_norm(products({&ffn->w1, &ffn->w3}, x, gated), 2 * i + 1);
      gates.is_gated = true;
      run(model_cuda::row_products, gates);
      run(model_cuda::row_products, onto(products({&ffn->w2}, gated, x)));
    }
    run(model_cuda::row_products,
        of_norm(products({&model->lm_head}, x, logits), norms.size() - 1));
    const Tensor uniform = told.narrow(0, 2, 1).view(at::kDouble);
    const Tensor result = drawn(logits, options, uniform);
    C10_CUDA_CHECK(cudaMemcpyAsync(drawn_on_host.mutable_data_ptr(), result.const_data_ptr(),
                                   result.nbytes(), cudaMemcpyDeviceToHost, stream));
  }

  Transformer& model;
  KeyValueCache& cache;
  const GenerateOptions& options;
  const ModelConfig& config;
  int multiprocessors;
  RotaryTables rotary;
  std::vector<Tensor> norms;  // weights, float32: ln1 and ln2 of every layer, ln_final
  Tensor x, qkv, attended, gated, logits, partials, arrived;
  Tensor told, told_on_host, drawn_on_host;
  bool has_run = false;
  std::optional<RecordedWork> graph;
};

Decoder::Decoder(Transformer& model, KeyValueCache& cache, const GenerateOptions& options)
    : state_(std::make_unique<State>(model, cache, options)) {}

Decoder::~Decoder() = default;

const Tensor& Decoder::logits() const { return state_->logits; }

int64_t Decoder::next(int64_t token, double uniform) {
  State& state = *state_;
  const at::NoGradGuard no_grad;
  const c10::cuda::CUDAGuard device(state.x.device());
  const int64_t position = state.cache.length();
  require(position < state.cache.layer(0).keys.size(2),
          "[generate] expected room in the key-value cache, got one that is full");
  require(token >= 0 && token < state.config.vocab_size, "[generate] expected token ids in [0, ",
          state.config.vocab_size, "), got ", token);
  int64_t* const told = state.told_on_host.mutable_data_ptr<int64_t>();
  told[0] = token;
  told[1] = position;
  told[2] = std::bit_cast<int64_t>(uniform);
  if (!state.has_run) {  // launched once: what kernels and allocators do at first is no graph's
    state.enqueue();
    state.has_run = true;
  } else {
    if (!state.graph) state.graph.emplace([&] { state.enqueue(); });
    state.graph->replay();
  }
  at::cuda::getCurrentCUDAStream().synchronize();
  for (int64_t i = 0; i < state.config.num_layers; ++i) state.cache.layer(i).length = position + 1;
  const auto* const drawn = state.drawn_on_host.const_data_ptr<double>();
  if (std::isnan(drawn[1])) {  // sample() says so
    const Tensor logits = state.logits.cpu();
    sample(std::span(logits.const_data_ptr<float>(), logits.numel()), state.options, uniform);
  }
  return static_cast<int64_t>(drawn[0]);
}

}  // namespace flashstep
