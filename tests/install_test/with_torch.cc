// Trains a module of its own on flashstep's batches: torch's headers and libraries come with
// flashstep::flashstep, without a word about them in the project.
#include <cstdint>
#include <flashstep/attention.h>
#include <flashstep/data.h>
#include <vector>

#include <torch/torch.h>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  flashstep::TokenFileWriter writer(argv[1], 1000);
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < 100; ++id) ids.push_back(id);
  writer.append(ids);
  writer.commit();
  const flashstep::TokenFile tokens(argv[1]);
  flashstep::BatchOptions options;
  options.batch_size = 2;
  options.context_length = 8;
  const flashstep::Batch batch = flashstep::BatchSampler(tokens, options).at(0);
  // In this file every token is its predecessor's successor.
  if (!torch::equal(batch.inputs + 1, batch.targets)) return 1;
  torch::nn::Embedding embedding(100, 4);
  embedding(batch.inputs).sum().backward();
  if (!embedding->weight.grad().defined()) return 1;

  const torch::Tensor q = torch::rand({1, 2, 8, 8});
  const auto attend = [&](const char* name) {
    return flashstep::attention(q, q, q, {.causal = true, .implementation = name});
  };
  return torch::allclose(attend("auto"), attend("naive"), 1e-4, 1e-5) ? 0 : 1;
}
