// The options of AdamW's parameter groups in a checkpoint, in the form of Python's save_checkpoint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

#include "flashstep/optim.h"

namespace flashstep {

struct SavedGroup {
  std::vector<std::string> parameters;                  // by name, each once
  std::shared_ptr<torch::optim::AdamWOptions> options;  // or MuonOptions
};

// UserError if they are another optimizer's: torch's Optimizer takes groups of any at any time.
const torch::optim::AdamWOptions& options_of(const torch::optim::OptimizerParamGroup& group);
// Null for a group that AdamW updates as such.
const MuonOptions* muon_options_of(const torch::optim::OptimizerParamGroup& group);

// The names of each group's parameters, those of the module alone; of one that stands in several
// groups, in the first.
std::vector<std::vector<std::string>> names_of_groups(const torch::optim::Optimizer& optimizer,
                                                      const torch::nn::Module& module);

// Of parameters that are not the module's only the options are written.
nlohmann::ordered_json write_groups(const torch::optim::Optimizer& optimizer,
                                    const torch::nn::Module& module);
std::vector<SavedGroup> parse_groups(const nlohmann::ordered_json& groups);

// UserError if there are more or fewer groups, one is Muon's that was not or the other way round,
// or a parameter is in another one. Some may have come or gone (frozen ones).
void check_groups(const std::vector<SavedGroup>& saved, const torch::optim::Optimizer& optimizer,
                  const torch::nn::Module& module);
// UserError if a parameter stands where another one's state was saved: LibTorch's optimizers know
// theirs by their places. How many there are is not compared.
void check_order(const std::vector<std::vector<std::string>>& saved,
                 const torch::optim::Optimizer& optimizer, const torch::nn::Module& module);
void set_options(const std::vector<SavedGroup>& saved, torch::optim::Optimizer& optimizer);

}  // namespace flashstep
