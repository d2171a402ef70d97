#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "flashstep/base/places.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/bpe.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/tokenizer.h"

namespace flashstep {
namespace {

namespace fs = std::filesystem;

using Ids = std::unordered_map<std::string_view, uint32_t>;

Ids index_tokens(const Vocabulary& vocabulary, const std::string& source) {
  Ids ids;
  for (uint32_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    require(!token.empty(), "[", source, "] token ", id, " is empty");
    const auto [other, is_new] = ids.emplace(token, id);
    require(is_new, "[", source, "] tokens ", other->second, " and ", id, " are the same");
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const char bytes[] = {static_cast<char>(byte)};
    require(vocabulary.lacks_bytes || ids.count({bytes, 1}) == 1, "[", source,
            "] expected a token for each of the 256 bytes, ", "got none for byte ", byte);
  }
  return ids;
}

void check_merges(const Vocabulary& vocabulary, const Ids& ids, const std::string& source) {
  std::unordered_set<uint64_t> seen;
  for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const auto [left, right] = vocabulary.merges[rank];
    require(left < vocabulary.tokens.size() && right < vocabulary.tokens.size(), "[", source,
            "] merge ", rank, " names a token beyond the vocabulary");
    const std::string joined = vocabulary.tokens[left] + vocabulary.tokens[right];
    require(ids.count(joined) == 1, "[", source, "] merge ", rank, " makes \"",
            printable_utf8(joined), "\", which is not in the vocabulary");
    require(seen.insert(uint64_t{left} << 32 | right).second, "[", source, "] merge ", rank,
            " repeats an earlier one");
  }
}

}  // namespace

void check_vocabulary(const Vocabulary& vocabulary, const std::string& source) {
  check_merges(vocabulary, index_tokens(vocabulary, source), source);
  std::vector<std::string> specials;
  uint64_t least = 0;
  for (const uint32_t id : vocabulary.special_ids) {
    require(id >= least && id < vocabulary.tokens.size(), "[", source,
            "] expected ascending ids of special tokens below ", vocabulary.tokens.size());
    least = uint64_t{id} + 1;
    specials.push_back(vocabulary.tokens[id]);
  }
  check_special_tokens(specials, source);
  const auto& ids = vocabulary.special_ids;
  require(!vocabulary.bos_id || std::binary_search(ids.begin(), ids.end(), *vocabulary.bos_id), "[",
          source, "] expected the id of a special token as bos_id, got ",
          vocabulary.bos_id.value_or(0));
  require(std::ranges::includes(ids, vocabulary.shown_ids), "[", source,
          "] expected shown_ids to be ascending ids of special tokens");
}

Vocabulary read_vocabulary(const fs::path& path) {
  const auto read_gpt2 = [](const fs::path& folder) {
    return parse_gpt2(read_file(folder / "vocab.json"), read_file(folder / "merges.txt"),
                      (folder / "vocab.json").string());
  };
  if (fs::is_directory(path)) {
    if (fs::exists(path / "tokenizer.json")) return read_vocabulary(path / "tokenizer.json");
    require(fs::exists(path / "vocab.json"),
            "[tokenizer] expected tokenizer.json, or vocab.json and ", "merges.txt, in ",
            path.string(), "; found neither");
    return read_gpt2(path);
  }
  if (path.filename() == "vocab.json" || path.filename() == "merges.txt") {
    return read_gpt2(path.parent_path());
  }
  return parse_tokenizer_json(read_file(path), path.string());
}

void write_vocabulary(const Vocabulary& vocabulary, const fs::path& directory) {
  const bool is_new = !fs::exists(directory);
  try {
    make_directories(directory);
    write_files({{directory / "vocab.json", vocab_json(vocabulary)},
                 {directory / "merges.txt", merges_text(vocabulary)},
                 {directory / "tokenizer.json", tokenizer_json(vocabulary)}});
  } catch (const MachineError&) {  // a full disk: a part of the files is no tokenizer
    if (is_new) remove_if_ours(directory, is_tokenizer_file);
    throw;
  }
}

bool is_tokenizer_file(std::string_view name) {
  return std::find(std::begin(kTokenizerFiles), std::end(kTokenizerFiles), name) !=
         std::end(kTokenizerFiles);
}

}  // namespace flashstep
