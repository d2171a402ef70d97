// Style and script of a report's page (html_page.cc): they stand in the page itself.
#pragma once

namespace flashstep::report {

extern const char* const kPageStyle;
extern const char* const kPageScript;

}  // namespace flashstep::report
