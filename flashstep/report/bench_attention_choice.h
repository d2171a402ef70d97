// Where `flashstep bench attention` computes, and who races there.
#pragma once

#include <string>
#include <vector>

#include "flashstep/report/bench_attention.h"
#include "flashstep/report/bench_attention_rivals.h"

namespace flashstep::report {

// The device of this name, and those of its contestants that the options ask for. UserError for a
// device that is not there, and for contestants that nobody knows.
at::Device attention_device(const std::string& name);
std::vector<AttentionContestant> chosen_contestants(const BenchAttentionOptions& options,
                                                    const at::Device& device);

}  // namespace flashstep::report
