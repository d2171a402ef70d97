// What ranks add up, so that every element of the sum is known beforehand and exact: rank r holds
// (r + 1) (i mod p + 1) at element i, and the sum over n ranks is n (n + 1) / 2 (i mod p + 1).
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace flashstep::report {

at::ScalarType element_type(const std::string& dtype);  // "fp32", "bf16", "fp16"; else UserError
int64_t element_bytes(const std::string& dtype);

// p: an odd prime, so that no block of a collective's own is a multiple of it, and small enough for
// every partial sum to be exact in the dtype. UserError for too many ranks.
int64_t pattern_period(const std::string& dtype, int64_t ranks);

// Overwrites `buffer` (elements) with what rank `rank` holds.
void fill_pattern(at::Tensor buffer, const std::string& dtype, int64_t ranks, int64_t rank);
// How many elements are not the sum over all ranks; NaN is wrong.
int64_t count_wrong(const at::Tensor& buffer, const std::string& dtype, int64_t ranks);

}  // namespace flashstep::report
