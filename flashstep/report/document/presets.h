// What each section of a report measures in each preset (presets_*.cc); the table of sections is in
// sections.cc.
#pragma once

#include <string>
#include <vector>

#include "flashstep/base/text.h"
#include "flashstep/report/document/measurement.h"

namespace flashstep::report {

void add_limits(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_step(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_norm(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_profile(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_memory(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_precision(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_attention(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_attention_grid(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_leaderboard(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_allreduce(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_ddp(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_sharding(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_matrix(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_account(const std::string& year, const measure::Machine& machine, Plan& plan);
void add_tokenizer(const std::string& year, const measure::Machine& machine, Plan& plan);

// A command line at its blanks.
std::vector<std::string> words_of(const std::string& line);

// A measurement by one command line, if this machine can make it.
void add(const std::string& name, const std::string& line, double seconds,
         const measure::Machine& machine, Plan& plan, const Needs& needs = {});

inline bool has_gpu(const measure::Machine& machine) { return !machine.gpus.empty(); }

// What a CPU leaves of a year's lists: says so in the plan.
void leave_to_gpus(const std::string& what, const measure::Machine& machine, Plan& plan);

}  // namespace flashstep::report
