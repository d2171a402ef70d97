// What the makers promise: rates of dense matrix products, of memory and of links, with their
// sources.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace flashstep::measure {

struct DataSheet {
  const char* name;  // as in the GPU's name
  // FLOP/s without sparsity, at the boost clock, with fp32 accumulation; 0: not in the data sheet.
  double fp32, tf32, bf16, fp16;
  double memory_bytes_per_s;
  double memory_gb;  // of memory, as the maker counts
  const char* source;
};

// The data sheet of a GPU by the name that CUDA gives it ("NVIDIA H200"); nothing if we have none.
std::optional<DataSheet> find_data_sheet(const std::string& gpu_name);

struct LinkSheet {
  const char* name;    // as in the GPU's name
  double bytes_per_s;  // NVLink, one way
  const char* source;
};

// The same of a GPU's NVLink; nothing if we have none, or it has no NVLink.
std::optional<LinkSheet> find_link_sheet(const std::string& gpu_name);

}  // namespace flashstep::measure
