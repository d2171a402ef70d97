// flashstep completion bash|zsh: a script that completes commands and options, written from the
// parser itself.
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "flashstep/attention/implementation_names.h"
#include "flashstep/base/text.h"
#include "flashstep/train/config.h"

namespace flashstep::apps {
namespace {

// One line of a bash `case` for `app`, and those of everything below it: "train) words=...".
void write_cases(const CLI::App& app, const std::string& path, std::string& out) {
  std::vector<std::string> words;
  for (const CLI::App* command : app.get_subcommands(nullptr)) words.push_back(command->get_name());
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  }
  out += "    \"" + path + "\") words=\"" + join(words, " ") + "\" ;;\n";
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    write_cases(*command, path + (path.empty() ? "" : " ") + command->get_name(), out);
  }
}

// Names of commands that have commands of their own, as a bash pattern: "data|tokenizer|bench".
std::string parents(const CLI::App& root) {
  std::vector<std::string> names;
  for (const CLI::App* command : root.get_subcommands(nullptr)) {
    if (!command->get_subcommands(nullptr).empty()) names.push_back(command->get_name());
  }
  return names.empty() ? "-" : join(names, "|");
}

// Values by option: those that the parser of any command allows, "{cpu,cuda}" in what CLI11 calls
// the option's type. An option of one name means the same in every command.
void collect_values(const CLI::App& app, std::map<std::string, std::set<std::string>>& values) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const size_t open = type.find('{'), close = type.find('}', open);
    if (close == std::string::npos) continue;
    for (const std::string& name : option->get_lnames()) {
      const std::string allowed = type.substr(open + 1, close - open - 1);
      for (std::string& value : CLI::detail::split(allowed, ',')) values["--" + name].insert(value);
    }
  }
  for (const CLI::App* command : app.get_subcommands(nullptr)) collect_values(*command, values);
}

// The values that follow an option, where they are known.
std::string value_cases(const CLI::App& root) {
  std::map<std::string, std::set<std::string>> values;
  collect_values(root, values);
  // These are fields of the config, which checks them itself.
  for (const std::string& name : attention_implementations()) values["--attention"].insert(name);
  for (const std::string& name : wrapper_names()) values["--wrapper"].insert(name);
  std::string cases = "    --set) words=\"" + join(field_paths(Config()), " ") +
                      "\"; compopt -o nospace 2>/dev/null ;;\n";  // zsh has no compopt
  for (const auto& [option, words] : values) {
    const std::vector<std::string> sorted(words.begin(), words.end());
    cases += "    " + option + ") words=\"" + join(sorted, " ") + "\" ;;\n";
  }
  return cases;
}

std::string bash_script(const CLI::App& root) {
  std::string cases;
  write_cases(root, "", cases);
  return "_flashstep() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} path=\"\" words=\"\"\n"
         "  if ((COMP_CWORD > 1)); then path=${COMP_WORDS[1]}; fi\n"
         "  if ((COMP_CWORD > 2)); then\n"
         "    case $path in " +
         parents(root) +
         ") path+=\" ${COMP_WORDS[2]}\" ;; esac\n"
         "  fi\n"
         "  case ${COMP_WORDS[COMP_CWORD - 1]} in\n" +
         value_cases(root) +
         "  esac\n"
         "  if [[ -n $words ]]; then COMPREPLY=($(compgen -W \"$words\" -- \"$current\")); return; "
         "fi\n"
         "  case $path in\n" +
         cases +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  if [[ ${#COMPREPLY[@]} -eq 0 || $current != -* ]]; then\n"
         "    COMPREPLY+=($(compgen -f -- \"$current\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _flashstep flashstep\n";
}

}  // namespace

void add_completion(CLI::App& app) {
  auto* command =
      app.add_subcommand("completion", "Print a script that completes flashstep's commands");
  auto* shell = command->add_option("shell", "bash or zsh");
  shell->required()->check(CLI::IsMember({"bash", "zsh"}));
  command->footer(
      "Bash: source <(flashstep completion bash)    Zsh: source <(flashstep completion zsh)");
  command->callback([&app, shell] {
    // zsh runs bash's script through its own compatibility layer.
    if (shell->as<std::string>() == "zsh")
      std::cout << "autoload -U bashcompinit && bashcompinit\n";
    std::cout << bash_script(app);
  });
}

}  // namespace flashstep::apps
