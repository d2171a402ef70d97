#include "flashstep/report/report.h"

#include <algorithm>
#include <future>
#include <iterator>

#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/report/command.h"
#include "flashstep/report/document.h"

namespace flashstep::tools {
namespace {

namespace fs = std::filesystem;

void check_sections(const std::vector<std::string>& only) {
  const std::vector<std::string> names = section_names();
  for (const std::string& name : only) {
    if (contains(names, name)) continue;
    const std::string meant = nearest(name, names);
    throw UserError(str("[report] expected --only among ", join(names), ", got \"", name, "\"",
                        meant.empty() ? "" : "; did you mean \"" + meant + "\"?"));
  }
}

// Every report has a report.json, from before its first measurement on.
void refuse_report_of_others(const fs::path& directory) {
  if (fs::exists(directory / "report.json")) return;
  for (const char* name : {"report.html", "report.md", "report.pdf"}) {
    require(!fs::exists(fs::symlink_status(directory / name)), "[report] expected ",
            (directory / name).string(), " to be missing, or written by a report, got another ",
            "file; choose another directory (--out)");
  }
}

// Of the directory that is written. One that cannot be is the caller's choice, and shows before
// hours of measuring.
FileLock lock(const fs::path& directory) {
  refuse_report_of_others(directory);
  try {
    make_directories(directory);
    const fs::path probe = directory / ".writable";
    write_file(probe, "");
    fs::remove(probe);
  } catch (const MachineError& error) {
    throw UserError(str("[report] expected a directory that can be written, got ",
                        directory.string(), ": ", error.what()));
  }
  return {directory / ".lock",
          str("[report] another flashstep report is writing ", directory.string())};
}

// Of this run, and of what an earlier one in the same directory did beside its sections.
RunRecord record_of(const ReportOptions& options, const Plan& plan) {
  RunRecord record{options.preset, options.only, plan.left_out};
  if (options.only.empty() || !fs::exists(options.directory / "report.json")) return record;
  RunRecord earlier = read_record(options.directory);
  for (LeftOut& left_out : earlier.left_out) {
    if (!is_wanted(options.only, left_out.section)) record.left_out.push_back(std::move(left_out));
  }
  if (earlier.only.empty()) record.only.clear();  // all of them
  for (std::string& section : earlier.only) {
    if (!is_wanted(record.only, section)) record.only.push_back(std::move(section));
  }
  return record;
}

void draw(const ReportOptions& options, RunRecord record, const std::vector<std::string>& keys,
          ReportOutcome& outcome) {
  StoredResults stored = read_results(options.directory);
  const std::vector<Result> results = current(std::move(stored.results), keys);
  if (keys.empty()) add_left_out(results, record);
  const std::vector<ResultFiles> files = make_files(results);
  // Drawing pictures as PNG takes longer than all the rest, and a browser seconds: beside it.
  std::future<void> drawn =
      std::async(std::launch::async, [&] { write_files(files, options.directory); });
  const Document document = make_document(results, files, record, stored.complaints);
  const fs::path html = options.directory / "report.html", pdf = options.directory / "report.pdf",
                 markdown = options.directory / "report.md";
  write_file(markdown, document.markdown);
  write_file(html, document.html);
  std::future<std::string> printed;
  if (options.pdf && outcome.signal == 0)
    printed = std::async(std::launch::async, print_pdf, html, pdf);
  drawn.get();
  outcome.unreadable = stored.complaints;
  outcome.questions = static_cast<int64_t>(document.asked);
  outcome.answered = static_cast<int64_t>(document.measured);
  outcome.written = {html.string(), markdown.string()};
  if (!printed.valid()) return;
  const std::string failure = printed.get();
  if (failure.empty())
    outcome.written.push_back(pdf.string());
  else
    outcome.remarks.push_back("No report.pdf: " + failure + ".");
}

// What a result answers by itself: a question of the first page where it can, else the first.
std::string answer_of(const Result& result) {
  std::string line;
  for (const Question& question : questions()) {
    if (question.section != result.section || !result.failure.empty()) continue;
    if (!line.empty() && question.finding == 0) continue;
    const Answer answered = answer(question, {result}, {});
    if (!answered.measured()) continue;
    line = question.title + ": " + answered.parts.front().finding.sentences.front();
    if (question.finding > 0) break;
  }
  return line;
}

}  // namespace

ReportOutcome make_report(const ReportOptions& options) {
  check_sections(options.only);
  const measure::Machine machine = measure::describe_machine();
  Plan plan;
  for (const Section& section : sections()) {
    if (!is_wanted(options.only, section.name)) continue;
    Plan part = plan_of(section, options.preset, machine);
    std::ranges::move(part.measurements, std::back_inserter(plan.measurements));
    std::ranges::move(part.left_out, std::back_inserter(plan.left_out));
  }
  const FileLock locked = lock(options.directory);
  const RunRecord record = record_of(options, plan);
  write_record(record, options.directory);

  RunOptions run = options;
  run.version = measured_version();
  run.machine = machine;
  run.finished = [&](const Result& result) {
    const std::string line = answer_of(result);
    if (options.told && !line.empty()) options.told(line);
  };
  ReportOutcome outcome;
  static_cast<RunOutcome&>(outcome) = run_measurements(plan.measurements, run);
  for (const LeftOut& left_out : plan.left_out)
    outcome.left_out.push_back(left_out.what + ": " + left_out.why);
  draw(options, record, outcome.keys, outcome);
  return outcome;
}

ReportOutcome redraw_report(const ReportOptions& options) {
  check_sections(options.only);
  require(fs::exists(options.directory / "results"), "[report] expected results in ",
          (options.directory / "results").string(), ", there are none to draw");
  const FileLock locked = lock(options.directory);
  RunRecord record = read_record(options.directory);
  if (options.all_sections) record.only.clear();
  if (!fs::exists(options.directory / "report.json")) write_record(record, options.directory);
  ReportOutcome outcome;
  draw(options, std::move(record), {}, outcome);
  return outcome;
}

}  // namespace flashstep::tools
