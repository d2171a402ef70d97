// Trains a model of your own on GPUs, or on CPUs where there are none:
//   ./example_gpu_training
//   flashstep launch -n 2 -- ./example_gpu_training     (or torchrun, mpirun, srun)
// Stopped at any moment and started again, it goes on from its last checkpoint, bit for bit.
#include <cstdio>
#include <flashstep/flashstep.h>

// Learns to add the numbers of its input.
struct Net : torch::nn::Module {
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(8, 64))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(64, 1))};
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::relu(hidden(x))); }
};

// Other rows for every step, micro-batch and rank; the same ones when a step is taken again.
torch::Tensor batch(int64_t step, int64_t micro, const flashstep::Group& group) {
  torch::manual_seed(static_cast<uint64_t>((step * 4 + micro) * group.world_size() + group.rank()));
  return torch::rand({64, 8}).to(group.device());
}

int train() {
  constexpr int64_t kSteps = 300, kMicroBatches = 4;
  const flashstep::Group group = flashstep::init();
  torch::manual_seed(1);
  const auto net = std::make_shared<Net>();
  net->to(group.device());
  flashstep::DistributedDataParallel model(net, group);
  flashstep::ShardedAdamW optimizer(model, torch::optim::AdamWOptions(1e-2));

  const int64_t begin = flashstep::load_if_exists("checkpoints", model, optimizer);
  double loss_value = 0;
  for (int64_t step = begin; step < kSteps; ++step) {
    for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
      const torch::Tensor x = batch(step, micro, group);
      const auto no_sync = model.no_sync_if(micro + 1 < kMicroBatches);
      const flashstep::AutocastGuard bf16(group.device().type(), torch::kBFloat16);
      const torch::Tensor y = model(x).to(torch::kFloat);
      const torch::Tensor loss = torch::mse_loss(y, x.sum(1, /*keepdim=*/true)) / kMicroBatches;
      loss.backward();  // the last one ends with the means of all ranks
      if (step + 1 == kSteps) loss_value += loss.item<double>();
    }
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if ((step + 1) % 100 == 0) flashstep::save("checkpoints", model, optimizer, step + 1);
  }
  if (begin == kSteps) return 0;
  loss_value = group.all_reduce(loss_value, flashstep::Reduce::kMean);
  if (group.is_first()) std::printf("loss on %d ranks: %.5f\n", group.world_size(), loss_value);
  return loss_value < 0.05 ? 0 : 1;
}

int main() { return flashstep::run_main("gpu_training", train); }
