// What was wrong with a command line, in one sentence: what was expected, and what came.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace flashstep::apps {

// Lets every option of `app` and its commands refuse numbers that its type cannot hold (the parser
// would take the nearest one that it can, and for "-1" the largest of all), and empty names.
void refuse_impossible_values(CLI::App& app);

// `error` is what `app` threw when it parsed the arguments.
std::string usage_mistake(const CLI::App& app, int argc, char** argv, const CLI::ParseError& error);

}  // namespace flashstep::apps
