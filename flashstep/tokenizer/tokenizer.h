// Byte-level BPE with GPT-2's pre-tokenization: text to token ids and back, without loss for any
// bytes.
//
// Text is cut at special tokens, then into words (words.h); the bytes of a word are merged, the
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
#include <vector>

#include "flashstep/base/progress.h"
#include "flashstep/tokenizer/merges.h"
#include "flashstep/tokenizer/special_tokens.h"
#include "flashstep/tokenizer/vocabulary.h"

namespace flashstep {

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
  std::vector<uint32_t> encode(std::string_view text) const;
  // The bytes; UserError for an id that is not below vocab_size().
  std::string decode(std::span<const uint32_t> ids) const;
  // Of a token's bytes, or a special token's text.
  std::optional<uint32_t> token_id(std::string_view token) const;
  const std::vector<std::string>& special_tokens() const { return special_texts_; }  // by id
  // A hash of all that encoding and decoding depend on.
  std::string fingerprint() const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const SpecialTokens& specials() const { return specials_; }
  const MergeRules& rules() const { return rules_; }
  uint32_t byte_id(uint8_t byte) const { return byte_ids_[byte]; }

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
};

// Encodes the files one after the other; `sink` gets the ids in order, a piece at a time, on the
// calling thread. Returns their number. Memory does not grow with the files. UserError for files
// without text.
uint64_t encode_files(const Tokenizer& tokenizer, const std::vector<std::filesystem::path>& texts,
                      const EncodeOptions& options,
                      const std::function<void(std::span<const uint32_t>)>& sink);

}  // namespace flashstep
