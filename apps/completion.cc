// flashstep completion bash|zsh: a script that completes commands and options, written from the
// parser itself.
#include <iostream>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "flashstep/attention/implementation_names.h"
#include "flashstep/base/text.h"
#include "flashstep/bench/workload.h"
#include "flashstep/report/result.h"
#include "flashstep/train/config.h"

namespace flashstep::apps {
namespace {

// Those that the parser of `option` allows, "{cpu,cuda}" in what CLI11 calls its type. Words of a
// list have no spaces: values that have some are left out.
std::vector<std::string> allowed_values(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.find('}', open);
  if (close == std::string::npos) return {};
  std::vector<std::string> values =
      CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
  std::erase_if(values, [](const std::string& v) { return v.find(' ') != std::string::npos; });
  return values;
}

// One line of a bash `case` for `app`, and those of everything below it: "train) words=...".
void write_cases(const CLI::App& app, const std::string& path, std::string& out) {
  std::vector<std::string> words;
  for (const CLI::App* command : app.get_subcommands(nullptr)) words.push_back(command->get_name());
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
    if (option->get_positional())
      for (std::string& value : allowed_values(*option)) words.push_back(std::move(value));
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

// What follows an option whose values the command itself checks, not the parser.
std::vector<std::string> later_checked(const std::string& command, const std::string& option) {
  if (option == "set") return field_paths(Config());
  if (command == "train" && option == "wrapper") return wrapper_names();
  if (command == "report" && option == "only") return tools::section_names();
  const bool computes = command == "train" || command == "precision" || command == "bench ddp" ||
                        command == "bench sharding";
  if (option == "attention" && computes) return attention_implementations();
  if (option != "size") return {};
  std::vector<std::string> sizes = tools::workload_size_names();
  sizes.emplace_back("all");
  return sizes;
}

// The values that follow an option of `app`, or of a command below it, where they are known.
void write_value_cases(const CLI::App& app, const std::string& path, std::string& out) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      std::vector<std::string> values = allowed_values(*option);
      if (values.empty()) values = later_checked(path, name);
      if (values.empty()) continue;
      out += "    \"" + path + " --" + name + "\") words=\"" + join(values, " ") + "\"";
      if (name == "set") out += "; compopt -o nospace 2>/dev/null";  // zsh has no compopt
      out += " ;;\n";
    }
  }
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    write_value_cases(*command, path + (path.empty() ? "" : " ") + command->get_name(), out);
  }
}

std::string bash_script(const CLI::App& root) {
  std::string cases, value_cases;
  write_cases(root, "", cases);
  write_value_cases(root, "", value_cases);
  return "_flashstep() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} path=\"\" words=\"\"\n"
         "  if ((COMP_CWORD > 1)); then path=${COMP_WORDS[1]}; fi\n"
         "  if ((COMP_CWORD > 2)) && [[ ${COMP_WORDS[2]} != -* ]]; then\n"
         "    case $path in " +
         parents(root) +
         ") path+=\" ${COMP_WORDS[2]}\" ;; esac\n"
         "  fi\n"
         "  case \"$path ${COMP_WORDS[COMP_CWORD - 1]}\" in\n" +
         value_cases +
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
