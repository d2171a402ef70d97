// Command lines that people can paste into a shell.
#pragma once

#include <string>
#include <vector>

namespace flashstep::apps {

// `words` with spaces between them, quoted where a shell would not take them as they are.
std::string shell_words(const std::vector<std::string>& words);

// The words of the command line that started this process.
std::vector<std::string> own_words();

// Where `flashstep launch` tells its ranks how it was started: all before the ranks' command.
inline constexpr const char* kLaunchVariable = "FLASHSTEP_LAUNCH_COMMAND";

}  // namespace flashstep::apps
