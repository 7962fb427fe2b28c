#include "model/generate.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/progress.h"

namespace halftone {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Lets text through as soon as no stop string can begin in it any more.
class StopFilter {
 public:
  explicit StopFilter(const std::vector<std::string>& stops) : stops_(stops) {
    for (const std::string& stop : stops_) {
      if (stop.empty()) fail(ErrorKind::usage, "--stop: an empty text would stop everything");
    }
  }

  // What has become certain. After a stop string, `stopped()` and nothing more.
  std::string push(std::string_view text) {
    if (stopped_) return "";
    held_ += text;
    std::size_t found = std::string::npos;
    for (const std::string& stop : stops_) found = std::min(found, held_.find(stop));
    if (found != std::string::npos) {
      stopped_ = true;
      held_.resize(found);
      return std::exchange(held_, "");
    }
    std::size_t keep = 0;
    for (const std::string& stop : stops_) {
      for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
        if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) keep = n;
      }
    }
    std::string certain = held_.substr(0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
    return certain;
  }

  std::string finish() { return std::exchange(held_, ""); }
  bool stopped() const { return stopped_; }

 private:
  const std::vector<std::string>& stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace

GenerateResult generate(const Model& model, const Tokenizer& tokenizer, KvCache& cache, std::span<const TokenId> prompt,
                        const GenerateOptions& options, ThreadPool& pool,
                        const std::function<bool(std::string_view)>& emit) {
  if (prompt.empty()) fail(ErrorKind::usage, "the prompt is empty: there is nothing to go on from");
  if (options.prefill_chunk < 1) fail(ErrorKind::usage, "a prefill chunk of {}: must be at least 1", options.prefill_chunk);
  const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
  if (prompt_tokens > cache.max_tokens() - cache.length()) {
    fail(ErrorKind::usage, "the prompt has {} tokens, but only {} of the context of {} are free", prompt_tokens,
         cache.max_tokens() - cache.length(), cache.max_tokens());
  }
  Sampler sampler(options.sampling);
  StopFilter filter(options.stop);
  StreamDecoder decoder(tokenizer);
  std::vector<TokenId> end_tokens;
  if (!options.ignore_eos) {
    end_tokens = tokenizer.end_tokens();
    end_tokens.insert(end_tokens.end(), model.config().eos_ids.begin(), model.config().eos_ids.end());
  }

  GenerateResult result;
  result.prompt_tokens = prompt_tokens;
  const auto width = static_cast<std::size_t>(model.config().hidden);
  std::vector<float> hidden, logits(static_cast<std::size_t>(model.config().vocabulary));

  const auto prefill_start = Clock::now();
  for (std::int64_t first = 0; first < prompt_tokens; first += options.prefill_chunk) {
    throw_if_interrupted();
    const std::int64_t count = std::min(options.prefill_chunk, prompt_tokens - first);
    model.forward(prompt.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), cache, hidden, pool);
  }
  model.logits(std::span(hidden).last(width), 1, logits, pool);
  result.prefill_seconds = seconds_since(prefill_start);

  bool cancelled = false;
  const auto deliver = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    if (emit && !emit(text)) cancelled = true;
  };

  const auto decode_start = Clock::now();
  std::vector<TokenId> recent(prompt.begin(), prompt.end());
  while (result.finish_reason.empty()) {
    if (!emit) throw_if_interrupted();
    if (options.max_tokens >= 0 && static_cast<std::int64_t>(result.tokens.size()) >= options.max_tokens) {
      result.finish_reason = "length";
      break;
    }
    // Every token so far has been fed: the next one would have no place.
    if (cache.length() >= cache.max_tokens()) {
      result.finish_reason = "context";
      break;
    }
    const TokenId token = sampler.sample(logits, recent);
    if (std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end()) {
      result.finish_reason = "stop";
      break;
    }
    result.tokens.push_back(token);
    recent.push_back(token);
    deliver(filter.push(decoder.push(token)));
    if (filter.stopped()) {
      result.finish_reason = "stop";
    } else if (cancelled) {
      result.finish_reason = "cancelled";
    } else if (options.max_tokens < 0 || static_cast<std::int64_t>(result.tokens.size()) < options.max_tokens) {
      model.forward(std::span(&token, 1), cache, hidden, pool);
      model.logits(hidden, 1, logits, pool);
    }
  }
  if (!filter.stopped() && !cancelled) {
    deliver(filter.push(decoder.finish()));
    if (!cancelled && !filter.stopped()) deliver(filter.finish());
  }
  result.decode_seconds = seconds_since(decode_start);
  return result;
}

}  // namespace halftone
