// Sources: flashstep/data/npy_header.cc
// Any bytes as a token file's header: refused with UserError, or a header that the bytes can keep.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "flashstep/base/error.h"
#include "flashstep/data/npy_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const flashstep::data::NpyHeader header = flashstep::data::parse_npy_header(file, "fuzz");
    if (header.data_offset > size) std::abort();
    if (header.tokens > (size - header.data_offset) / header.bytes_per_token) std::abort();
  } catch (const flashstep::UserError&) {
  }
  return 0;
}
