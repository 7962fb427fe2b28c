#include "cli/common.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"

namespace halftone::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  if (s >= 60) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

class ConsoleProgress final : public Progress {
 public:
  explicit ConsoleProgress(bool json) : json_(json), terminal_(::isatty(STDERR_FILENO) == 1) {}

  void begin(std::string_view stage, std::uint64_t total, std::string_view unit) override {
    stage_ = stage;
    unit_ = unit;
    total_ = total;
    done_ = 0;
    start_ = last_ = Clock::now();
    shown_ = false;
  }

  void advance(std::uint64_t units, std::string_view item) override {
    done_ += units;
    item_ = item;
    // A stage shorter than a second shows nothing.
    if (seconds_since(start_) < 1.0 || seconds_since(last_) < (json_ ? 1.0 : terminal_ ? 0.2 : 5.0)) return;
    last_ = Clock::now();
    show();
  }

  void end() override {
    if (shown_) {
      show();
      if (terminal_ && !json_) std::fputs("\n", stderr);
    }
    shown_ = false;
  }

  void note(std::string_view line) override {
    if (json_) {
      std::fputs((Json{{"note", std::string(line)}}.dump() + "\n").c_str(), stderr);
      return;
    }
    if (shown_ && terminal_) std::fputs("\n", stderr);
    std::fputs(fmt::format("{}\n", line).c_str(), stderr);
  }

 private:
  void show() {
    const double elapsed = seconds_since(start_);
    const double rate = elapsed > 0 ? static_cast<double>(done_) / elapsed : 0;
    const double left = rate > 0 && total_ >= done_ ? static_cast<double>(total_ - done_) / rate : NAN;
    if (json_) {
      Json line{{"stage", stage_}, {"done", done_}, {"total", total_}, {"unit", unit_}, {"item", item_},
                {"per_second", rate}, {"memory_bytes", current_resident_bytes()}};
      if (std::isfinite(left)) line["seconds_left"] = left;
      std::fputs((line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n").c_str(), stderr);
    } else {
      const bool bytes = unit_ == "bytes";
      const std::string count = bytes ? fmt::format("{} of {}", format_bytes(static_cast<double>(done_)),
                                                    format_bytes(static_cast<double>(total_)))
                                      : fmt::format("{} of {} {}", done_, total_, unit_);
      const std::string speed = bytes ? format_bytes(rate) + "/s" : fmt::format("{:.1f}/s", rate);
      const std::string text =
          fmt::format("{}: {}, {}, {} left, {} memory  {}", stage_, count, speed, format_duration(left),
                      format_bytes(static_cast<double>(current_resident_bytes())), item_);
      std::fputs((terminal_ ? "\r\x1b[K" + text.substr(0, 160) : text + "\n").c_str(), stderr);
      std::fflush(stderr);
    }
    shown_ = true;
  }

  bool json_, terminal_, shown_ = false;
  std::string stage_, unit_, item_;
  std::uint64_t total_ = 0, done_ = 0;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

// Only what a person must see.
class NotesOnly final : public Progress {
  void begin(std::string_view, std::uint64_t, std::string_view) override {}
  void advance(std::uint64_t, std::string_view) override {}
  void end() override {}
  void note(std::string_view line) override { say(std::string(line)); }
};

}  // namespace

void add_common(CLI::App& command, Common& common) {
  command.add_flag("--json", common.json, "Print the result as one JSON object; everything else goes to standard error");
  command.add_option("-t,--threads", common.threads, "Threads (default: what the cgroup and the affinity allow)")
      ->check(CLI::Range(1, 4096));
  command.add_flag("-v,--verbose", common.verbose, "Print more");
  command.add_option("--progress", common.progress, "auto, json or none")
      ->check(CLI::IsMember({"auto", "json", "none"}));
}

void apply(const Common& common) { set_default_threads(common.threads); }

std::unique_ptr<Progress> make_progress(const Common& common) {
  if (common.progress == "none") return std::make_unique<NotesOnly>();
  return std::make_unique<ConsoleProgress>(common.progress == "json");
}

std::string quoted(const std::string& word) {
  static constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./:=,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void print_json(const Json& value) { print(value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }

void say(const std::string& line) { std::fputs((line + "\n").c_str(), stderr); }

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  const auto width_of = [](const std::string& cell) {  // code points, so that "±" counts as one
    return static_cast<std::size_t>(
        std::count_if(cell.begin(), cell.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
  };
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width_of(row[i]), ' ');
      line += i == 0 ? row[i] + padding : "  " + padding + row[i];
    }
    while (line.ends_with(' ')) line.pop_back();
    text += line + "\n";
  }
  return text;
}

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
  std::size_t unit = 0;
  while (bytes >= 999.95 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::int64_t parse_size(const std::string& text, const std::string& flag) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string suffix = end;
  std::transform(suffix.begin(), suffix.end(), suffix.begin(), [](unsigned char c) { return std::toupper(c); });
  if (suffix.ends_with("IB")) suffix.erase(suffix.size() - 2);
  if (suffix.ends_with("B") && suffix.size() > 1) suffix.pop_back();
  double factor = 0;
  if (suffix.empty() || suffix == "B") factor = 1;
  if (suffix == "K") factor = 1024.0;
  if (suffix == "M") factor = 1024.0 * 1024;
  if (suffix == "G") factor = 1024.0 * 1024 * 1024;
  if (suffix == "T") factor = 1024.0 * 1024 * 1024 * 1024;
  if (end == text.c_str() || factor == 0 || !(number > 0) || number * factor > 9e18) {
    fail(ErrorKind::usage, "{} {}: expected a size such as 512M or 2G", flag, text);
  }
  return static_cast<std::int64_t>(number * factor);
}

LoadedModel load_model(const std::string& path, Progress& progress) {
  LoadedModel loaded;
  loaded.checkpoint = open_checkpoint(path);
  const ModelConfig& config = runnable_config(loaded.checkpoint);
  loaded.model = std::make_unique<Model>(config, *loaded.checkpoint.weights, default_pool(), progress);
  loaded.tokenizer = open_tokenizer(loaded.checkpoint);
  return loaded;
}

std::uint64_t stored_bytes(const Checkpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const TensorInfo& info : checkpoint.tensors->tensors()) bytes += info.bytes;
  return bytes;
}

std::int32_t start_token(const LoadedModel& loaded) {
  if (loaded.tokenizer->adds_bos() && loaded.tokenizer->bos()) return *loaded.tokenizer->bos();
  if (const auto id = loaded.tokenizer->find_token("<|endoftext|>")) return *id;
  if (loaded.tokenizer->bos()) return *loaded.tokenizer->bos();
  if (loaded.tokenizer->eos()) return *loaded.tokenizer->eos();
  return 0;
}

void add_sampling(CLI::App& command, SamplingFlags& flags) {
  GenerateOptions& options = flags.options;
  SamplingOptions& sampling = options.sampling;
  command.add_option("-n,--n-predict", options.max_tokens, "At most this many new tokens")->capture_default_str();
  command.add_option("-c,--ctx,--ctx-size", flags.ctx, "Context: prompt and answer together (default: the model's, at most 4096)");
  command.add_option("--temp", sampling.temperature, "Temperature; 0 takes the likeliest token")->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Only the k likeliest tokens; 0 = all")->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "Only the likeliest tokens that make up this probability")->capture_default_str();
  command.add_option("--min-p", sampling.min_p, "Only tokens with this share of the likeliest one's probability")->capture_default_str();
  command.add_option("--repeat-penalty", sampling.repetition_penalty, "Divides the logits of recent tokens; 1 = off")->capture_default_str();
  command.add_option("--repeat-last-n", sampling.repetition_window, "How many tokens count as recent")->capture_default_str();
  command.add_option("-s,--seed", sampling.seed, "Seed of the random numbers")->capture_default_str();
  command.add_option("--stop", options.stop, "Stop before this text (may be given several times)");
  command.add_flag("--ignore-eos", options.ignore_eos, "Go on after an end token");
  command.add_option("--kv,-k,--cache-type", flags.kv, "Format of the KV cache: fp32, bf16, fp16, int8, fp8, fp8_e5m2")->capture_default_str();
}

std::int64_t context_of(const SamplingFlags& flags, const ModelConfig& config) {
  if (flags.ctx < 0) fail(ErrorKind::usage, "--ctx {}: expected a positive number", flags.ctx);
  if (flags.ctx > config.context) {
    fail(ErrorKind::usage, "--ctx {}: the model was made for {} tokens", flags.ctx, config.context);
  }
  return flags.ctx > 0 ? flags.ctx : std::min<std::int64_t>(config.context, 4096);
}

}  // namespace halftone::cli
