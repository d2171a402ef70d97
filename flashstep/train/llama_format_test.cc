// Hugging Face's LlamaForCausalLM, written out in tensor operations, computes the logits of the
// model whose weights it is given.
#include "flashstep/train/llama_format.h"

#include <filesystem>
#include <map>
#include <unistd.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/model.h"
#include "flashstep/train/module_tensors.h"

namespace flashstep {
namespace {

ModelConfig tiny() {
  ModelConfig config;
  config.vocab_size = 260;
  config.context_length = 20;
  config.d_model = 24;
  config.d_ff = 40;
  config.num_layers = 2;
  config.num_heads = 3;
  config.rope_theta = 500;
  config.norm_epsilon = 1e-3;
  return config;
}

// 256 bytes and <|end|>.
Tokenizer bytes_and_end() {
  const auto text = std::filesystem::temp_directory_path() / str("flashstep-llama-", ::getpid());
  write_file(text, "text");
  BpeOptions options;
  options.vocab_size = 257;
  options.special_tokens = {"<|end|>"};
  Tokenizer tokenizer = train_bpe({text}, options);
  std::filesystem::remove(text);
  return tokenizer;
}

std::map<std::string, at::Tensor> whole(const StoredTensors& tensors) {
  std::map<std::string, at::Tensor> by_name;
  for (const StoredTensor& tensor : tensors) by_name.emplace(tensor.name, tensor.whole());
  return by_name;
}

// Tokens (B, N) -> logits (B, N, V). `json` is config.json.
class Llama {
 public:
  Llama(const std::map<std::string, at::Tensor>& weights, const nlohmann::json& json)
      : weights_(weights), json_(json) {}

  at::Tensor forward(const at::Tensor& tokens) const {
    at::Tensor x = weight("model.embed_tokens").index_select(0, tokens.flatten());
    x = x.view({tokens.size(0), tokens.size(1), -1});
    for (int64_t layer = 0; layer < json_["num_hidden_layers"].get<int64_t>(); ++layer) {
      const std::string name = "model.layers." + std::to_string(layer) + ".";
      x = x + attention(norm(x, name + "input_layernorm"), name + "self_attn.");
      const at::Tensor y = norm(x, name + "post_attention_layernorm");
      const at::Tensor gate = at::silu(linear(y, name + "mlp.gate_proj"));
      x = x + linear(gate * linear(y, name + "mlp.up_proj"), name + "mlp.down_proj");
    }
    const bool is_tied = json_["tie_word_embeddings"];
    return linear(norm(x, "model.norm"), is_tied ? "model.embed_tokens" : "lm_head");
  }

 private:
  at::Tensor weight(const std::string& name) const { return weights_.at(name + ".weight"); }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    return at::linear(x, weight(name));
  }
  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    const double epsilon = json_["rms_norm_eps"];
    return weight(name) * x * at::rsqrt(x.square().mean(-1, true) + epsilon);
  }
  // One frequency after the other.
  static at::Tensor llama3(const at::Tensor& frequencies, const nlohmann::json& scaling) {
    const double factor = scaling["factor"], low = scaling["low_freq_factor"],
                 high = scaling["high_freq_factor"],
                 context = scaling["original_max_position_embeddings"];
    at::Tensor scaled = frequencies.clone();
    for (int64_t i = 0; i < scaled.numel(); ++i) {
      const double frequency = frequencies[i].item<double>(), wave = 2 * M_PI / frequency;
      if (wave < context / high) continue;
      const double share = wave > context / low ? 0 : (context / wave - low) / (high - low);
      scaled[i] = (1 - share) * frequency / factor + share * frequency;
    }
    return scaled;
  }
  // x (B, H, N, D): of each head its halves are turned against each other.
  at::Tensor turned(const at::Tensor& x) const {
    const int64_t d = x.size(-1);
    const double theta = json_["rope_theta"];
    at::Tensor frequencies = at::pow(theta, -at::arange(0, d, 2, at::kFloat) / d);
    if (json_.contains("rope_scaling")) frequencies = llama3(frequencies, json_["rope_scaling"]);
    const at::Tensor once = at::outer(at::arange(x.size(2), at::kFloat), frequencies);
    const at::Tensor angles = at::cat({once, once}, -1);
    const auto halves = x.chunk(2, -1);
    return x * angles.cos() + at::cat({-halves[1], halves[0]}, -1) * angles.sin();
  }
  at::Tensor attention(const at::Tensor& x, const std::string& name) const {
    const int64_t heads = json_["num_attention_heads"], d = json_["head_dim"];
    const int64_t kv_heads = json_["num_key_value_heads"];
    const auto heads_of = [&](const char* projection, int64_t count) {
      return linear(x, name + projection).view({x.size(0), x.size(1), count, d}).transpose(1, 2);
    };
    const auto repeated = [&](const at::Tensor& of_keys) {
      return of_keys.repeat_interleave(heads / kv_heads, 1);
    };
    // Mistral's: a key is seen from as many positions, its own the first.
    const int64_t n = x.size(1), window = json_.value("sliding_window", n);
    const at::Tensor behind = at::arange(n).unsqueeze(1) - at::arange(n);
    const at::Tensor y = at::scaled_dot_product_attention(
        turned(heads_of("q_proj", heads)), repeated(turned(heads_of("k_proj", kv_heads))),
        repeated(heads_of("v_proj", kv_heads)), behind.ge(0).logical_and(behind.lt(window)));
    return linear(y.transpose(1, 2).reshape(x.sizes()), name + "o_proj");
  }

  const std::map<std::string, at::Tensor>& weights_;
  const nlohmann::json& json_;
};

ModelConfig grouped_and_tied() {
  ModelConfig config = tiny();
  config.d_model = 32;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.tie_embeddings = true;
  return config;
}

ModelConfig windowed() {
  ModelConfig config = tiny();
  config.window = 5;
  return config;
}

ModelConfig scaled() {
  ModelConfig config = tiny();
  config.rope_scaling = {4, 1, 4, 12};  // of the four wavelengths two are kept, one is between
  return config;
}

class LlamaLogits : public ::testing::TestWithParam<ModelConfig> {};
INSTANTIATE_TEST_SUITE_P(Models, LlamaLogits,
                         ::testing::Values(tiny(), grouped_and_tied(), windowed(), scaled()));

TEST_P(LlamaLogits, AreTheModels) {
  const ModelConfig config = GetParam();
  Transformer model(config, 7);
  at::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) {  // norms are ones as they are made
    if (item.key().find("ln") != std::string::npos) item.value().uniform_(0.5, 2);
  }
  const auto weights = whole(llama_tensors(in_memory(module_tensors(*model)), config));
  const Tokenizer bytes = bytes_and_end();
  const auto json = nlohmann::json::parse(llama_config(config, bytes, "<|end|>", "float32"));
  const at::Tensor tokens = at::randint(260, {2, 20}, at::kLong);
  const at::Tensor ours = model->forward(tokens), theirs = Llama(weights, json).forward(tokens);
  EXPECT_TRUE(at::allclose(ours, theirs, 1e-4, 1e-4)) << (ours - theirs).abs().max();
}

// Weights are read 16 MiB at a time, wherever that cuts a head.
TEST(LlamaFormat, AnyPartIsThatOfTheWhole) {
  Transformer model(tiny(), 7);
  StoredTensors both = llama_tensors(in_memory(module_tensors(*model)), tiny());
  for (StoredTensor& tensor : transformer_tensors(both, tiny(), "x"))
    both.push_back(std::move(tensor));
  for (const StoredTensor& tensor : both) {
    const at::Tensor all = tensor.whole().flatten();
    for (int64_t begin = 0; begin < all.numel(); begin += 101) {
      const int64_t end = std::min(begin + 150, all.numel());
      EXPECT_TRUE(tensor.read(begin, end).equal(all.slice(0, begin, end))) << tensor.name;
    }
  }
}

TEST(LlamaFormat, NamesTheEndOfADocumentWhereItIsAToken) {
  const Tokenizer bytes = bytes_and_end();
  const auto config = [&](const std::string& end) {
    return nlohmann::json::parse(llama_config(tiny(), bytes, end, "bfloat16"));
  };
  EXPECT_EQ(config("<|end|>")["eos_token_id"], 256);
  EXPECT_EQ(config("<|end|>")["torch_dtype"], "bfloat16");
  EXPECT_EQ(config("<|end|>")["model_type"], "llama");
  EXPECT_EQ(nlohmann::json::parse(llama_config(windowed(), bytes, "", "float32"))["model_type"],
            "mistral");
  EXPECT_TRUE(config("\n\n")["eos_token_id"].is_null());
  EXPECT_TRUE(config("\n")["eos_token_id"].is_null());  // a byte's token is none wherever it stands
  EXPECT_TRUE(config("")["bos_token_id"].is_null());
  const auto tokens = nlohmann::json::parse(llama_tokenizer_config(tiny(), bytes, "<|end|>"));
  EXPECT_EQ(tokens["eos_token"], "<|end|>");
  EXPECT_FALSE(
      nlohmann::json::parse(llama_tokenizer_config(tiny(), bytes, "")).contains("eos_token"));
}

// What this writes, and what transformers writes in another form.
TEST_P(LlamaLogits, ComeBackAsTheModel) {
  const ModelConfig config = GetParam();
  const Transformer model(config, 7);
  const NamedTensors ours = module_tensors(*model);
  StoredTensors theirs = llama_tensors(in_memory(ours), config);
  const auto same = whole(transformer_tensors(theirs, config, "x"));
  ASSERT_EQ(same.size(), ours.size());
  for (const auto& [name, tensor] : ours) EXPECT_TRUE(same.at(name).equal(tensor)) << name;
  const std::string json = llama_config(config, bytes_and_end(), "<|end|>", "float32");
  const ModelConfig read = parse_llama_config(json, "x");
  EXPECT_EQ(write_json(read), write_json(resolved(config)));
  auto newer = nlohmann::json::parse(json);
  if (!newer.contains("rope_scaling")) newer["rope_scaling"]["rope_type"] = "default";
  newer["rope_scaling"]["rope_theta"] = newer["rope_theta"];
  newer["rope_parameters"] = {{"rope_theta", 3}};  // transformers takes the first of the two
  newer["head_dim"] = nullptr;
  newer.erase("rope_theta");
  newer.erase("hidden_act");
  EXPECT_EQ(write_json(parse_llama_config(newer.dump(), "x")), write_json(read));
  // What old files have beside the weights.
  theirs.push_back(in_memory("model.layers.0.self_attn.rotary_emb.inv_freq", at::ones({4})));
  if (config.tie_embeddings) theirs.push_back(in_memory("lm_head.weight", at::ones({4})));
  EXPECT_EQ(transformer_tensors(theirs, config, "x").size(), ours.size());
}

TEST(LlamaFormat, RefusesWhatTheTransformerDoesNotCompute) {
  const auto json = nlohmann::json::parse(llama_config(tiny(), bytes_and_end(), "", "float32"));
  const struct {
    const char *key, *value, *named;
  } kCases[] = {
      {"model_type", "\"qwen2\"", "got \"qwen2\""},
      {"model_type", "null", "model_type"},
      {"hidden_act", "\"gelu\"", "got \"gelu\""},
      {"attention_bias", "true", "attention_bias"},
      {"mlp_bias", "true", "mlp_bias"},
      {"rope_scaling", "{\"type\": \"linear\", \"factor\": 2}", "got \"linear\""},
      {"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 2}", "expected low_freq_factor"},
      {"rope_scaling", "{\"rope_type\": \"llama3\"}", "expected factor"},
      {"rope_scaling",
       "{\"rope_type\": \"llama3\", \"factor\": 0.5, \"low_freq_factor\": 1, \"high_freq_factor\": "
       "4, "
       "\"original_max_position_embeddings\": 8}",
       "rope_scaling.factor"},
      {"rope_scaling",
       "{\"rope_type\": \"llama3\", \"factor\": 2, \"low_freq_factor\": 4, \"high_freq_factor\": "
       "4, "
       "\"original_max_position_embeddings\": 8}",
       "low_frequency_factor below"},
      {"rope_parameters", "{\"rope_type\": \"yarn\"}", "got \"yarn\""},
      {"rope_parameters", "[1]", "rope_parameters"},
      {"rope_parameters", "{\"full_attention\": {\"rope_theta\": 1}}", "rope_parameters"},
      {"partial_rotary_factor", "0.5", "partial_rotary_factor"},
      {"head_dim", "16", "expected head_dim to be 8"},
      {"num_attention_heads", "5", "divisible by num_heads"},
      {"num_attention_heads", "0", "num_heads 0"},
      {"num_key_value_heads", "2", "num_kv_heads"},
      {"hidden_size", "null", "expected hidden_size"},
      {"hidden_size", "-24", "got -24"},
      {"hidden_size", "24.5", "got 24.5"},
      {"hidden_size", "18446744073709551615", "hidden_size"},
      {"num_hidden_layers", "2000000", "num_layers"},
      {"rms_norm_eps", "\"small\"", "rms_norm_eps"},
      {"rope_theta", "1e300", "rope_theta"},
      {"tie_word_embeddings", "1", "tie_word_embeddings"},
      {"quantization_config", "{\"bits\": 4}", "quantized"},
  };
  const auto complaint = [](const std::string& text) -> std::string {
    try {
      parse_llama_config(text, "a/config.json");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  for (const auto& change : kCases) {
    auto changed = json;
    changed[change.key] = nlohmann::json::parse(change.value);
    const std::string sentence = complaint(changed.dump());
    EXPECT_NE(sentence.find(change.named), std::string::npos) << change.value << ": " << sentence;
    EXPECT_NE(sentence.find("a/config.json"), std::string::npos) << sentence;
  }
  for (const std::string& text : {std::string(), std::string("[1]"), std::string("{"),
                                  std::string("{}"), std::string(100'000, '[')})
    EXPECT_NE(complaint(text), "") << text.substr(0, 9);
}

// Keys that are absent stand for the defaults of transformers' two classes.
TEST(LlamaFormat, KnowsDefaults) {
  auto json = nlohmann::json::parse(llama_config(windowed(), bytes_and_end(), "", "float32"));
  json["hidden_size"] = json["intermediate_size"] = 256;
  json["num_attention_heads"] = 16;
  for (const char* key : {"num_key_value_heads", "max_position_embeddings", "sliding_window",
                          "head_dim", "rms_norm_eps", "rope_theta", "tie_word_embeddings"})
    json.erase(key);
  const ModelConfig mistral = parse_llama_config(json.dump(), "x");
  EXPECT_EQ(mistral.num_kv_heads, 8);
  EXPECT_EQ(mistral.context_length, 131'072);
  EXPECT_EQ(mistral.window, 4096);
  json["num_key_value_heads"] = json["sliding_window"] = nullptr;
  EXPECT_EQ(parse_llama_config(json.dump(), "x").window, 0);
  EXPECT_EQ(parse_llama_config(json.dump(), "x").kv_heads(), 16);
  json["model_type"] = "llama";
  json["sliding_window"] = 99;  // not Llama's
  json.erase("num_key_value_heads");
  const ModelConfig llama = parse_llama_config(json.dump(), "x");
  EXPECT_EQ(llama.kv_heads(), 16);
  EXPECT_EQ(llama.context_length, 2048);
  EXPECT_EQ(llama.window, 0);
  EXPECT_EQ(llama.norm_epsilon, 1e-6);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_FALSE(llama.tie_embeddings);
}

TEST(LlamaFormat, RefusesOtherTensors) {
  const Transformer model(tiny(), 7);
  const StoredTensors whole = llama_tensors(in_memory(module_tensors(*model)), tiny());
  StoredTensors fewer = whole, more = whole, others = whole, integers = whole;
  fewer.pop_back();
  more.push_back(in_memory("model.layers.0.self_attn.q_proj.bias", at::ones({24})));
  others.front() = in_memory(others.front().name, at::ones({3, 3}));
  integers.front() = in_memory(integers.front().name, at::ones({260, 24}, at::kInt));
  for (const StoredTensors& tensors : {fewer, more, others, integers})
    EXPECT_THROW(transformer_tensors(tensors, tiny(), "x"), UserError);
}

TEST(LlamaFormat, RefusesOtherModels) {
  ModelConfig more = tiny();
  more.num_layers = 3;
  Transformer model(tiny(), 7);
  const auto tensors = in_memory(module_tensors(*model));
  EXPECT_THROW(llama_tensors(tensors, more), UserError);
  auto renamed = tensors;
  renamed.front().name = "another.weight";
  EXPECT_THROW(llama_tensors(renamed, tiny()), UserError);
}

}  // namespace
}  // namespace flashstep
