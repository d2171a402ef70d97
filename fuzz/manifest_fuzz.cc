// Sources: flashstep/data/manifest.cc
// Any bytes as a manifest: refused with UserError, or a manifest whose parts can be used.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "flashstep/data/manifest.h"
#include "flashstep/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    const flashstep::Manifest manifest = flashstep::parse_manifest(json, "fuzz");
    if (manifest.inputs.size() + manifest.outputs.size() > size) std::abort();
  } catch (const flashstep::UserError&) {
  }
  return 0;
}
