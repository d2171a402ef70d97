// The flags of train --plan and account plan.
#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "flashstep/bench/plan.h"

namespace flashstep::apps {

struct PlanFlags {
  int64_t ranks = 0;
  std::string card, memory;

  void add_options(CLI::App& command) {
    command
        .add_option("--ranks", ranks,
                    "Planned for so many ranks (default: parallel.world_size, or 1)")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
        ->option_text("N");
    command
        .add_option(
            "--card", card,
            "Planned for this GPU: H200, H100, A100-SXM4-80GB, B200 (default: the one here)")
        ->option_text("NAME");
    command
        .add_option(
            "--memory", memory,
            "Planned for so much memory of a GPU, or of this machine for a CPU (default: its own)")
        ->option_text("141GiB");
  }
  bool any() const { return ranks != 0 || !card.empty() || !memory.empty(); }
  tools::PlanInputs inputs(const Config& config) const {
    return {config, ranks, card, memory.empty() ? 0 : tools::bytes_of(memory)};
  }
};

}  // namespace flashstep::apps
