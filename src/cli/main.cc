// The command line. Only this folder parses arguments, prints, and sets an exit code.
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "base/error.h"
#include "cli/common.h"
#include "cli/suggest.h"

namespace {

void on_signal(int signal) {
  // The second one ends the process at once.
  if (halftone::interrupt_flag().exchange(true)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace halftone::cli;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::signal(SIGPIPE, SIG_DFL);

  CLI::App app{"Halftone takes language models from FP32/BF16 to FP8 and below, and keeps them as good as they were.",
               "halftone"};
  app.set_version_flag("--version", "halftone " HALFTONE_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);
  Common common;
  for (int i = 0; i < argc; ++i) common.command_line += quoted(i == 0 ? "halftone" : argv[i]) + (i + 1 < argc ? " " : "");
  add_get(app, common);
  add_inspect(app, common);
  add_plan(app, common);
  add_quantize(app, common);
  add_convert(app, common);
  add_eval(app, common);
  add_run(app, common);
  add_chat(app, common);
  add_tokenize(app, common);
  add_bench(app, common);
  add_formats(app, common);
  add_memory(app, common);
  add_doctor(app, common);

  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const std::string hint = suggest(app, argc, argv);
    say("halftone: " + std::string(error.what()) + (hint.empty() ? "" : "; " + hint));
    return static_cast<int>(halftone::ErrorKind::usage);
  } catch (const halftone::Error& error) {
    say("halftone: " + std::string(error.what()));
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    say("halftone: out of memory: give --max-memory, a smaller --ctx, or use a machine with more");
    return static_cast<int>(halftone::ErrorKind::resources);
  } catch (const std::exception& error) {
    say("halftone: internal error, please report it: " + std::string(error.what()));
    return 1;
  }
}
