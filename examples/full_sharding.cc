// Trains a module of your own whose parameters, gradients and optimizer's state are divided between
// several processes, and updates a block as soon as its gradients are there. Alone it is one
// process; several are started by
//   flashstep launch -n 2 -- ./example_full_sharding
//   torchrun --no-python --nproc-per-node 2 ./example_full_sharding
#include <cstdio>
#include <flashstep/flashstep.h>

struct Block : torch::nn::Module {
  torch::nn::Linear up{register_module("up", torch::nn::Linear(32, 128))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(128, 32))};
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::relu(up(x))); }
};

// Learns to add the numbers of its input. Blocks are called by flashstep::run, which makes their
// parameters whole for the call.
struct Net : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(8, 32))};
  torch::nn::ModuleList blocks{register_module("blocks", torch::nn::ModuleList())};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(32, 1))};
  Net() {
    for (int i = 0; i < 4; ++i) blocks->push_back(std::make_shared<Block>());
  }
  torch::Tensor forward(torch::Tensor x) {
    x = in(x);
    for (const auto& block : *blocks) x = flashstep::run(*block->as<Block>(), x);
    return out(x);
  }
};

int train_net() {
  const flashstep::Group group = flashstep::init();
  const auto net = std::make_shared<Net>();
  net->to(group.device());
  flashstep::FullyShardedDataParallel model(net, group);
  flashstep::AdamW optimizer(model.parameters(),
                             torch::optim::AdamWOptions(1e-3));  // of the shards
  model.step_in_backward(optimizer);  // without it: optimizer.step() and zero_grad() after backward
  torch::manual_seed(group.rank());   // other data on every rank
  double loss_value = 0;
  for (int step = 0; step < 300; ++step) {
    const torch::Tensor x = torch::rand({64, 8}, group.device());
    const torch::Tensor loss = torch::mse_loss(model(x), x.sum(1, /*keepdim=*/true));
    loss.backward();
    loss_value = loss.item<double>();
  }
  int64_t own = 0, all = 0;
  for (const torch::Tensor& shard : model.parameters()) own += shard.numel();
  for (const auto& [name, whole] : model.gather_full_parameters()) all += whole.numel();
  loss_value = group.all_reduce(loss_value, flashstep::Reduce::kMean);
  if (group.is_first())
    std::printf("loss on %d ranks: %.5f; rank 0 keeps %lld of %lld parameters\n",
                group.world_size(), loss_value, static_cast<long long>(own),
                static_cast<long long>(all));
  return loss_value < 0.05 ? 0 : 1;
}

int main() { return flashstep::run_main("full_sharding", train_net); }
