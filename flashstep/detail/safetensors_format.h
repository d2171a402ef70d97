// The header of a safetensors file, without tensors: what the file holds and where.
//
// A file is: 8 bytes, the header's length n (little-endian); n bytes of JSON,
//   {"__metadata__": {text: text},
//    NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
// padded with spaces; then the tensors' bytes, row-major, one after the other without holes.
// Source: https://github.com/huggingface/safetensors, "Format".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace flashstep {

// The format's own bound: a header is never longer than this.
inline constexpr uint64_t kSafetensorsMaxHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;            // "F32", "BF16", ...: a name that safetensors_dtype_bytes knows
  std::vector<int64_t> shape;   // empty for a scalar
  uint64_t begin = 0, end = 0;  // the tensor's bytes, counted from data_offset
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  uint64_t data_offset = 0;  // where the tensors' bytes start in the file
};

// Bytes of one element; 0 for a dtype that is unknown or not made of whole bytes.
uint64_t safetensors_dtype_bytes(std::string_view dtype);

// Reads the header of the file whose bytes are `file`. Everything is checked before it is used: the
// header's length against the file, JSON of exactly the shape above, every name once, sizes without
// overflow, offsets in order without overlap or hole, and the last byte used. UserError otherwise;
// `source` is the file's name in it.
SafetensorsHeader parse_safetensors_header(std::string_view file, const std::string& source);

// Gives the tensors their places (sets begin and end) and returns the bytes that stand before their
// data. Larger element types come first (`tensors` is reordered, stably) and the data starts at a
// multiple of 64, so that a mapped tensor is aligned to its element. UserError for duplicate or
// reserved names.
std::string format_safetensors_header(std::vector<SafetensorsEntry>& tensors,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace flashstep
