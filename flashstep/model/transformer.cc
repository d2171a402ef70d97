#include <algorithm>
#include <cmath>
#include <numbers>
#include <unordered_map>
#include <utility>

#include <ATen/autocast_mode.h>
#include <torch/nn/modules/container/modulelist.h>

#include "flashstep/error.h"
#include "flashstep/model.h"
#include "flashstep/model/init.h"
#include "flashstep/ops.h"
#include "flashstep/products/product.h"
#include "flashstep/profiling.h"

namespace flashstep {

at::Tensor run_blocks_in_order(std::span<const BlockCall> blocks, at::Tensor x) {
  for (const auto& block : blocks) x = block.forward(x);
  return x;
}

namespace {

void check_recompute(int64_t size, int64_t count) {
  require(size >= 1, "[model] expected groups of at least 1 block to compute again, got ", size);
  require(count >= 0, "[model] expected a number of blocks to compute again, or 0 for all, got ",
          count);
}

// How many of `blocks` are computed again.
int64_t recomputed(int64_t count, int64_t blocks) {
  return count == 0 ? blocks : std::min(count, blocks);
}

// By which a position turns the pairs of a head.
at::Tensor frequencies_of(const ModelConfig& config) {
  const at::Tensor frequencies = rotary_frequencies(config.head_dim(), config.rope_theta);
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.factor == 1) return frequencies;
  constexpr double kTurn = 2 * std::numbers::pi;
  const at::Tensor turns = frequencies * (static_cast<double>(scaling.original_context) / kTurn);
  const at::Tensor kept = ((turns - scaling.low_frequency_factor) /
                           (scaling.high_frequency_factor - scaling.low_frequency_factor))
                              .clamp(0, 1);
  return frequencies * ((1 - kept) / scaling.factor + kept);
}

}  // namespace

BlockRunner recompute_blocks(int64_t size, BlockRunner runner, int64_t count) {
  check_recompute(size, count);
  return [size, count, runner = std::move(runner)](std::span<const BlockCall> blocks,
                                                   at::Tensor x) {
    const auto end = static_cast<size_t>(recomputed(count, static_cast<int64_t>(blocks.size())));
    for (size_t begin = 0; begin < end; begin += size) {
      const auto part = blocks.subspan(begin, std::min<size_t>(size, end - begin));
      const auto run = [runner, group = std::vector<BlockCall>(part.begin(), part.end())](
                           const at::Tensor& input) { return runner(group, input); };
      x = recompute(run, x, {.same_random_numbers = false});  // blocks draw none
    }
    return end < blocks.size() ? runner(blocks.subspan(end), x) : x;
  };
}

KeyValueCache::KeyValueCache(const ModelConfig& config, int64_t batch, int64_t capacity,
                             const torch::TensorOptions& options) {
  require(capacity >= 1 && capacity <= config.context_length,
          "[model] expected a key-value cache of 1 to context_length = ", config.context_length,
          " positions, got ", capacity);
  const std::vector<int64_t> shape = {batch, config.kv_heads(), capacity, config.head_dim()};
  for (int64_t i = 0; i < config.num_layers; ++i) {
    layers_.push_back({torch::empty(shape, options), torch::empty(shape, options), 0});
  }
}

void KeyValueCache::truncate(int64_t length) {
  for (auto& layer : layers_) layer.length = std::min(layer.length, length);
}

void KeyValueCache::check(const ModelConfig& config, int64_t batch) const {
  const auto shape = layers_.empty() ? std::vector<int64_t>(4) : layers_.front().keys.sizes().vec();
  require(static_cast<int64_t>(layers_.size()) == config.num_layers &&
              shape[1] == config.kv_heads() && shape[3] == config.head_dim(),
          "[model] expected a key-value cache of ", config.num_layers, " layers, ",
          config.kv_heads(), " heads and head_dim ", config.head_dim(), ", got one of ",
          layers_.size(), ", ", shape[1], " and ", shape[3]);
  require(shape[0] == batch, "[model] expected tokens of B = ", shape[0],
          " sequences as the cache has, got ", batch);
}

TransformerImpl::TransformerImpl(const ModelConfig& config, std::optional<uint64_t> seed,
                                 const torch::TensorOptions& options)
    : config_(resolved(config)) {
  token_embeddings =
      register_module("token_embeddings", Embedding(config_.vocab_size, config_.d_model, options));
  torch::nn::ModuleList blocks;
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    layers.emplace_back(config_, options);
    blocks->push_back(layers.back());
  }
  register_module("layers", blocks);
  ln_final = register_module("ln_final", RmsNorm(config_.d_model, config_.norm_epsilon, options));
  lm_head = register_module("lm_head", config_.tie_embeddings
                                           ? Linear(token_embeddings->weight)
                                           : Linear(config_.d_model, config_.vocab_size, options));
  rotary_ = rotary_tables(config_.context_length, frequencies_of(config_));
  if (seed) initialize(*seed);
}

void TransformerImpl::initialize(uint64_t seed) {
  initialize([seed](const at::Tensor& parameter, double standard_deviation, double bound,
                    const std::string& name) {
    fill_truncated_normal(parameter, standard_deviation, bound, seed, name);
  });
}

void TransformerImpl::initialize(const ParameterFill& fill) {
  draw(fill);
  const at::NoGradGuard no_grad;
  for (const auto& module : modules(/*include_self=*/false)) {
    if (const auto* norm = module->as<RmsNormImpl>()) norm->weight.fill_(1.0);
  }
}

void TransformerImpl::draw(const ParameterFill& fill) const {
  constexpr double kTruncation = 3.0;  // standard deviations, as the course's model has it
  const auto of_a_linear = [](const at::Tensor& weight) {
    return std::sqrt(2.0 / static_cast<double>(weight.size(0) + weight.size(1)));
  };
  for (const auto& module : named_modules("", /*include_self=*/false)) {
    const std::string name = module.key() + ".weight";
    if (const auto* linear = module.value()->as<LinearImpl>()) {
      const bool is_tied = linear->weight.is_same(token_embeddings->weight);
      if (!is_tied) fill(linear->weight, of_a_linear(linear->weight), kTruncation, name);
    } else if (const auto* embedding = module.value()->as<EmbeddingImpl>()) {
      const at::Tensor& weight = embedding->weight;
      fill(weight, config_.tie_embeddings ? of_a_linear(weight) : 1.0, kTruncation, name);
    }
  }
}

PartFill TransformerImpl::part_fill(uint64_t seed) const {
  struct Draw {
    double standard_deviation, bound;
  };
  std::unordered_map<std::string, Draw> draws;
  draw([&](const at::Tensor& /*parameter*/, double standard_deviation, double bound,
           const std::string& name) {
    draws[name] = {standard_deviation, bound};
  });
  return [seed, draws](const std::string& name, const at::Tensor& values, int64_t begin) {
    const auto found = draws.find(name);
    if (found == draws.end()) {
      values.fill_(1.0);  // a norm
    } else {
      fill_part_truncated_normal(values, begin, found->second.standard_deviation,
                                 found->second.bound, seed, name);
    }
  };
}

void TransformerImpl::set_recompute(Recompute what, int64_t group, int64_t count) {
  check_recompute(group, count);
  recompute_ = what;
  recompute_group_ = group;
  recompute_count_ = count;
}

RotaryTables TransformerImpl::rotary_rows(int64_t begin, int64_t length, at::Device device) {
  const std::scoped_lock lock(rotary_mutex_);
  if (rotary_.cos.device() != device) rotary_ = rotary_.to(device);
  return rotary_.slice(begin, length);
}

at::Tensor TransformerImpl::embed(const at::Tensor& tokens) {
  const ScopedRange range("embedding");
  const at::Tensor x = token_embeddings->forward(tokens);
  const auto device = tokens.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return x;
  const bool is_short =
      has_short_stream_ && at::autocast::get_autocast_dtype(device) == at::kBFloat16;
  if (is_short) return x.to(at::kBFloat16);
  return x.element_size() == 2 ? x.to(at::kFloat) : x;  // weights that were cast before
}

void TransformerImpl::set_float8_products(bool in_float8) {
  if (in_float8) {
    check_float8_widths(config_);
    const at::Device device = lm_head->weight.device();
    require(!device.is_cuda() || has_scaled_products(device),
            "[model] expected a GPU of compute capability 8.9 or higher for products of fp8, got ",
            device, " of an older one");
  }
  in_float8_ = in_float8;
}

at::Tensor TransformerImpl::head(const at::Tensor& hidden) {
  const ScopedRange range("head");
  return lm_head->forward(hidden);
}

at::Tensor TransformerImpl::hidden(const at::Tensor& tokens, KeyValueCache* cache) {
  require(tokens.dim() == 2 && tokens.scalar_type() == at::kLong,
          "[model] expected int64 tokens of shape (B, N), got ", tokens.sizes(), " of ",
          tokens.scalar_type());
  const int64_t begin = cache != nullptr ? cache->length() : 0;
  require(begin + tokens.size(1) <= config_.context_length,
          "[model] expected at most context_length = ", config_.context_length, " tokens, got ",
          begin + tokens.size(1));
  if (cache != nullptr) cache->check(config_, tokens.size(0));
  const at::Tensor documents = config_.document_end >= 0 && cache == nullptr
                                   ? document_spans(tokens, config_.document_end)
                                   : at::Tensor();
  const auto rotary = rotary_rows(begin, tokens.size(1), tokens.device());
  std::vector<BlockCall> calls;
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const bool is_first = i < recomputed(recompute_count_, config_.num_layers);
    const Recompute again = !is_first                         ? recompute_of_others(recompute_)
                            : recompute_ == Recompute::kBlock ? Recompute::kNone  // by its group
                                                              : recompute_;
    const BlockContext context{rotary, cache != nullptr ? &cache->layer(i) : nullptr, again,
                               documents, in_float8_};
    const std::string name = str("layers.", i);
    calls.push_back(
        {i, name, layers[i].ptr(), [block = layers[i], context, name](const at::Tensor& x) mutable {
           const ScopedRange range(name.c_str());
           return block->forward(x, context);
         }});
  }
  const BlockRunner runner =
      recompute_ == Recompute::kBlock && cache == nullptr
          ? recompute_blocks(recompute_group_, block_runner_, recompute_count_)
          : block_runner_;
  try {
    return ln_final->forward(runner(calls, embed(tokens)));
  } catch (...) {
    if (cache != nullptr) cache->truncate(begin);  // some layers have these tokens, some not
    throw;
  }
}

at::Tensor TransformerImpl::forward(const at::Tensor& tokens) { return head(hidden(tokens)); }

at::Tensor TransformerImpl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return linear_cross_entropy(hidden(tokens), lm_head->weight, targets);
}

at::Tensor TransformerImpl::forward(const at::Tensor& tokens, KeyValueCache& cache) {
  const at::NoGradGuard no_grad;
  return head(hidden(tokens, &cache));
}

}  // namespace flashstep
