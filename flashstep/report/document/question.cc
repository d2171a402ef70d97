#include "flashstep/report/document/question.h"

#include <algorithm>

#include "flashstep/base/text.h"

namespace flashstep::report {
namespace {

// Why there is no result that answers it: the first measurement for it that failed or was left out;
// empty if there is none.
std::string reason(const Question& question, const std::vector<Result>& results,
                   const std::vector<LeftOut>& left_out) {
  const auto would_answer = [&](const std::string& section, const std::string& measurement) {
    return section == question.section && measurement.starts_with(question.measurement);
  };
  for (const Result& result : results) {
    if (would_answer(result.section, result.measurement) && !result.trouble.empty())
      return result.measurement + " " + result.trouble;
  }
  for (const LeftOut& out : left_out) {
    if (would_answer(out.section, out.what)) return out.why;
  }
  return "";
}

// For each year of "2024 2025", the latest first: that year, then the others.
std::vector<std::vector<std::string>> preferences(const std::string& years) {
  std::vector<std::string> latest_first;
  for (size_t at = 0; at + 4 <= years.size(); at += 5)
    latest_first.insert(latest_first.begin(), years.substr(at, 4));
  if (latest_first.empty()) return {{}};
  std::vector<std::vector<std::string>> all;
  for (const std::string& year : latest_first) {
    all.push_back(latest_first);
    std::erase(all.back(), year);
    all.back().insert(all.back().begin(), year);
  }
  return all;
}

// What the results of each year say. A year without results of its own has another's, which say it
// once.
void add_parts(const std::vector<Result>& results, Answer& answer) {
  std::vector<std::vector<std::string>> known;
  for (const auto& years : preferences(answer.question->years)) {
    const Evidence evidence(results, years);
    Sentences sentences = answer.question->answer(evidence);
    const std::vector<std::string>& used = evidence.used();
    if (sentences.empty() || std::find(known.begin(), known.end(), used) != known.end()) continue;
    known.push_back(used);
    AnswerPart part{"", std::move(sentences)};
    for (const std::string& name : used) {
      if (part.year.empty()) part.year = year_of(name);
      if (std::find(answer.used.begin(), answer.used.end(), name) == answer.used.end())
        answer.used.push_back(name);
    }
    answer.parts.push_back(std::move(part));
  }
}

bool all_quick(const std::vector<std::string>& used) {
  return !used.empty() && std::all_of(used.begin(), used.end(), [](const std::string& name) {
    return name.ends_with("_quick");
  });
}

}  // namespace

const std::vector<Question>& questions() {
  static const std::vector<Question> all = [] {
    std::vector<Question> list;
    add_step_questions(list);
    add_norm_questions(list);
    add_profile_questions(list);
    add_precision_questions(list);
    add_memory_questions(list);
    add_attention_questions(list);
    add_communication_questions(list);
    add_data_parallel_questions(list);
    add_sharding_questions(list);
    add_account_questions(list);
    add_further_questions(list);
    return list;
  }();
  return all;
}

Answer answer(const Question& question, const std::vector<Result>& results,
              const std::vector<LeftOut>& left_out) {
  Answer answer;
  answer.question = &question;
  if (question.answer != nullptr) add_parts(results, answer);
  answer.measured = !answer.parts.empty() && std::string_view(question.lacks).empty();
  if (answer.parts.empty()) {
    const std::string why = question.answer == nullptr ? "" : reason(question, results, left_out);
    answer.parts = {{"",
                     {why.empty() ? str("Not measured: needs ", question.needs, ".")
                                  : str("Not measured: ", why, ".")}}};
    return answer;
  }
  Sentences& last = answer.parts.back().sentences;
  if (!answer.measured) last.push_back(str("Not measured: ", question.lacks, "."));
  if (all_quick(answer.used))
    last.emplace_back("(From the preset quick: smaller cases than the handout's.)");
  return answer;
}

}  // namespace flashstep::report
