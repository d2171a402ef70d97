// state.json of a checkpoint, without tensors: which files belong to it, and the trainer's state.
//
// clang-format off
//   {
//     "xxh3_128": "0123456789abcdef0123456789abcdef",    <- of all bytes after this line
//     "format": "flashstep checkpoint", "version": 1, "step": 100,
//     "files": [{"name": "model.safetensors", "part": "model", "size_bytes": 12, "xxh3_128": "..."}, ...],
//     "state": {...}
//   }
// clang-format on
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flashstep {

// fp16's scale, beside the optimizer's state.
inline constexpr const char *kScale = "scaler/scale", *kGrowthTracker = "scaler/growth_tracker";

struct CheckpointFile {
  std::string name;  // in the checkpoint's directory
  std::string part;  // "model" or "optimizer"; a part may be spread over several files
  uint64_t size_bytes = 0;
  std::string hash;  // XXH3-128
};

struct CheckpointState {
  int64_t step = 0;
  std::vector<CheckpointFile> files;
  std::string state_json = "{}";  // a JSON object
};

// The bytes of state.json. UserError if state_json is no JSON object.
std::string format_checkpoint_state(const CheckpointState& state);

// Reads what format_checkpoint_state wrote. UserError, naming `source` and what is wrong, for bytes
// whose hash differs, JSON of another form, a file's name that leads out of the directory, or a
// later version.
CheckpointState parse_checkpoint_state(std::string_view bytes, const std::string& source);

}  // namespace flashstep
