// "did you mean": the nearest name for one that was not understood.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace halftone::cli {

// For the first argument that the application does not know: the nearest subcommand or flag, or the list of them.
std::string suggest(const CLI::App& app, int argc, const char* const* argv);

}  // namespace halftone::cli
