// Rates that training steps in bf16 reach on a GPU, and what else it takes before tensors have
// room: for the plan of a run. What a GPU promises is in data_sheet.h, what it reaches alone in
// limits.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace flashstep::measure {

// Attention under a causal mask over N tokens of head dim D: at half of `forward` and `backward`
// (FLOP/s) where N is `half_length`; between D 64 and 128 on a line.
struct AttentionRates {
  double forward_64, backward_64, forward_128, backward_128;
  double half_length;
  double at_length(double rate, int64_t n) const {
    return rate * static_cast<double>(n) / (static_cast<double>(n) + half_length);
  }
  double forward(int64_t head_dim, int64_t n) const;
  double backward(int64_t head_dim, int64_t n) const;
};

struct StepRates {
  double products;            // FLOP/s, bf16
  double products_of_8_bits;  // 0: the GPU has none
  double memory;              // bytes/s, of kernels bound by it
  double link;                // bytes/s that peer copies send to another GPU
  double kernel_s;            // of a kernel in a graph, besides its work
  AttentionRates attention;
  bool is_measured;  // else by the data sheets' ratio to the GPU that was
  std::string source;
};

// By the name that CUDA gives a GPU, or a part of it ("H200"); nothing for one without data sheets.
std::optional<StepRates> step_rates(const std::string& gpu_name);

// Bytes of a GPU's memory that CUDA says it has; nothing for one without a data sheet.
std::optional<double> gpu_memory_bytes(const std::string& gpu_name);

// What CUDA, NCCL and the libraries' kernels take of a GPU's memory.
double gpu_context_bytes();

// What LibTorch's allocator holds of it besides tensors when a step was recorded, for `step_bytes`
// of tensors that come and go in a step: pieces between tensors that stayed.
double allocator_reserve_bytes(double step_bytes);

}  // namespace flashstep::measure
