// What the parity test needs of our model, on the command line:
//   model_tool V CONTEXT D_MODEL D_FF LAYERS HEADS init WEIGHTS.safetensors
//   model_tool V CONTEXT D_MODEL D_FF LAYERS HEADS logits WEIGHTS TOKENS LOGITS   (all safetensors)
#include <cstdio>
#include <string>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include "flashstep/checkpoint.h"
#include "flashstep/model.h"

int main(int argc, char** argv) {
  using namespace flashstep;
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 8) return 2;
  ModelConfig config;
  int64_t* const fields[] = {&config.vocab_size, &config.context_length, &config.d_model,
                             &config.d_ff,       &config.num_layers,     &config.num_heads};
  for (size_t i = 0; i < 6; ++i) *fields[i] = std::stoll(words[i]);
  Transformer model(config, 1);
  if (words[6] == "init") {
    NamedTensors weights;
    for (const auto& parameter : model->named_parameters()) {
      weights.emplace_back(parameter.key(), parameter.value().detach());
    }
    write_safetensors(words[7], weights);
    return 0;
  }
  const torch::NoGradGuard no_grad;
  const SafetensorsFile weights(words[7]);
  for (const auto& parameter : model->named_parameters()) {
    weights.copy_to(parameter.key(), parameter.value());
  }
  const auto tokens = SafetensorsFile(words[8]).tensor("tokens");
  write_safetensors(words[9], {{"logits", model->forward(tokens)}});
  return 0;
}
