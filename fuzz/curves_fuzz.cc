// Sources: flashstep/train/loss_plot.cc flashstep/measure/plot.cc flashstep/measure/plot_axes.cc
// Sources: flashstep/measure/plot_marks.cc flashstep/measure/svg.cc flashstep/measure/ticks.cc
// Sources: flashstep/measure/utf8.cc flashstep/measure/png.cc flashstep/measure/table*.cc
// Any bytes as the metrics.jsonl that `flashstep plot` draws: refused with UserError, or curves
// with as many steps as values, drawn without a coordinate that is no number.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "flashstep/error.h"
#include "flashstep/train/loss_plot.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view lines(reinterpret_cast<const char*>(data), size);
  for (const char* field : {"loss", "lr"}) {
    try {
      flashstep::RunCurves curves = flashstep::parse_curves(lines, field, "fuzz");
      if (curves.steps.size() != curves.values.size()) std::abort();
      if (curves.val_steps.size() != curves.val_losses.size()) std::abort();
      curves.name = "run";
      const std::string svg = flashstep::measure::to_svg(flashstep::curves_plot({curves}, field));
      for (const char* wrong : {"\"nan", "\"-nan", "\"inf", "\"-inf", ",nan", ",inf"}) {
        if (svg.find(wrong) != std::string::npos) std::abort();
      }
    } catch (const flashstep::UserError&) {
    }
  }
  return 0;
}
