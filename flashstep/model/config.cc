#include <algorithm>

#include "flashstep/attention/implementation_names.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/model_config.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

struct NamedSize {
  const char* name;
  int64_t d_model, d_ff, num_layers, num_heads, vocab_size, context_length;
};

// CS336 assignment 2: the tables of 2025 and of 2026, and the 2026 leaderboard's model.
constexpr NamedSize kSizes[] = {
    {"small", 768, 3072, 12, 12, 10000, 512},  {"medium", 1024, 4096, 24, 16, 10000, 512},
    {"large", 1280, 5120, 36, 20, 10000, 512}, {"xl", 1600, 6400, 48, 25, 10000, 512},
    {"2.7B", 2560, 10240, 32, 32, 10000, 512}, {"xl26", 2560, 10240, 32, 32, 10000, 512},
    {"10B", 4608, 12288, 50, 36, 10000, 512},  {"8B", 4096, 11008, 34, 32, 151936, 32768},
};

void fill(int64_t& field, int64_t value) {
  if (field == 0) field = value;
}

}  // namespace

void RopeScaling::visit(FieldVisitor& v) {
  v.field("factor", factor, {1.0, 1e6}, "by which long wavelengths are stretched (1: not)");
  v.field("low_frequency_factor", low_frequency_factor, {1e-6, 1e6},
          "wavelengths above original_context divided by it are stretched wholly");
  v.field("high_frequency_factor", high_frequency_factor, {1e-6, 1e6},
          "wavelengths below original_context divided by it are not stretched");
  v.field("original_context", original_context, {1, int64_t{1} << 24},
          "longest sequence of the training before, in tokens");
}

void ModelConfig::visit(FieldVisitor& v) {
  constexpr Range<int64_t> kDimension = {0, 1 << 20};
  std::vector<std::string> sizes = model_size_names();
  sizes.emplace_back("");
  v.field("size", size, sizes, "a named size; the fields below override it where they are not 0");
  v.field("vocab_size", vocab_size, {0, int64_t{1} << 31},
          "tokens in the vocabulary (0: the tokenizer's)");
  v.field("context_length", context_length, {0, int64_t{1} << 24}, "longest sequence, in tokens");
  v.field("d_model", d_model, kDimension, "width of the residual stream");
  v.field("d_ff", d_ff, kDimension, "width inside the feed-forward network");
  v.field("num_layers", num_layers, {0, 10000}, "Transformer blocks");
  v.field("num_heads", num_heads, kDimension, "attention heads; d_model / num_heads must be even");
  v.field("num_kv_heads", num_kv_heads, kDimension,
          "heads of keys and values, each read by num_heads / num_kv_heads of the queries' (0: "
          "num_heads)");
  v.field("window", window, {0, int64_t{1} << 24},
          "keys that a query sees: the last ones up to its own (0: all)");
  v.field("document_end", document_end, {-1, int64_t{1} << 31},
          "token that ends a document; attention does not cross it (-1: it does; "
          "text.separate_documents sets it)");
  v.field("tie_embeddings", tie_embeddings, "one weight for the token embedding and the head");
  v.field("rope_theta", rope_theta, {1.0, 1e12}, "base of the rotary wavelengths");
  v.section("rope_scaling", rope_scaling,
            "Llama 3's stretching of rotary wavelengths, for sequences longer than trained on");
  v.field("norm_epsilon", norm_epsilon, {0.0, 1.0}, "added to the mean square in RMSNorm");
  // No choices: a run that was trained with a GPU's kernels can be read without them.
  static const std::string kAttentionHelp =
      "implementation of attention: " + join(attention_implementations());
  v.field("attention", attention, {}, kAttentionHelp.c_str());
}

std::vector<std::string> model_size_names() {
  std::vector<std::string> names;
  for (const auto& size : kSizes) names.emplace_back(size.name);
  return names;
}

ModelConfig named_model(const std::string& size) {
  for (const auto& s : kSizes) {
    if (size != s.name) continue;
    ModelConfig config;
    config.size = size;
    config.vocab_size = s.vocab_size;
    config.context_length = s.context_length;
    config.d_model = s.d_model;
    config.d_ff = s.d_ff;
    config.num_layers = s.num_layers;
    config.num_heads = s.num_heads;
    return config;
  }
  throw UserError(
      str("[model] expected size to be one of ", join(model_size_names()), ", got \"", size, "\""));
}

ModelConfig resolved(const ModelConfig& given) {
  ModelConfig config = given;
  if (!config.size.empty()) {
    const ModelConfig named = named_model(config.size);
    fill(config.vocab_size, named.vocab_size);
    fill(config.context_length, named.context_length);
    fill(config.d_model, named.d_model);
    fill(config.d_ff, named.d_ff);
    fill(config.num_layers, named.num_layers);
    fill(config.num_heads, named.num_heads);
  }
  std::vector<std::string> missing;  // all of them at once
  const auto positive = [&](const char* name, int64_t value) {
    if (value <= 0) missing.push_back(str(name, " ", value));
  };
  positive("vocab_size", config.vocab_size);
  positive("context_length", config.context_length);
  positive("d_model", config.d_model);
  positive("d_ff", config.d_ff);
  positive("num_layers", config.num_layers);
  positive("num_heads", config.num_heads);
  require(missing.empty(), "[model] expected numbers >= 1 (or a named size), got ", join(missing));
  require(config.d_model % config.num_heads == 0,
          "[model] expected d_model to be divisible by num_heads, got d_model ", config.d_model,
          " and num_heads ", config.num_heads);
  if (config.num_kv_heads == config.num_heads) config.num_kv_heads = 0;  // one way to say it
  require(config.num_kv_heads >= 0 && config.num_heads % config.kv_heads() == 0,
          "[model] expected num_heads to be divisible by num_kv_heads, got num_heads ",
          config.num_heads, " and num_kv_heads ", config.num_kv_heads);
  const RopeScaling& scaling = config.rope_scaling;
  require(scaling.low_frequency_factor < scaling.high_frequency_factor,
          "[model] expected rope_scaling.low_frequency_factor below high_frequency_factor, got ",
          scaling.low_frequency_factor, " and ", scaling.high_frequency_factor);
  require(config.window >= 0, "[model] expected window >= 0, got ", config.window);
  require(config.document_end >= -1 && config.document_end < config.vocab_size,
          "[model] expected document_end to be a token below vocab_size ", config.vocab_size,
          ", or -1, got ", config.document_end);
  require(config.head_dim() % 2 == 0,
          "[model] expected an even head_dim = d_model / num_heads (RoPE rotates pairs), got ",
          config.head_dim(), " = ", config.d_model, " / ", config.num_heads);
  return config;
}

Recompute recompute_of_others(Recompute recompute) {
  const bool is_more = recompute == Recompute::kInner || recompute == Recompute::kBlock;
  return is_more ? Recompute::kNorms : Recompute::kNone;
}

std::vector<std::string> recompute_names() { return {"none", "norms", "inner", "block"}; }

Recompute recompute_by_name(const std::string& name) {
  const std::vector<std::string> names = recompute_names();
  const auto found = std::find(names.begin(), names.end(), name);
  require(found != names.end(), "[model] expected recompute to be one of ", join(names), ", got \"",
          name, "\"");
  return static_cast<Recompute>(found - names.begin());
}

void check_float8_widths(const ModelConfig& config) {
  require(config.head_dim() % 8 == 0,
          "[model] expected a width of heads that is a multiple of 8 for ", "products of fp8, got ",
          config.head_dim());
  for (const int64_t width : {config.d_model, config.d_ff, config.kv_width()}) {
    require(width % 16 == 0, "[model] expected d_model, d_ff and the width of all keys, multiples ",
            "of 16, for products of fp8, got ", config.d_model, ", ", config.d_ff, " and ",
            config.kv_width());
  }
}

}  // namespace flashstep
