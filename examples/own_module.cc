// Trains a module of your own: metrics, checkpoints, resuming and loss curve come with the loop.
// On several processes: flashstep launch -n 2 -- ./example_own_module
#include <flashstep/error.h>
#include <flashstep/group.h>
#include <flashstep/loop.h>
#include <flashstep/optim.h>

#include <torch/torch.h>

// Learns to add the numbers of its input.
struct Net : torch::nn::Module {
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(8, 32))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(32, 1))};
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::relu(hidden(x))); }
};

int train_net(const std::string& run_directory) {
  const flashstep::Group group = flashstep::init();
  Net net;
  const auto ranks = flashstep::data_parallelism(net, group);
  torch::manual_seed(1 + group.rank());  // a rank's own data
  flashstep::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
  flashstep::Job job{net, optimizer, [&](int64_t /*step*/, int64_t /*micro_step*/) {
                       const torch::Tensor x = torch::rand({64, 8});
                       return torch::mse_loss(net.forward(x), x.sum(1, /*keepdim=*/true));
                     }};
  job.parallel = ranks;
  job.learning_rate = [](int64_t t) {
    return flashstep::learning_rate_at({1e-2, 1e-4, 20, 300}, t);
  };
  flashstep::LoopOptions options;
  options.run_directory = run_directory;
  options.resume = true;  // goes on where an earlier call was stopped
  options.steps = 300;
  options.step.max_norm = 1;
  const flashstep::LoopResult result = flashstep::run(job, options);
  if (!group.is_first()) return 0;  // which has the losses
  std::printf("loss after %d steps: %.5f\n", static_cast<int>(result.steps), result.loss);
  return result.loss < 0.05 ? 0 : 1;
}

int main(int argc, char** argv) {
  // What goes wrong is said in a sentence, with the exit codes of the program flashstep.
  return flashstep::run_main("own_module",
                             [&] { return train_net(argc > 1 ? argv[1] : "own_module_run"); });
}
