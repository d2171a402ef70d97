#include "flashstep/train/llama_format.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/model.h"
#include "flashstep/tokenizer/json_text.h"
#include "flashstep/train/module_tensors.h"

namespace flashstep {
namespace {

using Json = nlohmann::ordered_json;

const std::map<std::string, std::string> kOfTheModel = {
    {"token_embeddings.weight", "model.embed_tokens.weight"},
    {"ln_final.weight", "model.norm.weight"},
    {"lm_head.weight", "lm_head.weight"}};

const std::map<std::string, std::string> kOfABlock = {
    {"ln1.weight", "input_layernorm.weight"},
    {"attn.q_proj.weight", "self_attn.q_proj.weight"},
    {"attn.k_proj.weight", "self_attn.k_proj.weight"},
    {"attn.v_proj.weight", "self_attn.v_proj.weight"},
    {"attn.output_proj.weight", "self_attn.o_proj.weight"},
    {"ln2.weight", "post_attention_layernorm.weight"},
    {"ffn.w1.weight", "mlp.gate_proj.weight"},
    {"ffn.w3.weight", "mlp.up_proj.weight"},
    {"ffn.w2.weight", "mlp.down_proj.weight"}};

// Ours to Llama's.
std::map<std::string, std::string> llama_names(const ModelConfig& model) {
  std::map<std::string, std::string> names = kOfTheModel;
  if (model.tie_embeddings) names.erase("lm_head.weight");
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (const auto& [ours, theirs] : kOfABlock)
      names.emplace(str("layers.", layer, ".", ours), str("model.layers.", layer, ".", theirs));
  }
  return names;
}

// tensor (heads D, width), where of each head the even rows are to come first, then the odd ones
// (theirs), or the other way round.
StoredTensor with_rows_permuted(StoredTensor tensor, int64_t heads, bool to_theirs) {
  const int64_t head_dim = tensor.form.size(0) / heads, width = tensor.form.size(1);
  const int64_t of_a_head = head_dim * width;
  tensor.read = [=, read = tensor.read](int64_t begin, int64_t end) {
    const int64_t first = begin / of_a_head, behind = (end + of_a_head - 1) / of_a_head;
    const at::Tensor whole = read(first * of_a_head, behind * of_a_head);
    const int64_t half = head_dim / 2, outer = to_theirs ? half : 2;
    return whole.view({behind - first, outer, head_dim / outer, width})
        .transpose(1, 2)
        .reshape({-1})
        .slice(0, begin - first * of_a_head, end - first * of_a_head);
  };
  return tensor;
}

// Of queries and keys.
StoredTensor with_heads_permuted(StoredTensor tensor, const ModelConfig& model, bool to_theirs) {
  if (tensor.name.ends_with("q_proj.weight"))
    return with_rows_permuted(std::move(tensor), model.num_heads, to_theirs);
  if (tensor.name.ends_with("k_proj.weight"))
    return with_rows_permuted(std::move(tensor), model.kv_heads(), to_theirs);
  return tensor;
}

// Only a special token is one token wherever its text stands: transformers would add another to the
// vocabulary for what is not.
Json token_or_null(const Tokenizer& tokenizer, const std::string& end) {
  const auto id = end.empty() ? std::nullopt : tokenizer.token_id(end);
  return id && std::ranges::count(tokenizer.vocabulary().special_ids, *id) == 1 ? Json(*id)
                                                                                : Json();
}

}  // namespace

StoredTensors llama_tensors(StoredTensors tensors, const ModelConfig& model) {
  const auto names = llama_names(model);
  require(tensors.size() == names.size(), "[export] expected the ", names.size(),
          " tensors of a model of ", model.num_layers, " layers, got ", tensors.size());
  for (StoredTensor& tensor : tensors) {
    const auto found = names.find(tensor.name);
    require(found != names.end(), "[export] expected a tensor of the model, got \"", tensor.name,
            "\"");
    tensor = with_heads_permuted(std::move(tensor), model, /*to_theirs=*/true);
    tensor.name = found->second;
  }
  return tensors;
}

std::string llama_config(const ModelConfig& model, const Tokenizer& tokenizer,
                         const std::string& end, const std::string& dtype) {
  const Json token = token_or_null(tokenizer, end);
  const auto bos = tokenizer.vocabulary().bos_id;
  // Mistral's is Llama with a window.
  const bool is_mistral = model.window > 0;
  Json config = {
      {"architectures", Json::array({is_mistral ? "MistralForCausalLM" : "LlamaForCausalLM"})},
      {"model_type", is_mistral ? "mistral" : "llama"},
      {"vocab_size", model.vocab_size},
      {"max_position_embeddings", model.context_length},
      {"hidden_size", model.d_model},
      {"intermediate_size", model.d_ff},
      {"num_hidden_layers", model.num_layers},
      {"num_attention_heads", model.num_heads},
      {"num_key_value_heads", model.kv_heads()},
      {"head_dim", model.head_dim()},
      {"hidden_act", "silu"},
      {"rms_norm_eps", model.norm_epsilon},
      {"rope_theta", model.rope_theta},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"tie_word_embeddings", model.tie_embeddings},
      {"bos_token_id", bos ? Json(*bos) : token},
      {"eos_token_id", token},
      {"torch_dtype", dtype}};
  if (const RopeScaling& scaling = model.rope_scaling; scaling.factor != 1) {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", scaling.factor},
                              {"low_freq_factor", scaling.low_frequency_factor},
                              {"high_freq_factor", scaling.high_frequency_factor},
                              {"original_max_position_embeddings", scaling.original_context}};
  }
  if (is_mistral) {
    config["sliding_window"] = model.window;
    config["transformers_version"] = "5.24.0";  // without it, a warning of Mistral's old tokenizers
  }
  return config.dump(2) + "\n";
}

std::string llama_tokenizer_config(const ModelConfig& model, const Tokenizer& tokenizer,
                                   const std::string& end) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"model_max_length", model.context_length},
                 {"clean_up_tokenization_spaces", false}};
  if (!token_or_null(tokenizer, end).is_null()) config["bos_token"] = config["eos_token"] = end;
  if (tokenizer.vocabulary().bos_id) config["bos_token"] = tokenizer.bos_token();
  return config.dump(2) + "\n";
}

namespace {

using internal::member;
using internal::parse_json;
using ReadJson = nlohmann::json;

// What a key that is absent, or null, stands for. nullopt: that is refused.
struct Otherwise {
  std::optional<int64_t> absent, null;
};

int64_t whole_number(const ReadJson& config, const char* key, const Otherwise& otherwise,
                     const std::string& source) {
  const ReadJson& value = member(config, key);
  const auto other = config.contains(key) ? otherwise.null : otherwise.absent;
  if (value.is_null() && other) return *other;
  require(value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{1} << 31, "[", source,
          "] expected ", key, " to be a whole number of at most 2^31, got ", value.dump());
  return value.get<int64_t>();
}

double number(const ReadJson& config, const char* key, double otherwise,
              const std::string& source) {
  const ReadJson& value = member(config, key);
  if (value.is_null()) return otherwise;
  require(value.is_number(), "[", source, "] expected ", key, " to be a number, got ",
          value.dump());
  return value.get<double>();
}

// Only `computed`, or nothing, is what the Transformer computes.
void expect_value(const ReadJson& config, const char* key, const ReadJson& computed,
                  const std::string& source) {
  const ReadJson& value = member(config, key);
  require(value.is_null() || value == computed, "[", source, "] expected ", key, " to be ",
          computed.dump(), ", all that a Transformer of flashstep has, got ", value.dump());
}

RopeScaling rope_scaling(const ReadJson& rope, const std::string& source) {
  const ReadJson& type = member(rope, rope.contains("rope_type") ? "rope_type" : "type");
  if (type.is_null() || type == "default") return {};
  require(type == "llama3", "[", source, "] expected the rope_type default or llama3, got ",
          type.dump());
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"})
    require(member(rope, key).is_number(), "[", source, "] expected ", key,
            " of the rope_type llama3 to be a number, got ", member(rope, key).dump());
  return {rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"],
          whole_number(rope, "original_max_position_embeddings", {}, source)};
}

// Versions of transformers have how positions turn in one of two places, and the base in a third.
void read_rope(const ReadJson& config, const std::string& source, ModelConfig& model) {
  model.rope_theta = number(config, "rope_theta", 10000, source);
  expect_value(config, "partial_rotary_factor", 1.0, source);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const ReadJson& rope = member(config, key);
    if (rope.empty()) continue;  // null, too
    const bool is_flat = rope.is_object() && std::ranges::none_of(rope, [](const ReadJson& value) {
                           return value.is_structured();
                         });
    require(is_flat, "[", source, "] expected ", key, " to be an object of numbers and names, got ",
            rope.dump());
    model.rope_scaling = rope_scaling(rope, source);
    expect_value(rope, "partial_rotary_factor", 1.0, source);
    model.rope_theta = number(rope, "rope_theta", model.rope_theta, source);
    return;
  }
}

ModelConfig model_of(const ReadJson& config, const std::string& source) {
  const ReadJson& type = member(config, "model_type");
  require(type == "llama" || type == "mistral", "[", source,
          "] expected a model_type of llama or mistral, got ", type.dump());
  const bool is_mistral = type == "mistral";
  expect_value(config, "hidden_act", "silu", source);
  for (const char* key : {"attention_bias", "mlp_bias"}) expect_value(config, key, false, source);
  require(member(config, "quantization_config").is_null(), "[", source,
          "] expected weights that are not quantized, got a quantization_config");
  const auto whole = [&](const char* key, const Otherwise& otherwise = {}) {
    return whole_number(config, key, otherwise, source);
  };
  ModelConfig model;
  model.vocab_size = whole("vocab_size");
  model.d_model = whole("hidden_size");
  model.d_ff = whole("intermediate_size");
  model.num_layers = whole("num_hidden_layers");
  model.num_heads = whole("num_attention_heads");
  // Absent keys are the defaults of transformers' LlamaConfig and MistralConfig.
  model.num_kv_heads =
      whole("num_key_value_heads", {is_mistral ? 8 : model.num_heads, model.num_heads});
  model.context_length = whole("max_position_embeddings", {is_mistral ? 131'072 : 2048, {}});
  model.window = is_mistral ? whole("sliding_window", {4096, 0}) : 0;
  model.norm_epsilon = number(config, "rms_norm_eps", 1e-6, source);
  read_rope(config, source, model);
  const ReadJson& tied = member(config, "tie_word_embeddings");
  require(tied.is_null() || tied.is_boolean(), "[", source,
          "] expected tie_word_embeddings to be true or false, got ", tied.dump());
  model.tie_embeddings = tied == true;
  read_json(model, write_json(model), source);  // the ranges of its fields
  try {
    model = resolved(model);
  } catch (const UserError& error) {
    throw UserError(str("[", source, "] ", error.what()));
  }
  const int64_t head_dim = whole("head_dim", {model.head_dim(), model.head_dim()});
  require(head_dim == model.head_dim(), "[", source, "] expected head_dim to be ", model.head_dim(),
          ", hidden_size / num_attention_heads, got ", head_dim);
  return model;
}

// Where both are there, transformers takes the one file.
std::vector<std::filesystem::path> weight_files(const std::filesystem::path& directory) {
  const std::filesystem::path whole = directory / "model.safetensors",
                              index = directory / "model.safetensors.index.json";
  if (std::filesystem::exists(whole) || !std::filesystem::exists(index)) return {whole};
  const ReadJson json = parse_json(read_file(index), index.string());
  const ReadJson& map = member(json, "weight_map");
  require(map.is_object(), "[", index.string(), "] expected a weight_map, an object, got ",
          map.type_name());
  std::set<std::filesystem::path> files;
  for (const auto& [tensor, file] : map.items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    require(name.ends_with(".safetensors") && name.find('/') == std::string::npos, "[",
            index.string(),
            "] expected the name of a .safetensors file beside it for each tensor, ", "got ",
            file.dump(), " for ", json_spelling(tensor));
    files.insert(directory / name);
  }
  return {files.begin(), files.end()};
}

// The texts of eos_token_id, a number or several; 2 where it is absent. Empty: no special token.
std::vector<std::string> ends_of(const ReadJson& config, const Tokenizer& tokenizer) {
  const ReadJson given = config.value("eos_token_id", ReadJson(2U));
  const auto& special = tokenizer.vocabulary().special_ids;
  std::vector<std::string> ends;
  for (const ReadJson& end : given.is_array() ? given : ReadJson::array({given})) {
    const auto found = end.is_number_unsigned()
                           ? std::find(special.begin(), special.end(), end.get<uint64_t>())
                           : special.end();
    ends.push_back(found == special.end() ? "" : tokenizer.vocabulary().tokens[*found]);
  }
  return ends;
}

// Whether a file has a head that is not the embedding: transformers then tie nothing, whatever the
// config says.
bool has_head_of_its_own(const StoredTensors& tensors) {
  const auto named = [&](const char* name) {
    return std::ranges::find(tensors, name, &StoredTensor::name);
  };
  const auto head = named("lm_head.weight"), embedding = named("model.embed_tokens.weight");
  if (head == tensors.end() || embedding == tensors.end() ||
      head->form.sizes() != embedding->form.sizes())
    return false;
  constexpr int64_t kPiece = int64_t{1} << 24;
  const at::ScalarType wider =
      at::promote_types(head->form.scalar_type(), embedding->form.scalar_type());
  for (int64_t begin = 0; begin < head->form.numel(); begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, head->form.numel());
    if (!at::equal(head->read(begin, end).to(wider), embedding->read(begin, end).to(wider)))
      return true;
  }
  return false;
}

}  // namespace

ModelConfig parse_llama_config(std::string_view text, const std::string& source) {
  return model_of(parse_json(text, source), source);
}

StoredTensors transformer_tensors(StoredTensors tensors, const ModelConfig& model,
                                  const std::string& source) {
  std::erase_if(tensors, [&](const StoredTensor& tensor) {
    return tensor.name.ends_with("rotary_emb.inv_freq") ||
           (model.tie_embeddings && tensor.name == "lm_head.weight");
  });
  ModelConfig shapes = model;
  shapes.context_length = 1;  // no tables of positions
  const auto names = llama_names(model);
  std::map<std::string, std::string> ours;
  NamedTensors wanted =
      module_tensors(*Transformer(shapes, std::nullopt, at::TensorOptions(at::kMeta)));
  for (auto& [name, tensor] : wanted) {
    const std::string& theirs = names.at(name);
    ours.emplace(theirs, name);
    name = theirs;
  }
  check_weights(wanted, tensors, source);
  for (StoredTensor& tensor : tensors) {
    tensor = with_heads_permuted(std::move(tensor), model, /*to_theirs=*/false);
    tensor.name = ours.at(tensor.name);
  }
  return tensors;
}

LlamaModel open_llama(const std::filesystem::path& directory) {
  for (const char* name : {"config.json", "tokenizer.json"})
    require(std::filesystem::exists(directory / name),
            "[import] expected a model of Hugging Face's transformers, a directory with "
            "config.json, tokenizer.json and model.safetensors, got ",
            directory.string(), ", which has no ", name);
  const std::string source = (directory / "config.json").string();
  const ReadJson config = parse_json(read_file(source), source);
  ModelConfig model = model_of(config, source);
  Tokenizer tokenizer = Tokenizer::load(directory / "tokenizer.json");
  require(tokenizer.vocab_size() <= model.vocab_size, "[", source,
          "] expected a vocab_size of at least the tokenizer's ", tokenizer.vocab_size(), ", got ",
          model.vocab_size);
  TensorFiles weights = open_tensors(weight_files(directory));
  const bool was_tied = model.tie_embeddings;
  model.tie_embeddings = was_tied && !has_head_of_its_own(weights.tensors);
  weights.tensors = transformer_tensors(std::move(weights.tensors), model, directory.string());
  std::vector<std::string> ends = ends_of(config, tokenizer);
  std::string end = ends.empty() ? "" : ends.front();
  if (!ends.empty()) ends.erase(ends.begin());
  std::erase(ends, "");
  return {model,           std::move(tokenizer), std::move(end),
          std::move(ends), std::move(weights),   was_tied && !model.tie_embeddings};
}

}  // namespace flashstep
