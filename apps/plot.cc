// flashstep plot: the curves of runs over each other.
#include "flashstep/measure/plot.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/train/loss_plot.h"

namespace flashstep::apps {
namespace {

struct PlotOptions {
  std::vector<std::string> runs;
  std::string out, field = "loss", title;
  bool log_x = false, log_y = false;
};

// Beside the metrics of a single run, like `flashstep train`; in the current directory for several.
std::filesystem::path default_stem(const PlotOptions& options) {
  const bool one = options.runs.size() == 1;
  return one ? std::filesystem::path(options.runs[0]) / options.field
             : std::filesystem::path(options.field);
}

// Whether this program drew it: so begins every picture of measure/plot.cc.
bool is_our_picture(const std::filesystem::path& svg) {
  std::ifstream file(svg);
  std::string line;
  return std::getline(file, line) && line.starts_with("<svg xmlns=") &&
         line.find(" role=\"img\" font-family=\"") != std::string::npos;
}

// Nobody named the place: what lies there is replaced only if it was drawn here.
void require_free_or_ours(const std::filesystem::path& stem) {
  const auto svg = std::filesystem::path(stem) += ".svg";
  for (const char* ending : {".svg", ".png"}) {
    const auto path = std::filesystem::path(stem) += ending;
    require(!std::filesystem::exists(std::filesystem::symlink_status(path)) || is_our_picture(svg),
            "[plot] expected ", path.string(), " to be missing, or drawn by this program, got ",
            "another file; name a place with --out");
  }
}

void run_plot(const PlotOptions& options) {
  std::filesystem::path stem = options.out;
  if (stem.empty()) stem = default_stem(options);
  if (stem.extension() == ".svg" || stem.extension() == ".png") stem.replace_extension();
  require(!stem.filename().empty(), "[plot] expected a file after --out, got the directory ",
          stem.string());
  if (options.out.empty()) require_free_or_ours(stem);
  measure::Plot plot = plot_runs({options.runs.begin(), options.runs.end()}, options.field);
  require(std::ranges::any_of(plot.series, [](const auto& series) { return !series.x.empty(); }),
          "[plot] expected steps in ", options.runs.front(), "/metrics.jsonl, there are none yet");
  if (options.log_x) plot.x.scale = measure::Scale::kLog;
  if (options.log_y) plot.y.scale = measure::Scale::kLog;
  if (!options.title.empty()) plot.title = options.title;
  if (stem.has_parent_path()) make_directories(stem.parent_path());
  const measure::WrittenPlot written = measure::write_plot(plot, stem);
  std::cout << "wrote " << written.svg.string();
  if (written.png)
    std::cout << " and " << written.png->string() << "\n";
  else
    std::cout << " (no PNG: this program was built without librsvg)\n";
}

}  // namespace

void add_plot(CLI::App& app) {
  auto options = std::make_shared<PlotOptions>();
  CLI::App* command =
      app.add_subcommand("plot", "Draw the curves of one run, or of several over each other");
  command->add_option("RUN", options->runs, "Run directories (with a metrics.jsonl)")->required();
  command->add_option("--out", options->out,
                      "Where to write: STEM.svg and STEM.png (default: RUN/FIELD of a single run, "
                      "FIELD in the current directory for several)");
  command
      ->add_option("--field", options->field,
                   "What to draw: loss, val_loss, grad_norm, lr, tokens_per_s, ...")
      ->capture_default_str();
  command->add_option("--title", options->title, "Title of the picture");
  command->add_flag("--log-x", options->log_x, "Logarithmic steps");
  command->add_flag("--log-y", options->log_y, "Logarithmic values");
  command->callback([options] { run_plot(*options); });
}

}  // namespace flashstep::apps
