// Sources: flashstep/train/checkpoint_state.cc
// Any bytes as a checkpoint's state.json: refused with UserError, or a state that is written and
// read again without a change. The bytes are tried as they are, and as a body that someone gave its
// right hash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "flashstep/base/hash.h"
#include "flashstep/error.h"
#include "flashstep/train/checkpoint_state.h"

namespace {

void try_state(std::string_view bytes) {
  using namespace flashstep;
  try {
    const CheckpointState state = parse_checkpoint_state(bytes, "fuzz");
    for (const CheckpointFile& file : state.files) {
      if (file.name.find('/') != std::string::npos || file.name == ".." || file.name.empty())
        std::abort();
    }
    const std::string written = format_checkpoint_state(state);
    if (format_checkpoint_state(parse_checkpoint_state(written, "fuzz")) != written) std::abort();
  } catch (const flashstep::UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try_state(bytes);
  try_state(flashstep::str("{\n  \"xxh3_128\": \"", flashstep::hash_bytes(bytes), "\",\n", bytes));
  return 0;
}
