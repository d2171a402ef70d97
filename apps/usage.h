// What was wrong with a command line, in one sentence: what was expected, and what came.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace flashstep::apps {

// The words behind the program's name, as CLI11 wants them: the last one first. It would take
// "[a,b]" apart where several values may stand: a mark behind the bracket keeps it from that, which
// refuse_impossible_values() lets every option take off.
std::vector<std::string> words_to_parse(int argc, char** argv);

// Lets every option of `app` and its commands refuse numbers that its type cannot hold (the parser
// would take the nearest one that it can, and for "-1" the largest of all), and empty names.
void refuse_impossible_values(CLI::App& app);

// `error` is what `app` threw when it parsed the arguments.
std::string usage_mistake(const CLI::App& app, int argc, char** argv, const CLI::ParseError& error);

}  // namespace flashstep::apps
