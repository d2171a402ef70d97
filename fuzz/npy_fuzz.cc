// Sources: flashstep/data/npy_header.cc flashstep/data/token_file.cc
// Any bytes as a token file: refused with UserError, or ids that can all be read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "flashstep/detail/token_file.h"
#include "flashstep/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const flashstep::TokenView tokens(file, "fuzz");
    std::vector<int64_t> ids(tokens.size());
    tokens.read(0, std::span<int64_t>(ids));
    const int64_t largest = ids.empty() ? 0 : *std::max_element(ids.begin(), ids.end());
    if (tokens.max_id(0, tokens.size()) != largest) std::abort();
  } catch (const flashstep::UserError&) {
  }
  return 0;
}
