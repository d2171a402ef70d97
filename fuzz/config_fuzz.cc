// Sources: flashstep/base/fields.cc flashstep/train/config*.cc flashstep/model/config.cc
// Sources: flashstep/tokenizer/special_tokens.cc flashstep/tokenizer/byte_alphabet.cc
// Sources: flashstep/tokenizer/char_class.cc
// Any bytes as the JSON of a run's config: refused with UserError, or a config within its ranges
// that is written and read back to the same values.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "flashstep/attention/implementation_names.h"
#include "flashstep/detail/fields.h"
#include "flashstep/error.h"
#include "flashstep/train/config.h"

// The library's own list needs LibTorch; here it only fills a line of help.
std::vector<std::string> flashstep::attention_implementations() { return {"auto", "naive"}; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using flashstep::Config;
  const std::string json(reinterpret_cast<const char*>(data), size);
  try {
    Config config;
    flashstep::read_json(config, json, "fuzz");
    if (!(config.text.validation_fraction >= 0 && config.text.validation_fraction <= 1)) {
      std::abort();
    }
    if (config.train.steps < 0 || config.train.batch_size < 1) std::abort();
    const std::string written = flashstep::write_json(config);
    Config again;
    flashstep::read_json(again, written, "written");
    if (flashstep::write_json(again) != written) std::abort();
  } catch (const flashstep::UserError&) {
  }
  return 0;
}
