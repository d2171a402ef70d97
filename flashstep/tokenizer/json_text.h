// What the two readers of vocabulary files share: checked access to parsed JSON, and writing it.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "flashstep/tokenizer.h"

namespace flashstep::internal {

// UserError naming `source` and the place of the mistake.
nlohmann::json parse_json(std::string_view text, const std::string& source);

// The member `key`, or null when it is missing.
const nlohmann::json& member(const nlohmann::json& object, const char* key);

// A JSON object from spellings to ids, as spelling by id. UserError unless the ids are 0, 1, ...
// without a hole, counting those in `extra` (tokens that are named elsewhere; they may be named
// here too).
std::vector<std::string> spellings_by_id(const nlohmann::json& vocab,
                                         const std::unordered_map<uint32_t, std::string>& extra,
                                         const std::string& source);

// Where each spelling stands.
std::unordered_map<std::string_view, uint32_t> ids_by_spelling(
    const std::vector<std::string>& spellings);

// The pair of ids of merge `rank`; UserError when a side is not in the vocabulary.
std::pair<uint32_t, uint32_t> merge_ids(const std::unordered_map<std::string_view, uint32_t>& ids,
                                        std::string_view left, std::string_view right, size_t rank,
                                        const std::string& source);

std::string json_string(std::string_view text);  // as a JSON string

// {"spelling": id, ...} in the order of ids; special tokens stand for themselves.
std::string vocab_object(const Vocabulary& vocabulary, std::string_view separator);

}  // namespace flashstep::internal
