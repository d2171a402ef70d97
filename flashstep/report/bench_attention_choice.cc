#include "flashstep/report/bench_attention_choice.h"

#include <algorithm>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/measure/gpu.h"
#include "flashstep/report/bench_attention_compiled.h"

namespace flashstep::report {

std::vector<AttentionContestant> chosen_contestants(const BenchAttentionOptions& options,
                                                    const at::Device& device) {
  std::vector<AttentionContestant> all = attention_contestants(device);
  // Compiling for a CPU takes minutes of a small one: only on demand.
  const auto& names = options.contestants;
  const auto wanted = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (!options.peer_command.empty() && (device.is_cuda() || wanted("compiled")))
    all.push_back(compiled_contestant(options.peer_command));
  if (names.empty()) return all;
  std::vector<std::string> known;
  for (const auto& contestant : all) known.push_back(contestant.name);
  for (const auto& name : names) {
    require(std::find(known.begin(), known.end(), name) != known.end(),
            "[bench attention] expected contestants among ", join(known), ", got \"", name, "\"");
  }
  std::erase_if(all, [&](const AttentionContestant& c) { return !wanted(c.name); });
  return all;
}

at::Device attention_device(const std::string& name) {
  require(name == "cpu" || name == "cuda", "[bench attention] expected device cpu or cuda, got \"",
          name, "\"");
  require(name == "cpu" || !measure::list_gpus().empty(),
          "[bench attention] expected a GPU for device cuda, got none");
  return name == "cpu" ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
}

}  // namespace flashstep::report
