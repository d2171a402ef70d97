// The options of AdamW's parameter groups in a checkpoint, in the form of Python's save_checkpoint.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

namespace flashstep {

struct SavedGroup {
  std::vector<std::string> parameters;  // by name, each once
  torch::optim::AdamWOptions options;
};

// UserError if they are another optimizer's: torch's Optimizer takes groups of any at any time.
const torch::optim::AdamWOptions& options_of(const torch::optim::OptimizerParamGroup& group);

// Of parameters that are not the module's only the options are written.
nlohmann::ordered_json write_groups(const torch::optim::Optimizer& optimizer,
                                    const torch::nn::Module& module);
std::vector<SavedGroup> parse_groups(const nlohmann::ordered_json& groups);

// UserError if there are more or fewer groups, or a parameter is in another one. Some may have come
// or gone (frozen ones).
void check_groups(const std::vector<SavedGroup>& saved, const torch::optim::Optimizer& optimizer,
                  const torch::nn::Module& module);
void set_options(const std::vector<SavedGroup>& saved, torch::optim::Optimizer& optimizer);

}  // namespace flashstep
