#include "flashstep/train/llama_format.h"

#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/error.h"

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
std::map<std::string, std::string> names_of(const ModelConfig& model) {
  std::map<std::string, std::string> names = kOfTheModel;
  if (model.tie_embeddings) names.erase("lm_head.weight");
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (const auto& [ours, theirs] : kOfABlock)
      names.emplace(str("layers.", layer, ".", ours), str("model.layers.", layer, ".", theirs));
  }
  return names;
}

// tensor (heads D, width): of each head the even rows first, then the odd ones.
StoredTensor even_rows_first(StoredTensor tensor, int64_t heads) {
  const int64_t head_dim = tensor.form.size(0) / heads, width = tensor.form.size(1);
  const int64_t of_a_head = head_dim * width;
  tensor.read = [=, read = tensor.read](int64_t begin, int64_t end) {
    const int64_t first = begin / of_a_head, behind = (end + of_a_head - 1) / of_a_head;
    const at::Tensor whole = read(first * of_a_head, behind * of_a_head);
    return whole.view({behind - first, head_dim / 2, 2, width})
        .transpose(1, 2)
        .reshape({-1})
        .slice(0, begin - first * of_a_head, end - first * of_a_head);
  };
  return tensor;
}

Json token_or_null(const Tokenizer& tokenizer, const std::string& end) {
  const auto id = end.empty() ? std::nullopt : tokenizer.token_id(end);
  return id ? Json(*id) : Json();
}

}  // namespace

StoredTensors llama_tensors(StoredTensors tensors, const ModelConfig& model) {
  const auto names = names_of(model);
  require(tensors.size() == names.size(), "[export] expected the ", names.size(),
          " tensors of a model of ", model.num_layers, " layers, got ", tensors.size());
  for (StoredTensor& tensor : tensors) {
    const auto found = names.find(tensor.name);
    require(found != names.end(), "[export] expected a tensor of the model, got \"", tensor.name,
            "\"");
    if (tensor.name.ends_with("q_proj.weight"))
      tensor = even_rows_first(std::move(tensor), model.num_heads);
    if (tensor.name.ends_with("k_proj.weight"))
      tensor = even_rows_first(std::move(tensor), model.kv_heads());
    tensor.name = found->second;
  }
  return tensors;
}

std::string llama_config(const ModelConfig& model, const Tokenizer& tokenizer,
                         const std::string& end, const std::string& dtype) {
  const Json token = token_or_null(tokenizer, end);
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
      {"bos_token_id", token},
      {"eos_token_id", token},
      {"torch_dtype", dtype}};
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
  return config.dump(2) + "\n";
}

}  // namespace flashstep
