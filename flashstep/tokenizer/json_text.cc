#include "flashstep/tokenizer/json_text.h"

#include <algorithm>

#include "flashstep/base/json_depth.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/tokenizer/byte_alphabet.h"

namespace flashstep::internal {

nlohmann::json parse_json(std::string_view text, const std::string& source) {
  require(json_depth(text) <= kMaxJsonDepth, "[", source, "] expected JSON nested at most ",
          kMaxJsonDepth, " deep");
  // The library takes one for the end of the text.
  require(text.find('\0') == std::string_view::npos, "[", source,
          "] expected JSON, got a zero byte");
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw UserError(
        str("[", source, "] expected JSON, got ", printable_utf8(json_complaint(error.what()))));
  }
}

const nlohmann::json& member(const nlohmann::json& object, const char* key) {
  static const nlohmann::json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

std::vector<std::string> spellings_by_id(const nlohmann::json& vocab,
                                         const std::unordered_map<uint32_t, std::string>& extra,
                                         const std::string& source) {
  require(vocab.is_object(), "[", source, "] expected the vocabulary to be a JSON object");
  const uint64_t limit = vocab.size() + extra.size();  // no more ids than that, hence no larger one
  std::vector<std::string> spellings(limit);
  uint64_t end = 0;
  const auto place = [&](uint64_t id, const std::string& spelling) {
    require(id < limit, "[", source, "] expected ids 0, 1, 2, ... without a hole, got ", id,
            " in a vocabulary of ", limit);
    require(!spelling.empty(), "[", source, "] token ", id, " is empty");
    require(spellings[id].empty() || spellings[id] == spelling, "[", source, "] id ", id,
            " stands for two tokens");
    spellings[id] = spelling;
    end = std::max(end, id + 1);
  };
  for (const auto& [spelling, id] : vocab.items()) {
    require(id.is_number_unsigned(), "[", source, "] expected a whole number >= 0 as the id of \"",
            spelling, "\"");
    place(id.get<uint64_t>(), spelling);
  }
  for (const auto& [id, spelling] : extra) place(id, spelling);
  spellings.resize(end);
  for (size_t id = 0; id < end; ++id) {
    require(!spellings[id].empty(), "[", source, "] expected ids without a hole, got none of ", id);
  }
  return spellings;
}

std::unordered_map<std::string_view, uint32_t> ids_by_spelling(
    const std::vector<std::string>& spellings) {
  std::unordered_map<std::string_view, uint32_t> ids;
  for (uint32_t id = 0; id < spellings.size(); ++id) ids.emplace(spellings[id], id);
  return ids;
}

std::pair<uint32_t, uint32_t> merge_ids(const std::unordered_map<std::string_view, uint32_t>& ids,
                                        std::string_view left, std::string_view right, size_t rank,
                                        const std::string& source) {
  const auto find = [&](std::string_view spelling) {
    const auto found = ids.find(spelling);
    require(found != ids.end(), "[", source, "] merge ", rank, " names \"",
            printable_utf8(spelling), "\", which is not in the vocabulary");
    return found->second;
  };
  return {find(left), find(right)};
}

std::string json_string(std::string_view text) { return nlohmann::json(text).dump(); }

std::string vocab_object(const Vocabulary& vocabulary, std::string_view separator) {
  std::string out = "{";
  size_t special = 0;
  for (uint32_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const bool is_special =
        special < vocabulary.special_ids.size() && vocabulary.special_ids[special] == id;
    special += is_special;
    const std::string& token = vocabulary.tokens[id];
    out +=
        str(id > 0 ? "," : "", separator, json_string(is_special ? token : spell(token)), ": ", id);
  }
  return out + std::string(separator) + "}";
}

}  // namespace flashstep::internal
