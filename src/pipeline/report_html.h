// report.html: report.json for people. One file without outside resources, for screen (light and dark), phone and paper.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace halftone {

// `text` with & < > " ' written as entities: names come from files that strangers made.
std::string escape_html(std::string_view text);

// `report`: what make_report gives; parts that are absent or null are left out. `command`: the command line of the run.
std::string quantize_html(const nlohmann::ordered_json& report, std::string_view command);
// `evaluation`: what `eval --json` prints.
std::string evaluation_html(const nlohmann::ordered_json& evaluation, std::string_view command);

}  // namespace halftone
