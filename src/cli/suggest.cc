#include "cli/suggest.h"

#include <CLI/CLI.hpp>

#include <algorithm>

#include "numeric/names.h"

namespace halftone::cli {
namespace {

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  std::string best;
  std::size_t distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t d = edit_distance(word, name);
    if (d < distance) {
      distance = d;
      best = name;
    }
  }
  return best;
}

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

}  // namespace

std::string suggest(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(command->get_name());
  }
  if (argc < 2) return "halftone --help lists the commands";
  const std::string_view first = argv[1];
  const auto known = std::find(commands.begin(), commands.end(), first);
  if (known == commands.end()) {
    const std::string near = nearest(first, commands);
    if (!near.empty() && !first.starts_with("-")) return "did you mean 'halftone " + near + "'?";
    std::string list;
    for (const std::string& name : commands) list += (list.empty() ? "" : ", ") + name;
    return "the commands are " + list;
  }
  const CLI::App* command = app.get_subcommand(*known);
  const std::vector<std::string> flags = flag_names(*command);
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = std::string_view(argv[i]).substr(0, std::string_view(argv[i]).find('='));
    if (!word.starts_with("-") || word.size() < 2 || std::find(flags.begin(), flags.end(), word) != flags.end()) continue;
    const std::string near = nearest(word, flags);
    if (!near.empty()) return "did you mean " + near + "?";
  }
  return "see halftone " + *known + " --help";
}

}  // namespace halftone::cli
