// A report on paper: the HTML page printed by a Chromium without a window, where there is one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace flashstep::report {

// The first of chromium, chromium-browser, google-chrome and what $FLASHSTEP_CHROMIUM names that is
// in PATH; empty without one.
std::string find_chromium();

// Writes `pdf` from the page. Empty, or a sentence that says why there is none.
std::string print_pdf(const std::string& chromium, const std::filesystem::path& html,
                      const std::filesystem::path& pdf);

}  // namespace flashstep::report
