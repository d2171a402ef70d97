// flashstep report: every measurement of a preset, as one document.
#include "flashstep/report/report.h"

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "apps/commands.h"
#include "flashstep/base/progress.h"
#include "flashstep/base/signals.h"
#include "flashstep/base/text.h"
#include "flashstep/error.h"
#include "flashstep/report/question.h"

namespace flashstep::apps {
namespace {

struct ReportArguments {
  tools::ReportOptions options;
  std::string directory = "report";
  double minutes = 0;
  bool redraw = false, no_pdf = false;
};

void print(const tools::ReportOutcome& outcome) {
  const auto lines = [](const char* head, const std::vector<std::string>& texts) {
    for (const std::string& text : texts) std::cout << head << text << "\n";
  };
  lines("left out  ", outcome.left_out);
  lines("failed    ", outcome.failed);
  lines("later     ", outcome.later);
  lines("", outcome.unreadable);
  lines("", outcome.remarks);
  std::cout << outcome.measured << " measured, " << outcome.reused << " taken from earlier; "
            << outcome.answered << " of " << outcome.questions << " questions answered\n";
  lines("wrote ", outcome.written);
}

void run(ReportArguments& arguments) {
  tools::ReportOptions& options = arguments.options;
  options.directory = arguments.directory;
  options.pdf = !arguments.no_pdf;
  options.most_seconds = 60 * arguments.minutes;
  const SignalGuard signals;
  ProgressBar bar("report", ProgressBar::Unit::kCount);
  options.progress = [&](double done, double total, const std::string& note) {
    // In tenths of expected seconds, so that short measurements move it too.
    bar.update(static_cast<uint64_t>(10 * done), static_cast<uint64_t>(10 * total), note);
  };
  options.told = [&](const std::string& line) { bar.print(line); };
  const tools::ReportOutcome outcome =
      arguments.redraw ? tools::redraw_report(options) : tools::make_report(options);
  bar.finish();
  print(outcome);
  if (outcome.signal != 0) {
    throw Interrupted(outcome.signal,
                      "interrupted; the results so far are kept, the same command goes on");
  }
  // A run has measured what it could not read; drawing anew cannot.
  if (arguments.redraw && !outcome.unreadable.empty()) {
    throw UserError(str("[report] ", outcome.unreadable.size(), " of the files in ",
                        arguments.directory, "/results could not be read, the document is without ",
                        "them; the first: ", outcome.unreadable.front()));
  }
  if (!outcome.failed.empty()) {
    throw MachineError(str("[report] ", outcome.failed.size(), " of ",
                           outcome.failed.size() + outcome.measured + outcome.reused,
                           " measurements failed; what they printed is in ", arguments.directory,
                           "/logs"));
  }
}

void add_compare(CLI::App& report) {
  CLI::App* command = report.add_subcommand("compare", "Two reports side by side");
  struct Arguments {
    std::string a, b, directory;
  };
  auto arguments = std::make_shared<Arguments>();
  command->add_option("A", arguments->a, "Directory of a report")->required();
  command->add_option("B", arguments->b, "Directory of another one")->required();
  command->add_option("--out", arguments->directory,
                      "Also write compare.txt, .md, .csv and .json into this directory");
  command->callback([arguments] {
    if (!arguments->directory.empty()) make_output_directory(arguments->directory);
    show(tools::compare_reports(arguments->a, arguments->b), arguments->directory, "compare");
  });
}

}  // namespace

void add_report(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "report", "Measure everything and write one document: tables, pictures, answers");
  command->require_subcommand(0, 1);
  auto arguments = std::make_shared<ReportArguments>();
  command
      ->add_option("--preset", arguments->options.preset,
                   "quick (two CPU cores, about three minutes), or a year's handout: " +
                       join(tools::report_presets()))
      ->check(CLI::IsMember(tools::report_presets()))
      ->capture_default_str();
  command
      ->add_option("--only", arguments->options.only, "Sections: " + join(tools::section_names()))
      ->delimiter(',');
  command
      ->add_option("--out", arguments->directory, "Directory of the report, its results included")
      ->capture_default_str();
  command
      ->add_flag("--redraw", arguments->redraw,
                 "Measure nothing: draw the document anew from the results that are there")
      ->excludes("--only")
      ->excludes("--preset");
  command
      ->add_flag("--all-sections", arguments->options.all_sections,
                 "With --redraw: also the sections that nobody asked for yet, as not measured")
      ->needs("--redraw");
  command
      ->add_option(
          "--minutes", arguments->minutes,
          "Begin nothing that is expected to end later; the same command goes on; 0: no limit")
      ->check(CLI::Range(0.0, 1e6));
  command->add_flag("--any-machine", arguments->options.any_machine,
                    "Results of other machines will do, if the same sources and commands made "
                    "them: machines that come and go each measure what is left");
  command->add_flag("--no-pdf", arguments->no_pdf, "No report.pdf, even where there is a Chromium");
  add_compare(*command);
  command->callback([command, arguments] {
    if (command->get_subcommands().empty()) run(*arguments);
  });
}

}  // namespace flashstep::apps
