#include "flashstep/tokenizer.h"

#include <algorithm>

#include "flashstep/base/hash.h"
#include "flashstep/error.h"
#include "flashstep/tokenizer/encode.h"

namespace flashstep {

Tokenizer::Tokenizer(Vocabulary vocabulary, const std::string& source)
    : vocabulary_(std::move(vocabulary)) {
  check_vocabulary(vocabulary_, source);
  std::vector<SpecialTokens::Token> specials;
  for (const uint32_t id : vocabulary_.special_ids) {
    special_texts_.push_back(vocabulary_.tokens[id]);
    specials.push_back({vocabulary_.tokens[id], id});
  }
  specials_ = SpecialTokens(std::move(specials));
  for (uint32_t id = 0; id < vocabulary_.tokens.size(); ++id) ids_[vocabulary_.tokens[id]] = id;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = token_id(std::string(1, static_cast<char>(byte))).value_or(kNoToken);
  }
  std::vector<Merge> merges;
  merges.reserve(vocabulary_.merges.size());
  for (const auto& [left, right] : vocabulary_.merges) {
    const uint32_t result = ids_.at(vocabulary_.tokens[left] + vocabulary_.tokens[right]);
    merges.push_back({left, right, result});
  }
  rules_ = MergeRules(merges);
}

Tokenizer Tokenizer::load(const std::filesystem::path& directory_or_file) {
  return Tokenizer(read_vocabulary(directory_or_file), directory_or_file.string());
}

void Tokenizer::save(const std::filesystem::path& directory) const {
  write_vocabulary(vocabulary_, directory);
}

std::vector<uint32_t> Tokenizer::encode(std::string_view text) const {
  TokenBuffer out;
  Encoder(*this).encode(text, out);
  return {out.ids.get(), out.ids.get() + out.size};
}

std::string Tokenizer::decode(std::span<const uint32_t> ids) const {
  std::string bytes;
  for (size_t i = 0; i < ids.size(); ++i) {
    require(ids[i] < vocabulary_.tokens.size(), "[tokenizer decode] expected ids below ",
            vocabulary_.tokens.size(), ", got ", ids[i], " at position ", i);
    bytes += vocabulary_.tokens[ids[i]];
  }
  return bytes;
}

std::optional<uint32_t> Tokenizer::token_id(std::string_view token) const {
  const auto found = ids_.find(std::string(token));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::string Tokenizer::bos_token() const {
  return vocabulary_.bos_id ? vocabulary_.tokens[*vocabulary_.bos_id] : "";
}

int64_t Tokenizer::missing_bytes() const {
  return std::count(byte_ids_.begin(), byte_ids_.end(), kNoToken);
}

std::string Tokenizer::fingerprint() const {
  Hasher hasher;
  const auto add_number = [&](uint64_t number) { hasher.update(&number, sizeof number); };
  add_number(vocabulary_.tokens.size());
  for (const std::string& token : vocabulary_.tokens) {
    add_number(token.size());
    hasher.update(token);
  }
  for (const auto& [left, right] : vocabulary_.merges) add_number(uint64_t{left} << 32 | right);
  for (const uint32_t id : vocabulary_.special_ids) add_number(id);
  // Tokenizers that are older than these have the fingerprints that they had.
  if (vocabulary_.split_digits) hasher.update("split_digits");
  if (vocabulary_.pattern != WordPattern::kGpt2) hasher.update(name_of(vocabulary_.pattern));
  if (vocabulary_.ignore_merges) hasher.update("ignore_merges");
  return hasher.hex();
}

}  // namespace flashstep
