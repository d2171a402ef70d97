#include "flashstep/detail/fields.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "flashstep/base/json_depth.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"

namespace flashstep::internal {
namespace {

using Json = nlohmann::ordered_json;

// As JSON; what is no UTF-8 (a shell passes any bytes) becomes U+FFFD.
std::string text_of(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// What JSON holds in the words of a person: "the text \"4k\"", "the number 3.5".
std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::string:
      return "the text " + text_of(value);
    case Json::value_t::boolean:
      return text_of(value);
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list";
    default:
      return text_of(value);
  }
}

// "a, b", the empty one as "".
std::string list_choices(std::vector<std::string> choices, const char* separator) {
  std::replace(choices.begin(), choices.end(), std::string(), std::string("\"\""));
  return join(choices, separator);
}

std::string number(double value) {
  Json json = value;
  return json.dump();
}

template <typename T>
std::string range_text(Range<T> allowed) {
  const auto bound = [](T value) {
    if constexpr (std::is_floating_point_v<T>) return number(value);
    return str(value);
  };
  return str(bound(allowed.low), " to ", bound(allowed.high));
}

// Keeps the dotted path of the section being visited.
class PathVisitor : public FieldVisitor {
 protected:
  bool begin(const char* name, const char*) override {
    path_.emplace_back(name);
    return true;
  }
  void end() override { path_.pop_back(); }
  std::string path_of(const char* name) const {
    std::string path;
    for (const std::string& part : path_) path += part + ".";
    return path + name;
  }

  std::vector<std::string> path_;
};

// Every field and every section, with the values written as JSON.
class Lister : public PathVisitor {
 public:
  struct Entry {
    std::string path, allowed, help;
    Json value;
  };
  std::vector<Entry> fields;
  std::vector<std::string> sections;

  void field(const char* name, bool& value, const char* help) override {
    fields.push_back({path_of(name), "true or false", help, value});
  }
  void field(const char* name, int64_t& value, Range<int64_t> allowed, const char* help) override {
    fields.push_back({path_of(name), range_text(allowed), help, value});
  }
  void field(const char* name, double& value, Range<double> allowed, const char* help) override {
    fields.push_back({path_of(name), range_text(allowed), help, value});
  }
  void field(const char* name, std::string& value, const std::vector<std::string>& choices,
             const char* help) override {
    fields.push_back(
        {path_of(name), choices.empty() ? "text" : list_choices(choices, " | "), help, value});
  }
  void field(const char* name, std::vector<std::string>& value, const char* help) override {
    fields.push_back({path_of(name), "a list of texts", help, value});
  }

 protected:
  bool begin(const char* name, const char* help) override {
    sections.push_back(path_of(name));
    return PathVisitor::begin(name, help);
  }
};

// Takes values out of a JSON object; what is left in `seen` tells which keys were meant by nobody.
class Reader : public PathVisitor {
 public:
  Reader(const Json& root, std::string source) : source_(std::move(source)) {
    objects_.push_back(&root);
  }

  void field(const char* name, bool& value, const char*) override {
    const Json* json = find(name);
    if (json == nullptr) return;
    expect(json->is_boolean(), name, "true or false", *json);
    value = json->get<bool>();
  }
  void field(const char* name, int64_t& value, Range<int64_t> allowed, const char*) override {
    const Json* json = find(name);
    if (json == nullptr) return;
    const std::string expected = "a whole number from " + range_text(allowed);
    expect(json->is_number(), name, expected, *json);
    // 1e9 is how people write a big whole number; beyond 2^53 a double cannot hold every one.
    const double as_double = json->get<double>();
    expect(json->is_number_integer() ||
               (std::abs(as_double) <= 0x1.0p53 && as_double == std::floor(as_double)),
           name, expected, *json);
    expect(!json->is_number_unsigned() || json->get<uint64_t>() <= INT64_MAX, name, expected,
           *json);
    const int64_t given =
        json->is_number_integer() ? json->get<int64_t>() : static_cast<int64_t>(as_double);
    expect(given >= allowed.low && given <= allowed.high, name, expected, *json);
    value = given;
  }
  void field(const char* name, double& value, Range<double> allowed, const char*) override {
    const Json* json = find(name);
    if (json == nullptr) return;
    const std::string expected = "a number from " + range_text(allowed);
    expect(json->is_number(), name, expected, *json);
    const double given = json->get<double>();
    expect(given >= allowed.low && given <= allowed.high, name, expected, *json);
    value = given;
  }
  void field(const char* name, std::string& value, const std::vector<std::string>& choices,
             const char*) override {
    const Json* json = find(name);
    if (json == nullptr) return;
    expect(json->is_string(), name,
           choices.empty() ? "text" : "one of " + list_choices(choices, ", "), *json);
    const auto given = json->get<std::string>();
    expect(given.find('\0') == std::string::npos, name, "text without a NUL", *json);
    const bool known =
        choices.empty() || std::find(choices.begin(), choices.end(), given) != choices.end();
    if (!known) {
      const std::string meant = nearest(given, choices);
      throw UserError(str(source_, ": expected ", path_of(name), " to be one of ",
                          list_choices(choices, ", "), ", got \"", printable_utf8(given), "\"",
                          meant.empty() ? "" : str("; did you mean \"", meant, "\"?")));
    }
    value = given;
  }
  void field(const char* name, std::vector<std::string>& value, const char*) override {
    const Json* json = find(name);
    if (json == nullptr) return;
    expect(json->is_array(), name, "a list of texts", *json);
    std::vector<std::string> given;
    for (const Json& item : *json) {
      expect(item.is_string(), name, "a list of texts", item);
      given.push_back(item.get<std::string>());
    }
    value = std::move(given);
  }

 protected:
  bool begin(const char* name, const char* help) override {
    const Json* json = find(name);
    if (json == nullptr) return false;
    expect(json->is_object(), name, "an object", *json);
    objects_.push_back(json);
    return PathVisitor::begin(name, help);
  }
  void end() override {
    objects_.pop_back();
    PathVisitor::end();
  }

 private:
  const Json* find(const char* name) const {
    const auto found = objects_.back()->find(name);
    return found == objects_.back()->end() ? nullptr : &*found;
  }
  void expect(bool condition, const char* name, const std::string& expected,
              const Json& got) const {
    require(condition, source_, ": expected ", path_of(name), " to be ", expected, ", got ",
            describe(got));
  }

  std::string source_;
  std::vector<const Json*> objects_;
};

// The last part of a dotted path, and everything before it.
std::pair<std::string, std::string> split_path(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

Lister list(Visitable& config) {
  Lister lister;
  config.visit(lister);
  return lister;
}

[[noreturn]] void refuse_unknown(const Lister& known, const std::string& path,
                                 const std::string& source) {
  std::vector<std::string> paths = known.sections, siblings, with_same_name;
  for (const auto& entry : known.fields) paths.push_back(entry.path);
  const auto [section, name] = split_path(path);
  for (const std::string& candidate : paths) {
    const auto [candidate_section, candidate_name] = split_path(candidate);
    if (candidate_section == section) siblings.push_back(candidate_name);
    if (candidate_name == name) with_same_name.push_back(candidate);
  }
  // The same name in another section is likelier meant than a similar one in this.
  std::string meant = with_same_name.empty() ? nearest(name, siblings) : with_same_name.front();
  if (!meant.empty() && with_same_name.empty() && !section.empty()) meant = section + "." + meant;
  if (!meant.empty()) {
    std::string allowed;
    for (const auto& entry : known.fields) {
      if (entry.path == meant) allowed = " (" + entry.allowed + ")";
    }
    throw UserError(str(source, ": unknown key \"", printable_utf8(path), "\"; did you mean \"",
                        meant, "\"", allowed, "?"));
  }
  throw UserError(str(source, ": unknown key \"", printable_utf8(path), "\"; expected one of ",
                      join(siblings.empty() ? known.sections : siblings)));
}

void refuse_unknown_keys(const Lister& known, const Json& object, const std::string& prefix,
                         const std::string& source) {
  for (const auto& [key, value] : object.items()) {
    const std::string path = prefix + key;
    const auto is_path = [&](const auto& entry) { return entry.path == path; };
    if (std::any_of(known.fields.begin(), known.fields.end(), is_path)) continue;
    const bool is_section =
        std::find(known.sections.begin(), known.sections.end(), path) != known.sections.end();
    if (!is_section) refuse_unknown(known, path, source);
    if (value.is_object()) refuse_unknown_keys(known, value, path + ".", source);
  }
}

// Nesting deeper than any configuration has is refused before it can exhaust the stack.
constexpr int kMaxDepth = 32;

Json parse(const std::string& text, const std::string& source) {
  // The library takes one for the end of the text.
  require(text.find('\0') == std::string::npos, source, ": expected JSON, got a zero byte");
  std::vector<std::set<std::string>> keys_by_depth;  // of the objects being read
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    require(depth <= kMaxDepth, source, ": expected JSON nested at most ", kMaxDepth, " deep");
    if (event == Json::parse_event_t::object_start) keys_by_depth.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_by_depth.pop_back();
    if (event == Json::parse_event_t::key) {
      const bool is_new = keys_by_depth.back().insert(parsed.get<std::string>()).second;
      require(is_new, source, ": the key ", parsed.dump(), " stands twice");
    }
    return true;
  };
  try {
    return Json::parse(text, watch, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const Json::exception& error) {
    // "parse error at line 2, column 12: syntax error ..."
    std::string complaint = json_complaint(error.what());
    constexpr std::string_view kWhere = "parse error";
    if (complaint.starts_with(kWhere)) complaint.replace(0, kWhere.size(), "a mistake");
    throw UserError(str(source, ": expected JSON, got ", printable_utf8(complaint)));
  }
}

void apply(Visitable& config, const Json& root, const std::string& source) {
  require(root.is_object(), source, ": expected a JSON object, got ", describe(root));
  refuse_unknown_keys(list(config), root, "", source);
  Reader reader(root, source);
  config.visit(reader);
}

}  // namespace

void read_json(Visitable& config, const std::string& json, const std::string& source) {
  apply(config, parse(json, source), source);
}

std::string write_json(Visitable& config) {
  Json root = Json::object();
  for (const auto& entry : list(config).fields) {
    Json* object = &root;
    std::string rest = entry.path;
    for (size_t dot; (dot = rest.find('.')) != std::string::npos; rest = rest.substr(dot + 1)) {
      object = &(*object)[rest.substr(0, dot)];
    }
    (*object)[rest] = entry.value;
  }
  return root.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

void set_field(Visitable& config, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  require(equals != std::string::npos && equals > 0, "--set: expected a.b=value, got \"",
          printable_utf8(assignment), "\"");
  const std::string path = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  const std::string source = "--set " + path;
  const Lister known = list(config);
  const auto entry = std::find_if(known.fields.begin(), known.fields.end(),
                                  [&](const auto& field) { return field.path == path; });
  const auto& sections = known.sections;
  require(std::find(sections.begin(), sections.end(), path) == sections.end(),
          "--set: expected a field of ", path, " (", path, ".NAME=value), got ", path, " itself");
  if (entry == known.fields.end()) refuse_unknown(known, path, "--set");
  Json value = entry->value.is_string() ? Json(text)
                                        : Json::parse(text, nullptr, /*allow_exceptions=*/false);
  // Unquoted text where JSON was expected: keep it, so that the message can show it.
  if (value.is_discarded()) value = text;
  std::string rest = path;
  for (size_t dot; (dot = rest.rfind('.')) != std::string::npos; rest = rest.substr(0, dot)) {
    value = Json{{rest.substr(dot + 1), value}};
  }
  apply(config, Json{{rest, value}}, source);
}

std::string describe_fields(Visitable& config) {
  const Lister known = list(config);
  size_t width = 0;
  for (const auto& entry : known.fields) width = std::max(width, entry.path.size());
  std::string out;
  for (const auto& entry : known.fields) {
    out += "  " + entry.path + std::string(width + 2 - entry.path.size(), ' ') + entry.help + "\n" +
           std::string(width + 4, ' ') + "(" + entry.allowed + "; default " + text_of(entry.value) +
           ")\n";
  }
  return out;
}

std::vector<std::string> field_paths(Visitable& config) {
  std::vector<std::string> paths;
  for (const auto& entry : list(config).fields) paths.push_back(entry.path);
  return paths;
}

}  // namespace flashstep::internal
