#include "apps/usage.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "flashstep/base/text.h"

namespace flashstep::apps {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

// A mistyped command, at any depth, gets the nearest one; empty if all are known.
std::string unknown_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* parent = &app;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const std::vector<std::string> names = command_names(*parent);
    if (names.empty()) return "";
    const auto found = std::find(names.begin(), names.end(), argv[i]);
    if (found == names.end()) {
      const std::string meant = nearest(argv[i], names);
      return str(
          "unknown command \"", argv[i], "\"; ",
          meant.empty() ? "expected one of " + join(names) : "did you mean \"" + meant + "\"?");
    }
    parent = parent->get_subcommand(*found);
  }
  return "";
}

// The command that was being read when the error came.
const CLI::App& innermost(const CLI::App& app) {
  const auto commands = app.get_subcommands();  // those that were given
  return commands.empty() ? app : innermost(*commands.back());
}

// What stands between `before` and `after` in `text`; empty if they do not.
std::string between(const std::string& text, std::string_view before, std::string_view after) {
  const size_t begin = text.find(before);
  if (begin == std::string::npos) return "";
  const size_t from = begin + before.size(),
               end = after.empty() ? text.size() : text.find(after, from);
  return end == std::string::npos ? "" : text.substr(from, end - from);
}

// "INT in [1 - 4294967296]", as CLI11 describes a range, as " from 1 to 4294967296".
std::string described_range(const std::string& description) {
  const std::string low = between(description, " in [", " - "),
                    high = between(description, " - ", "]");
  constexpr double kAnyNumber = 0x1p53;  // beyond it a limit is that of the number's type
  const bool has_high = std::strtod(high.c_str(), nullptr) < kAnyNumber;
  return str(" from ", low, has_high ? " to " + high : " on");
}

// CLI11's words for a value out of a range: got() finds the value in them.
std::string not_in_range(const std::string& given, const char* range) {
  return str("Value ", given, " not in range ", range);
}

constexpr const char* kOf64Bits = "of whole numbers of 64 bits";

// "010" is ten, as scripts that count with zeros in front mean it, and not octal.
void forget_leading_zeros(std::string& given) {
  const size_t begin = given.starts_with('-') || given.starts_with('+') ? 1 : 0;
  if (given.find_first_not_of("0123456789", begin) != std::string::npos) return;
  const size_t first = std::min(given.find_first_not_of('0', begin), given.size() - 1);
  if (first > begin && given.size() > begin + 1) given.erase(begin, first - begin);
}

// What is no number at all is left to the parser.
std::string refuse_beyond_signed(std::string& given) {
  forget_leading_zeros(given);
  errno = 0;
  std::strtoll(given.c_str(), nullptr, 0);
  return errno == ERANGE ? not_in_range(given, kOf64Bits) : "";
}

std::string refuse_beyond_unsigned(std::string& given) {
  forget_leading_zeros(given);
  errno = 0;
  std::strtoull(given.c_str(), nullptr, 0);
  if (given.starts_with('-')) return not_in_range(given, "from 0 on");
  return errno == ERANGE ? not_in_range(given, kOf64Bits) : "";
}

std::string refuse_infinite(std::string& given) {
  return std::isfinite(std::strtod(given.c_str(), nullptr)) ? ""
                                                            : not_in_range(given, "of numbers");
}

// "" where a path or a name belongs is a script's variable that was not set.
std::string refuse_empty(std::string& given) { return given.empty() ? "value missing" : ""; }

// Options for which it means something say so in their help.
bool takes_empty_text(const CLI::Option& option) {
  const std::string name = option.get_name();
  return option.get_description().find("empty:") != std::string::npos || name == "--stop" ||
         name == "--title" || name == "COMMAND";  // another program's words
}

// What the option takes: "one of cpu, cuda", "a whole number from 1 to 10".
std::string expected_by(const CLI::Option& option) {
  const std::string type = option.get_type_name();  // "TEXT:{cpu,cuda}", "INT:INT in [1 - 10]"
  const std::string choices = between(type, "{", "}");
  if (!choices.empty()) {
    std::string listed = "one of ";
    for (const char c : choices) listed += c == ',' ? std::string(", ") : std::string(1, c);
    return listed;
  }
  const bool is_whole = type.starts_with("INT") || type.starts_with("UINT");
  if (!is_whole && !type.starts_with("FLOAT")) return "a value";
  const std::string number = is_whole ? "a whole number" : "a number";
  if (type.find(" in [") != std::string::npos) return number + described_range(type);
  if (type.find(":POSITIVE") != std::string::npos) return number + " above 0";
  const bool from_zero = type.find(":NONNEGATIVE") != std::string::npos;
  return from_zero || type.starts_with("UINT") ? number + " from 0 on" : number;
}

// The option of `app`, or of a command that was given, whose name begins `what` or follows a colon
// in it ("--device: tpu not in {cpu,cuda}", "Could not convert: --top = x"); null if there is none.
const CLI::Option* option_in(const CLI::App& app, const std::string& what) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (what.starts_with(name + ":") || what.starts_with(name + " ") ||
        what.find(": " + name + " = ") != std::string::npos) {
      return option;
    }
  }
  for (const CLI::App* command : app.get_subcommands()) {
    if (const CLI::Option* option = option_in(*command, what)) return option;
  }
  return nullptr;
}

// What was given to `option`, by the library's own sentence; empty where it does not say.
std::string got(const CLI::Option& option, const std::string& what) {
  for (const auto& [before, after] :
       {std::pair<std::string, const char*>{"Value ", " not in range "},
        {option.get_name() + ": ", " not in {"},
        {" " + option.get_name() + " = ", ""}}) {
    const std::string found = between(what, before, after);
    if (!found.empty()) return found;
  }
  return "";
}

// What `option` takes, and the limit of its type where that is why a number was refused.
std::string expected_instead(const CLI::Option& option, const std::string& what) {
  const std::string expected = expected_by(option);
  const bool has_limit = !expected.ends_with("a whole number") && !expected.ends_with(" on");
  const std::string given = got(option, what);
  if (has_limit || given.find_first_not_of("-0123456789") != std::string::npos) return expected;
  if (what.ends_with(kOf64Bits)) return expected + " that 64 bits hold";
  return what.starts_with("Could not convert") ? expected + " that 32 bits hold" : expected;
}

bool is_option(const std::string& word) { return word.starts_with("-"); }

bool has_unknown_option(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  return std::any_of(extras.begin(), extras.end(), is_option);
}

constexpr char kHidingBracket = '\x1f';

void show_bracket(std::string& word) {
  if (word.ends_with(kHidingBracket)) word.pop_back();
}

std::string unexpected_argument(const CLI::App& command, const CLI::App& app) {
  std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  std::erase(extras, "--");  // by itself: what should follow it is what is missing
  std::ranges::for_each(extras, show_bracket);
  if (extras.empty()) return "";
  // The words of an unknown option's value come along: the option is what is to be named.
  const auto first = std::find_if(extras.begin(), extras.end(), is_option);
  const std::string& word = first == extras.end() ? extras.front() : *first;
  if (!is_option(word)) {
    return str("expected no further argument of ", command.get_name(), ", got ", word);
  }
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::string meant = nearest(word.substr(0, word.find('=')), names);
  return str("expected an option of ", command.get_name(), ", got ", word,
             meant.empty() ? " (see --help)" : "; did you mean " + meant + "?");
}

// A value that is missing or none of those allowed.
std::string wrong_value(const CLI::App& app, const std::string& what) {
  const CLI::Option* option = option_in(app, what);
  if (option == nullptr) return "";
  const std::string name = option->get_name(), given = got(*option, what);
  if (!given.empty()) {
    const std::string expected = expected_instead(*option, what);
    const bool are_numbers = option->get_delimiter() != '\0' && !expected.starts_with("one of");
    return str("expected ", name, " to be ", expected,
               are_numbers ? ", or several with commas" : "", ", got ", given);
  }
  if (what == name + " is required") return str("expected ", name, ", got none (see --help)");
  if (what.ends_with(" missing")) {
    return str("expected ", expected_by(*option), " after ", name, ", got nothing");
  }
  const std::string times = between(what, name + ": At Most 1 required but received ", "");
  if (!times.empty()) return str("expected ", name, " once, got it ", times, " times");
  for (const auto& [word, sentence] : {std::pair{" excludes ", "expected one of "},
                                       std::pair{" requires ", "expected both or none of "}}) {
    const std::string other = between(what, name + word, "");
    if (!other.empty()) return str(sentence, name, " and ", other);
  }
  return "";
}

}  // namespace

std::vector<std::string> words_to_parse(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::string& word : words)
    if (word.ends_with(']') || word.ends_with(kHidingBracket)) word += kHidingBracket;
  std::ranges::reverse(words);
  return words;
}

void refuse_impossible_values(CLI::App& app) {
  const auto first = [](CLI::Option* option, std::string (*refuse)(std::string&)) {
    option->transform(CLI::Validator([refuse](std::string& given) { return refuse(given); }, ""));
  };
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("INT")) first(option, refuse_beyond_signed);
    if (type.starts_with("UINT")) first(option, refuse_beyond_unsigned);
    if (type.starts_with("FLOAT")) first(option, refuse_infinite);
    if (type.starts_with("TEXT") && !takes_empty_text(*option)) first(option, refuse_empty);
    if (option->get_items_expected_max() > 0) {
      first(option, [](std::string& given) {
        show_bracket(given);
        return std::string();
      });
    }
  }
  for (CLI::App* command : app.get_subcommands(nullptr)) refuse_impossible_values(*command);
}

std::string usage_mistake(const CLI::App& app, int argc, char** argv,
                          const CLI::ParseError& error) {
  const std::string what = error.what();
  const CLI::App& command = innermost(app);
  std::string sentence = unknown_command(app, argc, argv);
  // A mistyped option is likelier than a forgotten one.
  const bool is_incomplete = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (sentence.empty() && (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                           (is_incomplete && has_unknown_option(app)))) {
    sentence = unexpected_argument(command, app);
  }
  if (sentence.empty() && what.starts_with("A subcommand")) {
    sentence = str("expected a command after ", command.get_name(), ", one of ",
                   join(command_names(command)), "; got none");
  }
  if (sentence.empty()) sentence = wrong_value(app, what);
  return sentence.empty() ? str(what, " (see --help)") : sentence;
}

}  // namespace flashstep::apps
