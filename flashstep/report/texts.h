// Texts that the build embeds (CMakeLists.txt).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flashstep::tools {

std::vector<std::pair<std::string, std::string_view>> handout_texts();  // handouts/*.json, by name
std::string_view answer_forms();                                        // answers.json
std::string_view section_texts();                                       // sections.json
std::string_view page_style();                                          // page.css, .js
std::string_view page_script();

}  // namespace flashstep::tools
