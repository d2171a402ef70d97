// Sources: flashstep/train/safetensors_format.cc
// Any bytes as a safetensors file: refused with UserError, or a header whose tensors lie within the
// file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "flashstep/detail/safetensors_format.h"
#include "flashstep/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const flashstep::SafetensorsHeader header = flashstep::parse_safetensors_header(file, "fuzz");
    uint64_t end = 0;
    for (const auto& tensor : header.tensors) {
      if (tensor.begin != end || tensor.end < tensor.begin) std::abort();
      end = tensor.end;
      uint64_t bytes = flashstep::safetensors_dtype_bytes(tensor.dtype);
      for (const int64_t length : tensor.shape) bytes *= static_cast<uint64_t>(length);
      if (bytes != tensor.end - tensor.begin) std::abort();
    }
    if (header.data_offset + end != size) std::abort();
  } catch (const flashstep::UserError&) {
  }
  return 0;
}
