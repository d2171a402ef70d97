// Cases that may need more memory than there is: how much there is, and what became of a process
// that measured one.
#pragma once

#include <string>

#include "flashstep/report/failure.h"

namespace flashstep::report {

// Of the machine (or this process's container), and of the first GPU.
double total_memory_bytes(const std::string& device);
// What a case may still take. On a GPU all of it: what other programs hold of it, LibTorch does not
// say.
double free_memory_bytes(const std::string& device);

// How the only rank of a job failed, from RanksOutcome::failure: "OOM: ..." where memory was too
// small (also when the kernel ended the process), else "failed: ..." in the process's own words.
std::string process_trouble(const std::string& failure);

}  // namespace flashstep::report
