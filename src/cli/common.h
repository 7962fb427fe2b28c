// What all subcommands share: common flags, loading a model, tables, JSON, progress on standard error.
#pragma once

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/progress.h"
#include "model/generate.h"
#include "model/model.h"
#include "pipeline/open.h"

namespace halftone::cli {

using Json = nlohmann::ordered_json;

struct Common {
  bool json = false;
  int threads = 0;  // 0 = as thread_budget() says
  bool verbose = false;
  std::string progress = "auto";  // auto, json, none
  std::string command_line;       // as a shell would read it back, for reports
};

// --json, -t, -v, --progress; the callback of the subcommand runs after the threads are set.
void add_common(CLI::App& command, Common& common);
void apply(const Common& common);  // sets the thread pool; Error(usage) for senseless counts

// Progress on standard error: one moving line on a terminal, a line every few seconds elsewhere, JSON lines on request.
std::unique_ptr<Progress> make_progress(const Common& common);

std::string quoted(const std::string& word);               // for a POSIX shell; plain words stay as they are
void print(const std::string& text);                       // standard output
void print_json(const Json& value);                        // one object, then a newline
void say(const std::string& line);                         // standard error

// Columns separated by two spaces; the first is left-aligned, the others right-aligned.
std::string format_table(const std::vector<std::vector<std::string>>& rows);
std::string format_bytes(double bytes);                    // "134.5 MB" (powers of ten, as disks and papers count)
std::int64_t parse_size(const std::string& text, const std::string& flag);  // "2G", "512M", "1e9"; Error(usage)

struct LoadedModel {
  Checkpoint checkpoint;
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
};
LoadedModel load_model(const std::string& path, Progress& progress);

std::uint64_t stored_bytes(const Checkpoint& checkpoint);  // of all tensors in the files
// The token that starts a text of its own: BOS, else the end-of-text token, else 0.
std::int32_t start_token(const LoadedModel& loaded);

struct SamplingFlags {
  GenerateOptions options;
  std::string kv = "bf16";
  std::int64_t ctx = 0;  // 0: as much as the model was made for, at most 4096
};
void add_sampling(CLI::App& command, SamplingFlags& flags);
std::int64_t context_of(const SamplingFlags& flags, const ModelConfig& config);

// One line each; every file in this folder that is a subcommand has one.
void add_get(CLI::App& app, Common& common);
void add_inspect(CLI::App& app, Common& common);
void add_plan(CLI::App& app, Common& common);
void add_quantize(CLI::App& app, Common& common);
void add_convert(CLI::App& app, Common& common);
void add_eval(CLI::App& app, Common& common);
void add_run(CLI::App& app, Common& common);
void add_chat(CLI::App& app, Common& common);
void add_tokenize(CLI::App& app, Common& common);
void add_bench(CLI::App& app, Common& common);
void add_formats(CLI::App& app, Common& common);
void add_memory(CLI::App& app, Common& common);
void add_doctor(CLI::App& app, Common& common);

}  // namespace halftone::cli
