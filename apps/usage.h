// What was wrong with a command line, in one sentence: what was expected, and what came.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace flashstep::apps {

// `error` is what `app` threw when it parsed the arguments.
std::string usage_mistake(const CLI::App& app, int argc, char** argv, const CLI::ParseError& error);

}  // namespace flashstep::apps
