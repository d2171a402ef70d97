#include "flashstep/base/text.h"
#include "flashstep/data_parallel.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

struct NamedStrategy {
  const char* name;
  Strategy strategy;
};
constexpr NamedStrategy kStrategies[] = {{"naive", Strategy::kNaive},
                                         {"flat", Strategy::kFlat},
                                         {"overlapped", Strategy::kOverlapped},
                                         {"bucketed", Strategy::kBucketed},
                                         {"torch", Strategy::kTorch}};

}  // namespace

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const NamedStrategy& entry : kStrategies) names.emplace_back(entry.name);
  return names;
}

std::string strategy_name(Strategy strategy) {
  for (const NamedStrategy& entry : kStrategies) {
    if (strategy == entry.strategy) return entry.name;
  }
  return "";
}

Strategy strategy_by_name(const std::string& name) {
  for (const NamedStrategy& entry : kStrategies) {
    if (name == entry.name) return entry.strategy;
  }
  throw UserError(str("[parallel] expected one of ", join(strategy_names()), ", got ", name));
}

}  // namespace flashstep
