// Hugging Face's tokenizer.json: only what means exactly our tokenization is let in.
#include <algorithm>

#include "flashstep/error.h"
#include "flashstep/tokenizer.h"
#include "flashstep/tokenizer/byte_alphabet.h"
#include "flashstep/tokenizer/json_text.h"

namespace flashstep {
namespace {

using internal::member;
using nlohmann::json;

// A short name of a part of the file, for messages: its type where it has one.
std::string name_of(const json& part) {
  const json& type = member(part, "type");
  if (type.is_string()) return type.get<std::string>();
  const std::string text = part.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

// Refuses a value other than null, false, 0 or "".
void refuse(const json& object, const char* key, const std::string& source) {
  const json& value = member(object, key);
  const bool is_unset = value.is_null() || value == false || value == 0.0 || value == "";
  require(is_unset, "[", source, "] expected byte-level BPE as GPT-2's, without ", key, "; got ",
          name_of(value));
}

// As Llama 3's and Qwen 2's files have it.
std::string gpt4_regex(bool split_digits) {
  return str(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})",
             split_digits ? "" : "{1,3}", R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
}

bool is_split_by(const json& part, const std::string& regex) {
  return member(part, "type") == "Split" && member(member(part, "pattern"), "Regex") == regex &&
         member(part, "behavior") == "Isolated" &&
         (member(part, "invert").is_null() || member(part, "invert") == false);
}

// ByteLevel, which finds GPT-2's words, or a sequence of that and what splits digits first; or a
// sequence of what finds GPT-4's words and ByteLevel, which does not look for any then.
void read_pre_tokenizer(const json& pre_tokenizer, const std::string& source,
                        Vocabulary& vocabulary) {
  const bool is_sequence = member(pre_tokenizer, "type") == "Sequence";
  const json& parts = member(pre_tokenizer, "pretokenizers");
  if (is_sequence) {
    const json& first = parts.is_array() && parts.size() == 2 ? parts[0] : parts;
    const json& pattern = member(first, "pattern");
    const bool splits_digits =
        member(first, "type") == "Digits" && member(first, "individual_digits") == true;
    vocabulary.split_digits = splits_digits || is_split_by(first, gpt4_regex(true));
    const bool is_gpt4 = is_split_by(first, gpt4_regex(vocabulary.split_digits));
    if (is_gpt4) vocabulary.pattern = WordPattern::kGpt4;
    require(
        is_gpt4 || splits_digits, "[", source,
        "] expected the pre_tokenizer ByteLevel, or a Sequence of Digits with individual_digits, ",
        "or of a Split into GPT-4's words (with \\p{N}{1,3} or \\p{N}), and ByteLevel, got ",
        name_of(pattern.is_null() ? first : pattern));
  }
  const json& byte_level = is_sequence ? parts[1] : pre_tokenizer;
  require(member(byte_level, "type") == "ByteLevel", "[", source,
          "] expected the pre_tokenizer ByteLevel, got ", name_of(byte_level));
  refuse(byte_level, "add_prefix_space", source);
  const json& use_regex = member(byte_level, "use_regex");
  if (vocabulary.pattern == WordPattern::kGpt4) {
    require(use_regex == false, "[", source,
            "] expected a ByteLevel pre_tokenizer without use_regex behind a Split");
  } else {
    require(use_regex.is_null() || use_regex == true, "[", source,
            "] expected a ByteLevel pre_tokenizer with use_regex");
  }
}

// [{"SpecialToken": {"id": bos}}, {"Sequence": {"id": "A"}}]: the id of a token before each text.
uint32_t token_before(const json& processor, const std::string& source) {
  const json& single = member(processor, "single");
  const bool is_pair = single.is_array() && single.size() == 2;
  const json& token = is_pair ? member(member(single[0], "SpecialToken"), "id") : single;
  const json& ids = token.is_string() ? member(member(member(processor, "special_tokens"),
                                                      token.get_ref<const std::string&>().c_str()),
                                               "ids")
                                      : token;
  require(is_pair && member(member(single[1], "Sequence"), "id") == "A" && ids.is_array() &&
              ids.size() == 1 && ids[0].is_number_unsigned() && ids[0].get<uint64_t>() < 0xFFFFFFFF,
          "[", source, "] expected the post_processor TemplateProcessing to put one special token ",
          "before a text, got ", name_of(single));
  return ids[0].get<uint32_t>();
}

// ByteLevel changes offsets, not ids.
void read_post_processor(const json& processor, const std::string& source, Vocabulary& vocabulary) {
  if (processor.is_null() || member(processor, "type") == "ByteLevel") return;
  if (member(processor, "type") == "TemplateProcessing") {
    require(!vocabulary.bos_id, "[", source, "] expected one TemplateProcessing, got two");
    vocabulary.bos_id = token_before(processor, source);
    return;
  }
  const json& parts = member(processor, "processors");
  require(member(processor, "type") == "Sequence" && parts.is_array() && parts.size() <= 2, "[",
          source, "] expected no post_processor but ByteLevel and TemplateProcessing, got ",
          name_of(processor));
  for (const json& part : parts) {
    require(member(part, "type") != "Sequence", "[", source,
            "] expected no Sequence within a Sequence of post_processors");
    read_post_processor(part, source, vocabulary);
  }
}

void check_kind(const json& file, const std::string& source) {
  require(file.is_object(), "[", source, "] expected a tokenizer.json, got no JSON object");
  const json& model = member(file, "model");
  require(model.is_object(), "[", source, "] expected a tokenizer.json with a \"model\"");
  require(member(model, "type").is_null() || member(model, "type") == "BPE", "[", source,
          "] expected a model of type BPE, got ", name_of(model));
  for (const char* key : {"normalizer", "truncation", "padding"}) refuse(file, key, source);
  for (const char* key :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
    refuse(model, key, source);
  }
  const json& decoder = member(file, "decoder");
  require(decoder.is_null() || member(decoder, "type") == "ByteLevel", "[", source,
          "] expected no decoder but ByteLevel, got ", name_of(decoder));
}

bool read_ignore_merges(const json& model, const std::string& source) {
  const json& value = member(model, "ignore_merges");
  require(value.is_null() || value.is_boolean(), "[", source,
          "] expected ignore_merges to be true or false, got ", name_of(value));
  return value == true;
}

// Whether a text may hold both, `inner` from within `outer` on. From its beginning the longer one
// is taken anyway.
bool begins_within(std::string_view inner, std::string_view outer) {
  for (size_t at = inner.size() > outer.size() ? 1 : 0; at < outer.size(); ++at) {
    const size_t common = std::min(inner.size(), outer.size() - at);
    if (outer.substr(at, common) == inner.substr(0, common)) return true;
  }
  return false;
}

// Tokens that are "normalized" are looked for in what the others leave, ours all at once.
void refuse_overlaps(const json& added, const std::string& source) {
  std::vector<std::string> normalized, others;
  for (const json& token : added) {
    auto& list = member(token, "normalized") == true ? normalized : others;
    list.push_back(member(token, "content").get<std::string>());
  }
  for (const std::string& later : normalized) {
    for (const std::string& earlier : others) {
      require(!begins_within(earlier, later), "[", source, "] expected added_tokens of which none ",
              "that is \"normalized\" overlaps another, got \"", later, "\" and \"", earlier, "\"");
    }
  }
}

std::unordered_map<uint32_t, std::string> read_added_tokens(const json& added,
                                                            const std::string& source) {
  std::unordered_map<uint32_t, std::string> tokens;
  if (added.is_null()) return tokens;
  require(added.is_array(), "[", source, "] expected added_tokens to be a list");
  for (const json& token : added) {
    const json& id = member(token, "id");
    const json& content = member(token, "content");
    require(id.is_number_unsigned() && id.get<uint64_t>() < 0xFFFFFFFF && content.is_string(), "[",
            source, "] expected an id and a content in each of added_tokens");
    for (const char* key : {"single_word", "lstrip", "rstrip"}) refuse(token, key, source);
    require(tokens.emplace(id.get<uint32_t>(), content.get<std::string>()).second, "[", source,
            "] added_tokens name id ", id.get<uint64_t>(), " twice");
  }
  refuse_overlaps(added, source);
  return tokens;
}

// ["a", "b"], or the older "a b".
std::pair<std::string, std::string> split_merge(const json& merge, size_t rank,
                                                const std::string& source) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  const std::string text = merge.is_string() ? merge.get<std::string>() : "";
  const size_t space = text.find(' ');
  require(space != std::string::npos && space == text.rfind(' '), "[", source, "] expected merge ",
          rank, " to be two tokens, got ", name_of(merge));
  return {text.substr(0, space), text.substr(space + 1)};
}

// Its ids of unknown bytes would be in the way of merges.
void refuse_unknown_token(const json& model, const std::string& source) {
  const json& unknown = member(model, "unk_token");
  require(unknown.is_null(), "[", source,
          "] expected a token for each of the 256 bytes, or no unk_token, got some bytes without ",
          "one, and ", name_of(unknown));
}

}  // namespace

Vocabulary parse_tokenizer_json(std::string_view text, const std::string& source) {
  const json file = internal::parse_json(text, source);
  check_kind(file, source);
  Vocabulary vocabulary;
  read_pre_tokenizer(member(file, "pre_tokenizer"), source, vocabulary);
  read_post_processor(member(file, "post_processor"), source, vocabulary);
  vocabulary.ignore_merges = read_ignore_merges(file["model"], source);
  const json& added_tokens = member(file, "added_tokens");
  const auto added = read_added_tokens(added_tokens, source);
  for (const json& token : added_tokens)
    if (member(token, "special") == false) vocabulary.shown_ids.push_back(token["id"]);
  std::ranges::sort(vocabulary.shown_ids);
  const auto spellings = internal::spellings_by_id(member(file["model"], "vocab"), added, source);
  int single_bytes = 0;
  for (uint32_t id = 0; id < spellings.size(); ++id) {
    if (added.count(id) == 1) {
      vocabulary.tokens.push_back(spellings[id]);
      vocabulary.special_ids.push_back(id);
      continue;
    }
    const auto bytes = unspell(spellings[id]);
    require(bytes.has_value(), "[", source,
            "] expected tokens spelled in GPT-2's byte alphabet, got \"", spellings[id], "\"");
    vocabulary.tokens.push_back(*bytes);
    single_bytes += bytes->size() == 1 ? 1 : 0;
  }
  vocabulary.lacks_bytes = single_bytes < 256;
  if (vocabulary.lacks_bytes) refuse_unknown_token(file["model"], source);
  const auto ids = internal::ids_by_spelling(spellings);
  const json& merges = member(file["model"], "merges");
  require(merges.is_array(), "[", source, "] expected the model's merges to be a list");
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto [left, right] = split_merge(merges[rank], rank, source);
    vocabulary.merges.push_back(internal::merge_ids(ids, left, right, rank, source));
  }
  check_vocabulary(vocabulary, source);
  return vocabulary;
}

namespace {

std::string byte_level_json(bool trim_offsets, bool use_regex) {
  return str("{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": ",
             trim_offsets ? "true" : "false", ", \"use_regex\": ", use_regex ? "true" : "false",
             "}");
}

std::string pre_tokenizer_json(const Vocabulary& vocabulary) {
  const bool is_gpt4 = vocabulary.pattern == WordPattern::kGpt4;
  const std::string byte_level = byte_level_json(true, /*use_regex=*/!is_gpt4);
  if (!is_gpt4 && !vocabulary.split_digits) return byte_level;
  const std::string first = is_gpt4
                                ? str("{\"type\": \"Split\", \"pattern\": {\"Regex\": ",
                                      internal::json_string(gpt4_regex(vocabulary.split_digits)),
                                      "}, \"behavior\": \"Isolated\", \"invert\": false}")
                                : "{\"type\": \"Digits\", \"individual_digits\": true}";
  return str("{\"type\": \"Sequence\", \"pretokenizers\": [", first, ", ", byte_level, "]}");
}

std::string post_processor_json(const Vocabulary& vocabulary) {
  const std::string byte_level = byte_level_json(/*trim_offsets=*/false, true);
  if (!vocabulary.bos_id) return byte_level;
  const std::string bos = internal::json_string(vocabulary.tokens[*vocabulary.bos_id]);
  const auto text = [&](const char* sequence, int type) {
    return str("{\"SpecialToken\": {\"id\": ", bos, ", \"type_id\": ", type,
               "}}, {\"Sequence\": {\"id\": \"", sequence, "\", \"type_id\": ", type, "}}");
  };
  return str("{\"type\": \"Sequence\", \"processors\": [", byte_level,
             ", {\"type\": \"TemplateProcessing\", \"single\": [", text("A", 0), "], \"pair\": [",
             text("A", 0), ", ", text("B", 1), "], \"special_tokens\": {", bos, ": {\"id\": ", bos,
             ", \"ids\": [", *vocabulary.bos_id, "], \"tokens\": [", bos, "]}}}]}");
}

}  // namespace

std::string tokenizer_json(const Vocabulary& vocabulary) {
  std::string out = "{\n\"version\": \"1.0\",\n\"truncation\": null,\n\"padding\": null,\n";
  out += "\"added_tokens\": [";
  for (const uint32_t id : vocabulary.special_ids) {
    out += str(id == vocabulary.special_ids[0] ? "\n" : ",\n", "{\"id\": ", id,
               ", \"content\": ", internal::json_string(vocabulary.tokens[id]),
               ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, ",
               "\"normalized\": false, \"special\": ",
               std::ranges::binary_search(vocabulary.shown_ids, id) ? "false}" : "true}");
  }
  out += "],\n\"normalizer\": null,\n";
  out +=
      str("\"pre_tokenizer\": ", pre_tokenizer_json(vocabulary),
          ",\n\"post_processor\": ", post_processor_json(vocabulary),
          ",\n\"decoder\": ", byte_level_json(true, true), ",\n",
          "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
          "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
          "\"byte_fallback\": false, \"ignore_merges\": ",
          vocabulary.ignore_merges ? "true" : "false", ",\n\"vocab\": ");
  out += internal::vocab_object(vocabulary, "\n") + ",\n\"merges\": [";
  for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const auto& [left, right] = vocabulary.merges[rank];
    out += str(rank == 0 ? "\n[" : ",\n[", internal::json_string(spell(vocabulary.tokens[left])),
               ", ", internal::json_string(spell(vocabulary.tokens[right])), "]");
  }
  return out + "]}\n}\n";
}

}  // namespace flashstep
