// Sources: flashstep/tokenizer/*.cc
// Any bytes as tokenizer.json, or (divided by a zero byte) as vocab.json and merges.txt: refused
// with UserError, or a vocabulary that survives being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "flashstep/error.h"
#include "flashstep/tokenizer.h"

using namespace flashstep;  // a test program

namespace {

void expect(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const size_t zero = file.find('\0');
  bool is_accepted = false;
  try {
    const Vocabulary vocabulary =
        zero == std::string_view::npos
            ? parse_tokenizer_json(file, "fuzz")
            : parse_gpt2(file.substr(0, zero), file.substr(zero + 1), "fuzz");
    is_accepted = true;
    expect(parse_tokenizer_json(tokenizer_json(vocabulary), "again") == vocabulary);
    if (zero != std::string_view::npos) {
      expect(parse_gpt2(vocab_json(vocabulary), merges_text(vocabulary), "again") == vocabulary);
    }
  } catch (const flashstep::UserError&) {
    expect(!is_accepted);  // what was accepted can be written and read
  }
  return 0;
}
