// Tensors in files that every framework reads: the safetensors format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "flashstep/base/files.h"
#include "flashstep/train/safetensors_format.h"

namespace flashstep {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// What is known of a file that was written: enough to find out later whether it is still the same.
struct WrittenFile {
  uint64_t size_bytes = 0;
  std::string hash;  // XXH3-128 (base/hash.h)
};

// Writes `tensors` (any strides, any device, dense) to `path`, whole or not at all. Bytes are
// streamed: beside the tensors themselves one chunk of 16 MiB is held, through which tensors that
// are not contiguous CPU memory are copied piece by piece. Dtypes: all that torch and the format
// share (safetensors.cc has the table). UserError for another dtype or layout and for names given
// twice; MachineError if writing fails.
WrittenFile write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                              const std::map<std::string, std::string>& metadata = {});

// A safetensors file, memory-mapped. Opening reads and checks the header only.
class SafetensorsFile {
 public:
  // UserError, naming the file and what is wrong, for a file that is missing, truncated or
  // malformed.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const SafetensorsHeader& header() const { return header_; }
  bool contains(const std::string& name) const { return index_.count(name) != 0; }
  // A new contiguous CPU tensor with its own, aligned memory. UserError for an unknown name or for
  // a dtype that torch does not have.
  at::Tensor tensor(const std::string& name) const;
  // Copies into `destination`, which must have the same shape; any dtype, strides and device.
  void copy_to(const std::string& name, at::Tensor destination) const;
  // All tensors, in the order of the file's bytes.
  NamedTensors tensors() const;

 private:
  const SafetensorsEntry& entry(const std::string& name) const;

  std::string source_;
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, size_t> index_;  // name -> place in header_.tensors
};

}  // namespace flashstep
