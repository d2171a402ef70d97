#include "flashstep/train/checkpoint_state.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "flashstep/base/hash.h"
#include "flashstep/base/json_depth.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kFormat = "flashstep checkpoint";
constexpr int64_t kVersion = 1;
constexpr std::string_view kBeforeHash = "{\n  \"xxh3_128\": \"";
constexpr std::string_view kAfterHash = "\",\n";
constexpr size_t kHashDigits = 32;
constexpr size_t kMaxBytes = 64 << 20;  // a config and some counters; far above any honest file

OrderedJson parse_object(std::string_view text, const std::string& source) {
  require(json_depth(text) <= kMaxJsonDepth, source, ": expected at most ", kMaxJsonDepth,
          " nested values, got more");
  OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  require(json.is_object(), source, ": expected a JSON object, got other text");
  return json;
}

const OrderedJson& member(const OrderedJson& object, const char* key,
                          bool (OrderedJson::*is_type)() const noexcept, const char* type,
                          const std::string& source) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  require(object.is_object() && found != object.end(), source, ": expected the key \"", key,
          "\", got none");
  require(((*found).*is_type)(), source, ": expected ", type, " for \"", key, "\", got ",
          found->type_name());
  return *found;
}

std::string text_member(const OrderedJson& object, const char* key, const std::string& source) {
  return member(object, key, &OrderedJson::is_string, "text", source).get<std::string>();
}

int64_t count_member(const OrderedJson& object, const char* key, const std::string& source) {
  const auto value =
      member(object, key, &OrderedJson::is_number_unsigned, "a whole number of at least 0", source)
          .get<uint64_t>();
  require(value <= static_cast<uint64_t>(INT64_MAX), source,
          ": expected a number of 63 bits for \"", key, "\", got ", value);
  return static_cast<int64_t>(value);
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
         });
}

CheckpointFile read_file_record(const OrderedJson& json, const std::string& source) {
  CheckpointFile file;
  file.name = text_member(json, "name", source);
  file.part = text_member(json, "part", source);
  file.size_bytes = static_cast<uint64_t>(count_member(json, "size_bytes", source));
  file.hash = text_member(json, "xxh3_128", source);
  require(is_plain_name(file.name), source,
          ": expected a file's name of letters, digits and ._-, got \"", file.name, "\"");
  require(file.part == "model" || file.part == "optimizer", source,
          ": expected a file's part to be model or optimizer, got \"", file.part, "\"");
  return file;
}

// The JSON from its second line on, whose hash the first line holds.
std::string_view checked_body(std::string_view bytes, const std::string& source) {
  const size_t body = kBeforeHash.size() + kHashDigits + kAfterHash.size();
  require(bytes.size() <= kMaxBytes, source, ": expected at most ", kMaxBytes, " bytes, got ",
          bytes.size());
  require(bytes.size() > body && bytes.substr(0, kBeforeHash.size()) == kBeforeHash &&
              bytes.substr(body - kAfterHash.size(), kAfterHash.size()) == kAfterHash,
          source, ": expected a checkpoint's state that begins with its xxh3_128, got other bytes");
  const std::string_view written = bytes.substr(kBeforeHash.size(), kHashDigits);
  const std::string computed = hash_bytes(bytes.substr(body));
  require(written == computed, source, ": expected contents with the hash ",
          printable_utf8(written), ", got ", computed);
  return bytes.substr(body);
}

}  // namespace

std::string format_checkpoint_state(const CheckpointState& state) {
  OrderedJson files = OrderedJson::array();
  for (const CheckpointFile& file : state.files) {
    files.push_back({{"name", file.name},
                     {"part", file.part},
                     {"size_bytes", file.size_bytes},
                     {"xxh3_128", file.hash}});
  }
  const OrderedJson json = {
      {"format", kFormat},
      {"version", kVersion},
      {"step", state.step},
      {"files", files},
      {"state", parse_object(state.state_json, "[checkpoint] the trainer's state")}};
  const std::string body =
      json.dump(2).substr(2) + "\n";  // without "{\n", which stands before the hash
  return str(kBeforeHash, hash_bytes(body), kAfterHash, body);
}

CheckpointState parse_checkpoint_state(std::string_view bytes, const std::string& source) {
  const std::string where = "[checkpoint] " + source;
  const OrderedJson json = parse_object(str("{", checked_body(bytes, where)), where);
  require(text_member(json, "format", where) == kFormat, where, ": expected the format \"", kFormat,
          "\", got another");
  const int64_t version = count_member(json, "version", where);
  require(version == kVersion, where, ": expected version ", kVersion, ", got ", version,
          version > kVersion ? " (written by a later flashstep)" : "");

  CheckpointState state;
  state.step = count_member(json, "step", where);
  std::set<std::string> names = {"state.json"};
  for (const OrderedJson& file : member(json, "files", &OrderedJson::is_array, "an array", where)) {
    state.files.push_back(read_file_record(file, where));
    require(names.insert(state.files.back().name).second, where,
            ": expected every file once, got \"", state.files.back().name, "\" again");
  }
  state.state_json = member(json, "state", &OrderedJson::is_object, "an object", where).dump();
  return state;
}

}  // namespace flashstep
