// The header of a NumPy .npy file that holds one vector of token ids: uint16 or uint32,
// little-endian. Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
// (versions 1.0 and 2.0).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace flashstep {

struct NpyHeader {
  int bytes_per_token = 2;  // 2: uint16, 4: uint32
  uint64_t tokens = 0;      // length of the vector
  size_t data_offset = 0;   // where the ids begin, a multiple of bytes_per_token
};

// Bytes that write_npy_header() returns, whatever the number of tokens: the header can be
// rewritten in place. A multiple of 64, as the format asks.
constexpr size_t kNpyHeaderBytes = 128;

// Reads the header at the beginning of `file`, the whole file, and checks it against the file's
// size. UserError, beginning with [name], for anything but a vector of uint16 or uint32 that ends
// where the file ends. Allocates nothing that depends on what the header claims.
NpyHeader parse_npy_header(std::string_view file, const std::string& name);

// A version 1.0 header of kNpyHeaderBytes bytes.
std::string write_npy_header(int bytes_per_token, uint64_t tokens);

}  // namespace flashstep
