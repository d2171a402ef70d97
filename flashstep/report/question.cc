#include "flashstep/report/question.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/report/texts.h"

namespace flashstep::tools {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Question, name, years, section, title, question,
                                                answer, needs, measurement, finding)

namespace {

// What is missing where nothing answers it, in a few words: what the first measurement for it
// needed or how it failed, or what measuring it needs.
std::string what_is_missing(const Question& question, const std::vector<Result>& results,
                            const std::vector<LeftOut>& left_out) {
  const auto would_answer = [&](const std::string& section, const std::string& measurement) {
    return section == question.section && measurement.starts_with(question.measurement);
  };
  const auto in_short = [](const std::string& why) { return why.substr(0, why.find(", ")); };
  const std::string needs = question.needs.empty() ? "" : "needs " + question.needs;
  if (question.answer.empty()) return needs;
  for (const Result& result : results) {
    if (would_answer(result.section, result.measurement) && !result.failure.empty())
      return "it failed, " + result.failure;
  }
  for (const LeftOut& out : left_out) {
    if (would_answer(out.section, out.what)) return in_short(out.why);
  }
  return needs.empty() ? "was not run" : needs;
}

// What the results of each year say. A year without results of its own has another's, which say it
// once.
void add_parts(const std::vector<Result>& results, Answer& answer) {
  const AnswerFunction& function = answers().at(answer.question->answer);
  const std::vector<std::string>& years = answer.question->years;
  std::vector<std::string> latest_first(years.rbegin(), years.rend());
  if (years.empty()) latest_first = {""};
  for (const std::string& year : latest_first) {
    std::vector<std::string> preferred = {year};  // then the others
    preferred.insert(preferred.end(), latest_first.begin(), latest_first.end());
    const Evidence evidence(results, preferred);
    const Finding finding = finding_of(answer.question->answer, function(evidence));
    AnswerPart part{"", finding, evidence.used()};
    const bool known = std::ranges::count(answer.parts, part.used, &AnswerPart::used) > 0;
    if (!part.finding || known) continue;
    for (const Result* result : part.used) {
      if (part.year.empty()) part.year = year_of(result->measurement);
    }
    answer.parts.push_back(std::move(part));
  }
}

void check(const Question& question) {
  require(!question.name.empty() && !question.section.empty() && !question.title.empty() &&
              !question.question.empty(),
          "it has no name, section, title or question");
  require(!question.needs.empty() || !question.answer.empty(), "it has neither answer nor needs");
  require(question.answer.empty() || answers().count(question.answer) > 0, "there is no answer \"",
          question.answer, "\"");
}

}  // namespace

std::vector<Question> read_handout(std::string_view json, const std::string& source) {
  try {
    std::vector<Question> questions = nlohmann::json::parse(json).at("questions");
    for (const Question& question : questions) check(question);
    return questions;
  } catch (const std::exception& error) {
    throw UserError(
        str("[report] expected the questions of a handout in ", source, ": ", error.what()));
  }
}

const std::vector<Question>& questions() {
  static const std::vector<Question> all = [] {
    std::vector<Question> list;
    for (const auto& [name, text] : handout_texts()) {
      for (Question& question : read_handout(text, name)) list.push_back(std::move(question));
    }
    return list;
  }();
  return all;
}

Answer answer(const Question& question, const std::vector<Result>& results,
              const std::vector<LeftOut>& left_out) {
  Answer answer;
  answer.question = &question;
  if (!question.answer.empty()) add_parts(results, answer);
  if (!answer.measured()) {
    answer.missing = what_is_missing(question, results, left_out);
    return answer;
  }
  const auto& used = answer.parts.back().used;
  answer.quick = !used.empty() && std::ranges::all_of(used, [](const Result* result) {
    return result->measurement.ends_with("_quick");
  });
  return answer;
}

}  // namespace flashstep::tools
