#include "flashstep/data/stories_compile.h"

#include <algorithm>
#include <cctype>
#include <deque>
#include <optional>

#include "flashstep/data/stories_text.h"

namespace flashstep {
namespace {

constexpr std::string_view kRoleLetters = "HFGNX";
constexpr std::string_view kFormNames[] = {"",        "'s",   "he",  "him",    "his",
                                           "himself", "kind", "kin", "sibling"};

// Texts live as long as the program does: ops and the generator hold views of them.
std::string_view keep(std::string text) {
  static std::deque<std::string> kept;
  return kept.emplace_back(std::move(text));
}

std::string lower_first(std::string_view text) {
  std::string lowered(text);
  if (!lowered.empty()) lowered[0] = static_cast<char>(std::tolower(lowered[0]));
  return lowered;
}

// "{... {inner} ...}": the position of the brace that closes the one at `open`.
size_t closing_brace(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) return i;
  }
  check_text(false, "unclosed brace in ", text);
  return 0;
}

std::optional<uint8_t> form_number(std::string_view name) {
  const auto* found = std::find(std::begin(kFormNames), std::end(kFormNames), name);
  if (found == std::end(kFormNames)) return std::nullopt;
  return static_cast<uint8_t>(found - std::begin(kFormNames));
}

// "H", "H's", "he" (the hero), "fhe", "gkin", "F/him": who in which form.
std::optional<Op> compile_role(std::string_view slot) {
  const std::string lower = lower_first(slot);
  Op op;
  op.kind = Op::kRole;
  op.capital = std::isupper(static_cast<unsigned char>(slot[0]));
  const size_t letter = kRoleLetters.find(slot[0]);
  const bool named = letter != std::string_view::npos;
  if (named && slot.size() > 2 && slot[1] == '/') {
    const auto form = form_number(lower_first(slot.substr(2)));
    check_text(form.has_value(), "no such pronoun: ", slot);
    op.kind = Op::kClearRole;
    op.role = static_cast<uint8_t>(letter);
    op.capital = std::isupper(static_cast<unsigned char>(slot[2]));
    op.form.fill(*form);
    return op;
  }
  if (named && (slot.size() == 1 || slot.substr(1) == "'s")) {
    op.role = static_cast<uint8_t>(letter);
    op.form.fill(slot.size() == 1 ? kName : kNames);
    return op;
  }
  if (const auto form = form_number(lower); form && *form >= kHe) {
    op.form.fill(*form);
    return op;
  }
  const size_t prefix = std::string_view("_fgnx").find(lower[0]);
  if (prefix == std::string_view::npos || prefix == 0) return std::nullopt;
  const auto form = form_number(std::string_view(lower).substr(1));
  if (!form || *form < kHe) return std::nullopt;
  op.role = static_cast<uint8_t>(prefix);
  op.form.fill(*form);
  return op;
}

// Cuts at '|' outside of inner braces.
std::vector<std::string_view> split_alternatives(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t start = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size()) depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (i < text.size() && (text[i] != '|' || depth != 0)) continue;
    parts.push_back(text.substr(start, i - start));
    start = i + 1;
  }
  return parts;
}

template <typename Find>
ByWorld find_by_world(std::string_view name, Find find) {
  const int both = find(std::string(name));
  const int child = both >= 0 ? both : find(std::string(name) + ".child");
  const int animal = both >= 0 ? both : find(std::string(name) + ".animal");
  return {child < 0 ? kNowhere : static_cast<uint32_t>(child),
          animal < 0 ? kNowhere : static_cast<uint32_t>(animal)};
}

}  // namespace

Program Compiler::compile(std::string_view text) const {
  Program program;
  size_t at = 0;
  while (at < text.size()) {
    const size_t open = std::min(text.find('{', at), text.size());
    add_text(text.substr(at, open - at), open < text.size(), program);
    if (open == text.size()) break;
    const size_t close = closing_brace(text, open);
    program.push_back(compile_slot(text.substr(open + 1, close - open - 1)));
    at = close + 1;
  }
  return program;
}

void Compiler::add_text(std::string_view text, bool before_slot, Program& program) const {
  std::string written(text);
  for (size_t at; (at = written.find("//")) != std::string::npos;) {
    const size_t first = at > 0 && written[at - 1] == ' ' ? at - 1 : at;
    const size_t end = at + 2 < written.size() && written[at + 2] == ' ' ? at + 3 : at + 2;
    written.replace(first, end - first, "\n\n");
  }
  // "... a {slot}": the article waits for the word that follows.
  const std::string_view tail =
      written.size() >= 2 ? std::string_view(written).substr(written.size() - 2) : "";
  const bool article = before_slot && (tail == "a " || tail == "A ") &&
                       (written.size() == 2 ||
                        !std::isalpha(static_cast<unsigned char>(written[written.size() - 3])));
  if (article) written.pop_back();
  if (!written.empty()) {
    Op op;
    op.text = keep(std::move(written));
    program.push_back(op);
  }
  if (article) {
    Op op;
    op.kind = Op::kArticle;
    program.push_back(op);
  }
}

Op Compiler::compile_slot(std::string_view slot) const {
  check_text(!slot.empty(), "empty braces");
  if (slot.find('|') != std::string_view::npos) return compile_choice(slot);
  Op op;
  op.capital = std::isupper(static_cast<unsigned char>(slot[slot[0] == '$' || slot[0] == '@']));
  if (slot[0] == '@') {
    op.kind = Op::kPool;
    op.index = find_pool(slot.substr(1));
    check_text(op.index[0] != kNowhere || op.index[1] != kNowhere, "no pool ", slot);
    return op;
  }
  if (slot[0] == '$') {
    op.kind = Op::kVariable;
    return compile_word(slot.substr(1), op);
  }
  if (const auto role = compile_role(slot)) return *role;
  op.kind = Op::kWord;
  return compile_word(slot, op);
}

Op Compiler::compile_choice(std::string_view alternatives) const {
  Variants variants{std::string(alternatives), {}, 0};
  for (std::string_view part : split_alternatives(alternatives)) {
    variants.programs.push_back(compile(part));
  }
  Op op;
  op.kind = Op::kChoice;
  op.index.fill(static_cast<uint32_t>(book_.choices.size()));
  book_.choices.push_back(std::move(variants));
  return op;
}

// "toy.s": finds the class (of the variable or of that name) and the number of its form in each
// world.
Op Compiler::compile_word(std::string_view slot, Op op) const {
  const size_t dot = std::min(slot.find('.'), slot.size());
  const std::string name = lower_first(slot.substr(0, dot));
  const std::string_view form = slot.substr(std::min(dot + 1, slot.size()));
  ByWorld classes{};
  if (op.kind == Op::kVariable) {
    check_text(variables_ != nullptr, "variable outside of a plot: ", slot);
    const auto found = std::find_if(variables_->begin(), variables_->end(),
                                    [&](const auto& variable) { return variable.first == name; });
    check_text(found != variables_->end(), "unknown variable ", slot);
    op.index.fill(static_cast<uint32_t>(found - variables_->begin()));
    classes = found->second;
  } else {
    classes = op.index = find_class(name);
    check_text(classes[0] != kNowhere || classes[1] != kNowhere, "no class or role ", slot);
  }
  for (int world = 0; world < kNumWorlds; ++world) {
    if (classes[world] == kNowhere) continue;
    const auto& names = book_.lexicon.classes[classes[world]].form_names;
    const auto found = std::find(names.begin(), names.end(), form);
    check_text(found != names.end(), "no form ", slot);
    op.form[world] = static_cast<uint16_t>(found - names.begin());
  }
  return op;
}

ByWorld Compiler::find_class(std::string_view name) const {
  return find_by_world(name, [&](const std::string& full) { return book_.lexicon.find(full); });
}

ByWorld Compiler::find_pool(std::string_view name) const {
  return find_by_world(name, [&](const std::string& full) {
    const auto& pools = book_.pools;
    const auto found = std::find_if(pools.begin(), pools.end(),
                                    [&](const Variants& pool) { return pool.name == full; });
    return found == pools.end() ? -1 : static_cast<int>(found - pools.begin());
  });
}

}  // namespace flashstep
