// A byte-level BPE vocabulary as data: what the files hold and the trainer makes.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flashstep {

struct Vocabulary {
  std::vector<std::string> tokens;  // by id: bytes, or the text of a special token
  std::vector<std::pair<uint32_t, uint32_t>>
      merges;                         // ids of left and right, in the order of ranks
  std::vector<uint32_t> special_ids;  // ascending
};

// Throws UserError, naming `source`, unless all 256 single bytes are there, no two tokens are the
// same, the merges join tokens to tokens, none twice, and the special tokens pass
// check_special_tokens().
void check_vocabulary(const Vocabulary& vocabulary, const std::string& source);

// Files (bytes as spelled in byte_alphabet.h). Readers take untrusted text, check it before they
// allocate by it, and throw UserError naming `source` and what is wrong; what they return has been
// checked.
//
// GPT-2: vocab.json maps spellings to ids, merges.txt holds a rank a line. What is neither a byte
// nor made by a merge is a special token.
Vocabulary parse_gpt2(std::string_view vocab_json, std::string_view merges_text,
                      const std::string& source);
std::string vocab_json(const Vocabulary& vocabulary);
std::string merges_text(const Vocabulary& vocabulary);

// Hugging Face's tokenizer.json, of byte-level BPE with GPT-2's pattern. Another model, normalizer,
// pre-tokenizer, post-processor, truncation, ... is refused by name.
Vocabulary parse_tokenizer_json(std::string_view json, const std::string& source);
std::string tokenizer_json(const Vocabulary& vocabulary);

// `path`: a tokenizer.json, a vocab.json or merges.txt with the other beside it, or a folder of
// these (where tokenizer.json goes before the others).
Vocabulary read_vocabulary(const std::filesystem::path& path);

// All three files; creates the folder.
void write_vocabulary(const Vocabulary& vocabulary, const std::filesystem::path& directory);

}  // namespace flashstep
