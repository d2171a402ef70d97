// A trained model as Hugging Face's transformers know it, and what reads their models: the same
// Transformer is their LlamaForCausalLM under other names.
#pragma once

#include <string>

#include "flashstep/detail/model_config.h"
#include "flashstep/parallel/stored_tensors.h"
#include "flashstep/tokenizer.h"

namespace flashstep {

// The weights under Llama's names. Rotary embedding turns neighbours of a head here, rows 2 i and
// 2 i + 1 of the weights of queries and keys, and rows i and i + D / 2 there: these rows change
// places. UserError for tensors that are not `model`'s.
StoredTensors llama_tensors(StoredTensors tensors, const ModelConfig& model);

// config.json. `end` ends a document, and begins one; where it is no token of the tokenizer's, the
// model has neither. `dtype` as torch names it, "float32".
std::string llama_config(const ModelConfig& model, const Tokenizer& tokenizer,
                         const std::string& end, const std::string& dtype);

// tokenizer_config.json, to lie beside tokenizer.json.
std::string llama_tokenizer_config(const ModelConfig& model, const Tokenizer& tokenizer,
                                   const std::string& end);

}  // namespace flashstep
