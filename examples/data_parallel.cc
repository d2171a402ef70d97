// Trains a module of your own on several processes, with the optimizer's state divided between
// them. Alone it is one process; several are started by
//   flashstep launch -n 2 -- ./example_data_parallel
//   torchrun --no-python --nproc-per-node 2 ./example_data_parallel
#include <cstdio>
#include <flashstep/data_parallel.h>
#include <flashstep/error.h>
#include <flashstep/group.h>
#include <flashstep/sharded_optimizer.h>

#include <torch/torch.h>

// Learns to add the numbers of its input.
struct Net : torch::nn::Module {
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(8, 32))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(32, 1))};
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::relu(hidden(x))); }
};

int train_net() {
  flashstep::Group group(flashstep::read_environment());
  flashstep::DistributedDataParallel net(std::make_shared<Net>(), group);
  flashstep::ShardedOptimizer<torch::optim::AdamW> optimizer(
      net.parameters(), torch::optim::AdamWOptions(1e-2), group);
  torch::manual_seed(group.rank());  // other data on every rank
  double loss_value = 0;
  for (int step = 0; step < 300; ++step) {
    const torch::Tensor x = torch::rand({64, 8});
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(net.forward(x), x.sum(1, /*keepdim=*/true));
    loss.backward();
    net.finish_gradient_synchronization();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  loss_value = group.all_reduce(loss_value, flashstep::Reduce::kMean);
  if (group.is_first()) std::printf("loss on %d ranks: %.5f\n", group.world_size(), loss_value);
  return loss_value < 0.05 ? 0 : 1;
}

int main() { return flashstep::run_main("data_parallel", train_net); }
