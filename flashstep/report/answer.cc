// Answers in words: forms (report/answers.json) filled with facts.
#include <algorithm>
#include <cmath>
#include <optional>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/report/question.h"
#include "flashstep/report/texts.h"

namespace flashstep::tools {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(AnswerTable, section, title, columns, with)

namespace {

// As the part of a field behind its bar says: "ms", "GiB", "3", ".2", "%". "": there is no number.
std::string number_words(double number, const std::string& form) {
  if (std::isnan(number)) return "";
  if (form == "ms") return milliseconds(number);
  if (form == "MiB") return memory_words(number);
  if (form == "GiB") return memory_words(1024 * number);
  if (form == "%") return percent(number / 100);
  if (form == "share") return percent(number);
  if (form == "share.1") return percent(number, 1);
  if (form == "speed") return speed_words(number);
  if (form[0] == '.') return fixed(number, form[1] - '0');
  return three_digits(number);
}

template <typename Value>
Value value_in(const std::map<std::string, Value>& map, const std::string& name) {
  const auto found = map.find(name);
  return found == map.end() ? Value() : found->second;
}

// Where what opens at `open` closes.
size_t end_of(const std::string& form, size_t open) {
  const char begin = form[open], end = begin == '{' ? '}' : ']';
  int depth = 0;
  for (size_t i = open; i < form.size(); ++i) {
    depth += (form[i] == begin) - (form[i] == end);
    if (depth == 0) return i;
  }
  return form.size();
}

// "a|{b|c}|d" -> "a", "{b|c}", "d"
std::vector<std::string> texts_of(const std::string& choice) {
  std::vector<std::string> texts(1);
  int depth = 0;
  for (const char c : choice) {
    depth += (c == '{') - (c == '}');
    if (c == '|' && depth == 0)
      texts.emplace_back();
    else
      texts.back() += c;
  }
  return texts;
}

// report/answers.json.
struct AnswerForm {
  std::vector<std::string> say;
  Columns table;     // columns of the rows that are shown
  size_t most = 12;  // of them
  std::vector<std::string> picture;
  std::map<std::string, Columns> begins;  // a column whose text begins with one of these
  bool derived = false;                   // the notes of the rows' table are their derivation
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(AnswerForm, say, table, most, picture, begins,
                                                derived)
struct AnswerForms {
  std::map<std::string, AnswerTable> tables;
  std::map<std::string, std::string> cases;
  std::map<std::string, AnswerForm> answers;
};

const AnswerForms& answer_forms_read() {
  static const AnswerForms all = [] {
    const auto json = nlohmann::json::parse(answer_forms());
    AnswerForms forms;
    forms.cases = json.at("cases");
    forms.tables = json.at("tables");
    for (auto& [name, table] : forms.tables) {
      if (table.section.empty()) table.section = name;
    }
    for (const auto& [key, form] : json.at("answers").items())  // a name: an earlier one's forms
      forms.answers[key] = form.is_string() ? forms.answers.at(form) : form.get<AnswerForm>();
    return forms;
  }();
  return all;
}

class Speaker {
 public:
  explicit Speaker(const Facts& facts) : facts_(facts) {}

  // Nothing where a field outside of brackets is empty.
  std::optional<std::string> say(const std::string& form) const {
    std::string sentence;
    for (size_t at = 0; at < form.size();) {
      const size_t open = form.find_first_of("{[", at);
      sentence += form.substr(at, open - at);
      if (open == std::string::npos) break;
      const size_t end = end_of(form, open);
      const std::string inside = form.substr(open + 1, end - open - 1);
      const auto said = form[open] == '{' ? field(inside) : say(inside);
      if (!said && form[open] == '{') return std::nullopt;
      sentence += said.value_or("");
      at = end + 1;
    }
    return sentence;
  }

 private:
  std::optional<std::string> field(const std::string& field) const {
    const size_t question = field.find('?');
    const bool chooses = question != std::string::npos;
    const std::string name = field.substr(0, question);
    std::string said = value_in(facts_.words, name);
    if (said.empty()) said = chooses ? order(name) : value(name);
    if (said.empty()) return std::nullopt;
    return chooses ? say(texts_of(field.substr(question + 1)).at(std::stoul(said))) : said;
  }

  std::string value(const std::string& name) const {
    if (name.starts_with("@")) {
      const size_t blank = std::min(name.find(' '), name.size() - 1);
      const std::string form = answer_forms_read().cases.at(name.substr(1, name.find(' ') - 1));
      return tools::say(form, value_in(facts_.rows, name.substr(blank + 1)));
    }
    if (const size_t at = name.find(" from "); at != std::string::npos) {
      const double to = number(name.substr(0, at)), from = number(name.substr(at + 6));
      return from > 0 && to > 0 ? change_words(from, to) : "";
    }
    if (const size_t bar = name.find('|'); bar != std::string::npos)
      return number_words(number(name.substr(0, bar)), name.substr(bar + 1));
    const auto [here, column] = place(name);
    return here.text(column);
  }

  // "step ~ b.step"
  std::string order(const std::string& name) const {
    const size_t at = name.find(" ~ ");
    if (at == std::string::npos) return "";
    const double a = number(name.substr(0, at)), b = number(name.substr(at + 3));
    return std::isnan(a / b) ? "" : which_order(compare_measured(a, b));
  }

  // A column, "b.state - state", "exposed : communication".
  double number(const std::string& term) const {
    if (const size_t at = term.find(" : "); at != std::string::npos)
      return number(term.substr(0, at)) / number(term.substr(at + 3));
    if (const size_t at = term.find(" - "); at != std::string::npos)
      return number(term.substr(0, at)) - number(term.substr(at + 3));
    const auto [here, column] = place(term);
    return here.number(column);
  }

  // "b.step": the column of that row; without such a row of the one without a name.
  std::pair<TableRow, std::string> place(const std::string& name) const {
    const size_t dot = std::min(name.find('.'), name.size());
    const bool named = facts_.rows.contains(name.substr(0, dot));
    return {value_in(facts_.rows, named ? name.substr(0, dot) : ""),
            named ? name.substr(dot + 1) : name};
  }

  const Facts& facts_;
};

}  // namespace

std::string which(bool yes) { return yes ? "1" : "0"; }
std::string which_order(int order) { return std::to_string(order + 1); }

std::string say(const std::string& form, const Facts& facts) {
  return Speaker(facts).say(form).value_or("");
}

std::string say(const std::string& form, const TableRow& row, const SentenceWords& words) {
  return say(form, Facts{words, {{"", row}}});
}

const AnswerTable& answer_table(const std::string& name) {
  return answer_forms_read().tables.at(name);
}

Finding finding_of(const std::string& answer, const Facts& facts) {
  const AnswerForm& form = answer_forms_read().answers.at(answer);
  Finding finding = {.picture = form.picture};
  const auto add = [&](const std::string& sentence) {
    if (!sentence.empty()) finding.sentences.push_back(sentence);
  };
  for (const std::string& sentence : form.say) {
    if (!sentence.starts_with("*")) add(say(sentence, facts));
    if (!sentence.starts_with("*")) continue;
    for (const Facts& one : facts.cases) add(say(sentence.substr(1), one));
  }
  TableRows shown = facts.shown;
  for (const auto& [column, beginnings] : form.begins) {
    shown = shown.if_([&, name = column, begin = beginnings](const TableRow& row) {
      return std::ranges::any_of(begin, [text = row.text(name)](const std::string& beginning) {
        return text.starts_with(beginning);
      });
    });
  }
  finding.table = facts.table.columns.empty() ? list(shown, form.table, form.most) : facts.table;
  if (form.derived && !shown.empty()) finding.derivation = shown.front().table->notes;
  finding.picture.insert(finding.picture.end(), facts.picture.begin(), facts.picture.end());
  return finding;
}

}  // namespace flashstep::tools
