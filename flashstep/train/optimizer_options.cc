#include "flashstep/train/optimizer_options.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>

#include "flashstep/error.h"
#include "flashstep/train/module_tensors.h"

namespace flashstep {

using OrderedJson = nlohmann::ordered_json;
using torch::optim::AdamWOptions;

const AdamWOptions& options_of(const torch::optim::OptimizerParamGroup& group) {
  const auto* options = dynamic_cast<const AdamWOptions*>(&group.options());
  require(options != nullptr,
          "[AdamW] expected AdamWOptions for each parameter group, got options of another class");
  return *options;
}

const MuonOptions* muon_options_of(const torch::optim::OptimizerParamGroup& group) {
  return dynamic_cast<const MuonOptions*>(&group.options());
}

MuonOptions::MuonOptions(const AdamWOptions& options) : AdamWOptions(options) {
  if (const auto* const muon = dynamic_cast<const MuonOptions*>(&options)) *this = *muon;
}

std::unique_ptr<torch::optim::OptimizerOptions> MuonOptions::clone() const {
  return std::make_unique<MuonOptions>(*this);
}

void MuonOptions::serialize(torch::serialize::OutputArchive& archive) const {
  AdamWOptions::serialize(archive);
  archive.write("momentum", momentum());
  archive.write("nesterov", nesterov());
  archive.write("iterations", iterations());
}

// No iterations: of an archive of AdamWOptions, as AdamW::load finds out.
void MuonOptions::serialize(torch::serialize::InputArchive& archive) {
  AdamWOptions::serialize(archive);
  iterations(0);
  c10::IValue value;
  if (archive.try_read("momentum", value)) momentum(value.toDouble());
  if (archive.try_read("nesterov", value)) nesterov(value.toBool());
  if (archive.try_read("iterations", value)) iterations(value.toInt());
}

bool operator==(const MuonOptions& a, const MuonOptions& b) {
  return static_cast<const AdamWOptions&>(a) == static_cast<const AdamWOptions&>(b) &&
         a.momentum() == b.momentum() && a.nesterov() == b.nesterov() &&
         a.iterations() == b.iterations();
}

std::vector<std::vector<std::string>> names_of_groups(const torch::optim::Optimizer& optimizer,
                                                      const torch::nn::Module& module) {
  std::unordered_map<void*, std::string> names;
  for (const auto& [name, tensor] : module_tensors(module))
    names.emplace(tensor.unsafeGetTensorImpl(), name);
  std::vector<std::vector<std::string>> groups;
  std::set<void*> seen;
  for (const auto& group : optimizer.param_groups()) {
    groups.emplace_back();
    for (const torch::Tensor& parameter : group.params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found != names.end() && seen.insert(found->first).second)
        groups.back().push_back(found->second);
    }
  }
  return groups;
}

OrderedJson write_groups(const torch::optim::Optimizer& optimizer,
                         const torch::nn::Module& module) {
  OrderedJson groups = OrderedJson::array();
  const auto names = names_of_groups(optimizer, module);
  for (size_t g = 0; g < names.size(); ++g) {
    const AdamWOptions& options = options_of(optimizer.param_groups()[g]);
    const auto [beta1, beta2] = options.betas();
    groups.push_back({{"lr", options.lr()},
                      {"betas", {{"tuple", {beta1, beta2}}}},
                      {"eps", options.eps()},
                      {"weight_decay", options.weight_decay()},
                      {"amsgrad", options.amsgrad()},
                      {"params", names[g]}});
    if (const MuonOptions* const muon = muon_options_of(optimizer.param_groups()[g])) {
      groups.back()["muon"] = {{"momentum", muon->momentum()},
                               {"nesterov", muon->nesterov()},
                               {"iterations", muon->iterations()}};
    }
  }
  return groups;
}

std::vector<SavedGroup> parse_groups(const OrderedJson& groups) {
  std::vector<SavedGroup> saved;
  for (const OrderedJson& group : groups) {
    require(!group.value("maximize", false),
            "[resume] expected an optimizer that minimizes, got one of Python's that maximizes");
    const OrderedJson& betas = group.at("betas").at("tuple");
    AdamWOptions options(group.at("lr").get<double>());
    options.betas({betas.at(0).get<double>(), betas.at(1).get<double>()})
        .eps(group.at("eps"))
        .weight_decay(group.at("weight_decay"))
        .amsgrad(group.at("amsgrad"));
    if (!group.contains("muon")) {
      saved.push_back({group.at("params"), std::make_shared<AdamWOptions>(options)});
      continue;
    }
    const OrderedJson& muon = group.at("muon");
    const auto muon_options = std::make_shared<MuonOptions>(options);
    muon_options->momentum(muon.at("momentum"))
        .nesterov(muon.at("nesterov"))
        .iterations(muon.at("iterations"));
    saved.push_back({group.at("params"), muon_options});
  }
  return saved;
}

void check_groups(const std::vector<SavedGroup>& saved, const torch::optim::Optimizer& optimizer,
                  const torch::nn::Module& module) {
  const auto own = names_of_groups(optimizer, module);
  require(saved.size() == own.size(), "[resume] expected an optimizer with the ", saved.size(),
          saved.size() == 1 ? " parameter group" : " parameter groups", " that were saved, got ",
          own.size());
  for (size_t g = 0; g < saved.size(); ++g) {
    const bool was_muon = dynamic_cast<const MuonOptions*>(saved[g].options.get()) != nullptr;
    require(was_muon == (muon_options_of(optimizer.param_groups()[g]) != nullptr),
            "[resume] expected ", was_muon ? "MuonOptions" : "AdamWOptions", " in group ", g,
            ", as they were saved, got ", was_muon ? "AdamWOptions" : "MuonOptions");
  }
  std::unordered_map<std::string, size_t> group_of;
  for (size_t g = 0; g < saved.size(); ++g) {
    for (const std::string& name : saved[g].parameters) group_of.emplace(name, g);
  }
  for (size_t g = 0; g < own.size(); ++g) {
    for (const std::string& name : own[g]) {
      const auto found = group_of.find(name);
      require_tensor(name, found == group_of.end() || found->second == g, "[resume] expected ",
                     name, " in group ", found == group_of.end() ? g : found->second,
                     " of the optimizer, where it was saved, got it in group ", g);
    }
  }
}

void check_order(const std::vector<std::vector<std::string>>& saved,
                 const torch::optim::Optimizer& optimizer, const torch::nn::Module& module) {
  const auto own = names_of_groups(optimizer, module);
  for (size_t g = 0; g < std::min(saved.size(), own.size()); ++g) {
    for (size_t i = 0; i < std::min(saved[g].size(), own[g].size()); ++i) {
      require_tensor(saved[g][i], saved[g][i] == own[g][i], "[resume] expected ", saved[g][i],
                     " as parameter ", i, " of the optimizer's group ", g,
                     ", where its state was saved, got ", own[g][i]);
    }
  }
}

void set_options(const std::vector<SavedGroup>& saved, torch::optim::Optimizer& optimizer) {
  for (size_t g = 0; g < saved.size(); ++g) {
    const torch::optim::OptimizerOptions& options = *saved[g].options;
    optimizer.param_groups()[g].set_options(options.clone());
  }
}

}  // namespace flashstep
