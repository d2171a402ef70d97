// The course's initialization, drawn so that a parameter's values depend on the seed and its name
// only: not on the device, the other layers, or the order in which modules were made.
#pragma once

#include <cstdint>
#include <string>

#include <torch/types.h>

namespace flashstep {

// Fills `parameter` (any device and floating dtype) with draws from a normal distribution of mean 0
// and the given standard deviation, truncated at `bound` standard deviations.
void fill_truncated_normal(const at::Tensor& parameter, double standard_deviation, double bound,
                           uint64_t seed, const std::string& name);

// values (n), float32 on the CPU: elements [begin, begin + n) of the same, counted row by row.
void fill_part_truncated_normal(const at::Tensor& values, int64_t begin, double standard_deviation,
                                double bound, uint64_t seed, const std::string& name);

}  // namespace flashstep
