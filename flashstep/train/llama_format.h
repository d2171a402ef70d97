// Models as Hugging Face's transformers and what reads their models know them: the Transformer is
// their LlamaForCausalLM, with a window their MistralForCausalLM, under other names.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "flashstep/detail/model_config.h"
#include "flashstep/parallel/stored_tensors.h"
#include "flashstep/tokenizer.h"
#include "flashstep/train/stored_checkpoint.h"

namespace flashstep {

// The weights under Llama's names. Rotary embedding turns neighbours of a head here, rows 2 i and
// 2 i + 1 of the weights of queries and keys, and rows i and i + D / 2 there: these rows change
// places. UserError for tensors that are not `model`'s.
StoredTensors llama_tensors(StoredTensors tensors, const ModelConfig& model);

// config.json. `end` ends a document, and begins one where the tokenizer has no bos_token(); where
// it is no special token of the tokenizer's, the model has neither. `dtype` as torch names it,
// "float32".
std::string llama_config(const ModelConfig& model, const Tokenizer& tokenizer,
                         const std::string& end, const std::string& dtype);

// tokenizer_config.json, to lie beside tokenizer.json.
std::string llama_tokenizer_config(const ModelConfig& model, const Tokenizer& tokenizer,
                                   const std::string& end);

// The other way.

// The model that their config.json describes. UserError, naming `source` and the key, or the field
// of ModelConfig that it becomes, for what is malformed or the Transformer does not compute:
// another architecture, biases, positions scaled otherwise than Llama 3's, heads of a width of
// their own, quantized weights.
ModelConfig parse_llama_config(std::string_view json, const std::string& source);

// llama_tensors()'s inverse. UserError, naming the tensor, and `source`, for one that is missing,
// of another shape or not of floating point, or that the model has no place for. What follows from
// the others (a tied head, rotary frequencies of old files) is passed over.
StoredTensors transformer_tensors(StoredTensors tensors, const ModelConfig& model,
                                  const std::string& source);

struct LlamaModel {
  ModelConfig model;
  Tokenizer tokenizer;
  std::string document_end;             // the first text of eos_token_id; empty: there is none
  std::vector<std::string> other_ends;  // its others: what a chat's turn ends with
  TensorFiles weights;                  // the Transformer's, still in their files
  bool tie_was_undone = false;  // the config ties head and embedding, which differ in the files
};

// A model in `directory`: config.json, tokenizer.json, and model.safetensors or the files that
// model.safetensors.index.json names. UserError for what is missing or malformed.
LlamaModel open_llama(const std::filesystem::path& directory);

}  // namespace flashstep
