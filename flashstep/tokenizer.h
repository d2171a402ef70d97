// Byte-level BPE with GPT-2's or GPT-4's pre-tokenization: text to token ids and back, without loss
// for any bytes.
//
// Text is cut at special tokens, then into words; the bytes of a word are merged, the
// pair of the lowest rank first (Sennrich et al. 2016, arXiv:1508.07909; Radford et al. 2019,
// section 2.2).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flashstep/detail/bpe.h"

namespace flashstep {

// Called from time to time with the work that is done and all work, in the same unit.
using ProgressFunction = std::function<void(uint64_t done, uint64_t total)>;

struct Vocabulary {
  std::vector<std::string> tokens;  // by id: bytes, or the text of a special token
  std::vector<std::pair<uint32_t, uint32_t>>
      merges;                         // ids of left and right, in the order of ranks
  std::vector<uint32_t> special_ids;  // ascending
  WordPattern pattern = WordPattern::kGpt2;
  bool split_digits = false;   // every digit is a word of its own
  bool ignore_merges = false;  // a word that is a token is that one, whatever merges make
  bool lacks_bytes = false;    // not all single bytes are tokens: see Tokenizer::missing_bytes()
  // The special token that Hugging Face's tokenizers put before each text. encode() does not: where
  // it is wanted, the text has it.
  std::optional<uint32_t> bos_id;
  // Of special_ids those that Hugging Face's tokenizers do not call "special": their decoders show
  // them whatever they skip. Ascending.
  std::vector<uint32_t> shown_ids;

  bool operator==(const Vocabulary&) const = default;
};

// Throws UserError, naming `source`, unless all 256 single bytes are there (or lacks_bytes is set),
// no two tokens are the same, the merges join tokens to tokens, none twice, and the special tokens
// pass check_special_tokens().
void check_vocabulary(const Vocabulary& vocabulary, const std::string& source);

// Files (bytes as GPT-2 spells them). Readers take untrusted text, check it before they
// allocate by it, and throw UserError naming `source` and what is wrong; what they return has been
// checked.
//
// GPT-2: vocab.json maps spellings to ids, merges.txt holds a rank a line. What is neither a byte
// nor made by a merge is a special token.
Vocabulary parse_gpt2(std::string_view vocab_json, std::string_view merges_text,
                      const std::string& source);
std::string vocab_json(const Vocabulary& vocabulary);
std::string merges_text(const Vocabulary& vocabulary);

// Hugging Face's tokenizer.json, of byte-level BPE with GPT-2's pattern, digits split before or
// not, or GPT-4's (Llama 3's), or that with single digits (Qwen 2's). Another model, normalizer,
// pre-tokenizer, post-processor, truncation, ... is refused by name.
Vocabulary parse_tokenizer_json(std::string_view json, const std::string& source);
std::string tokenizer_json(const Vocabulary& vocabulary);

// `path`: a tokenizer.json, a vocab.json or merges.txt with the other beside it, or a folder of
// these (where tokenizer.json goes before the others).
Vocabulary read_vocabulary(const std::filesystem::path& path);

// All three files; creates the folder.
void write_vocabulary(const Vocabulary& vocabulary, const std::filesystem::path& directory);

class Tokenizer {
 public:
  // UserError when the vocabulary does not hold together (check_vocabulary); `source` names it
  // there.
  explicit Tokenizer(Vocabulary vocabulary, const std::string& source = "tokenizer");

  // GPT-2's vocab.json + merges.txt or Hugging Face's tokenizer.json: a folder, or one of the
  // files.
  static Tokenizer load(const std::filesystem::path& directory_or_file);
  // All three files, into a folder that is created.
  void save(const std::filesystem::path& directory) const;

  int64_t vocab_size() const { return static_cast<int64_t>(vocabulary_.tokens.size()); }
  // Without the bytes that have no token.
  std::vector<uint32_t> encode(std::string_view text) const;
  // The bytes; UserError for an id that is not below vocab_size().
  std::string decode(std::span<const uint32_t> ids) const;
  // Of a token's bytes, or a special token's text.
  std::optional<uint32_t> token_id(std::string_view token) const;
  const std::vector<std::string>& special_tokens() const { return special_texts_; }  // by id
  // The text of vocabulary().bos_id; empty: there is none.
  std::string bos_token() const;
  // Of the 256 bytes those without a token; encode() leaves them out, as Hugging Face's does. None
  // in what train_bpe() learns; SmolLM2's has some.
  int64_t missing_bytes() const;
  // A hash of all that encoding and decoding depend on.
  std::string fingerprint() const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const SpecialTokens& specials() const { return specials_; }
  const MergeRules& rules() const { return rules_; }
  static constexpr uint32_t kNoToken = 0xFFFFFFFF;
  uint32_t byte_id(uint8_t byte) const { return byte_ids_[byte]; }  // kNoToken: there is none

 private:
  Vocabulary vocabulary_;
  std::vector<std::string> special_texts_;
  SpecialTokens specials_;
  MergeRules rules_;
  std::array<uint32_t, 256> byte_ids_{};
  std::unordered_map<std::string, uint32_t> ids_;
};

// Text is worked on in pieces of about this size. No result depends on it.
inline constexpr size_t kChunkBytes = 1 << 20;

struct BpeOptions {
  int64_t vocab_size = 10'000;  // in all: 256 bytes, merges, special tokens
  std::vector<std::string> special_tokens;
  WordPattern pattern = WordPattern::kGpt2;
  bool split_digits = false;  // no token has two digits, or one beside anything else
  int threads = 0;            // 0: all processors
  ProgressFunction progress;  // bytes of text read
  size_t chunk_bytes = kChunkBytes;
  ProgressFunction merge_progress;  // merges found
};

// Learns a vocabulary: always the most frequent pair of neighbouring tokens is merged next, of
// equally frequent ones that with the lexicographically greater bytes (left token first), until
// vocab_size is reached or no pair is left. Ids: the bytes as GPT-2 orders them, the merges, the
// special tokens. The result does not depend on `threads`. Memory grows with the distinct words,
// not with the text. UserError for files without text or a vocab_size below 256 + special tokens.
Tokenizer train_bpe(const std::vector<std::filesystem::path>& texts, const BpeOptions& options);

struct EncodeOptions {
  int threads = 0;            // 0: all processors
  ProgressFunction progress;  // bytes of text
  size_t chunk_bytes = kChunkBytes;
  std::vector<std::string> behind;  // text to encode behind each file, apart from it; empty: none
};

// Encodes the files one after the other; `sink` gets the ids in order, a piece at a time, on the
// calling thread. Returns their number. Memory does not grow with the files. UserError for files
// without text.
uint64_t encode_files(const Tokenizer& tokenizer, const std::vector<std::filesystem::path>& texts,
                      const EncodeOptions& options,
                      const std::function<void(std::span<const uint32_t>)>& sink);

}  // namespace flashstep
