#include "flashstep/train/agreement.h"

#include <set>
#include <utility>

#include "flashstep/comm/agreement.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

// Name and value.
using Facts = std::vector<std::pair<std::string, std::string>>;

void check_same(const Facts& facts, const Group& group) {
  std::vector<std::string> values;
  for (const auto& [name, value] : facts) values.push_back(name + " = " + value);
  const auto difference = first_difference(values, group);
  if (!difference) return;
  const auto or_nothing = [](const std::string& value) { return value.empty() ? "none" : value; };
  throw AgreedError(
      flashstep::str("[train] expected the same configuration and data on every rank, got ",
                     or_nothing(difference->first), " on rank 0 and ",
                     or_nothing(difference->other), " on rank ", difference->rank));
}

// What machines may differ in. Data that differ behind a path have another fingerprint, and
// init_from is read by rank 0 alone.
bool may_differ(const std::string& path) {
  static const std::set<std::string> kPaths = {
      "text.source",  "text.validation",   "text.directory",    "text.base_url", "tokenizer.path",
      "tokens.train", "tokens.validation", "tokenizer.threads", "train.threads", "train.init_from"};
  return kPaths.contains(path);
}

std::string describe(const TokenFile& tokens) {
  return flashstep::str(tokens.size(), " of hash ", tokens.fingerprint());
}

}  // namespace

void check_same_config(const Config& config, c10::DeviceType device, const Group& group) {
  Config own = config;
  own.train.device = c10::DeviceTypeName(device, /*lower_case=*/true);
  Facts facts;
  for (auto& field : flat_fields(own)) {
    if (!may_differ(field.first)) facts.push_back(std::move(field));
  }
  check_same(facts, group);
}

void check_same_data(const PreparedData& data, const Group& group) {
  check_same({{"tokenizer", "of hash " + data.tokenizer.fingerprint()},
              {"training tokens", describe(data.train_tokens)},
              {"held-out tokens", describe(data.validation_tokens)}},
             group);
}

}  // namespace flashstep
