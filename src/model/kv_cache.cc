#include <limits>

#include "base/error.h"
#include "model/model.h"

namespace halftone {
namespace {

std::int64_t pages_for(std::int64_t tokens) {
  return tokens / kKvPageTokens + (tokens % kKvPageTokens != 0 ? 1 : 0);
}

KvLayout layout_of(const ModelConfig& config, const ElementFormat& format) {
  KvLayout layout;
  layout.kv_heads = config.kv_heads;
  layout.head_dim = config.head_dim;
  layout.format = format;
  return layout;
}

}  // namespace

KvCache::KvCache(const ModelConfig& config, const ElementFormat& format, std::int64_t max_tokens)
    : layout_(layout_of(config, format)), max_tokens_(max_tokens), pages_(config.layers.size()) {
  if (max_tokens <= 0) fail(ErrorKind::usage, "a context of {} tokens: must be at least 1", max_tokens);
  layout_.page_bytes();  // refuses formats that the cache cannot hold
}

void KvCache::truncate(std::int64_t length) {
  HT_CHECK(length >= 0 && length <= length_);
  length_ = length;
}

std::size_t KvCache::bytes() const {
  std::size_t count = 0;
  for (const auto& layer : pages_) count += layer.size();
  return count * layout_.page_bytes();
}

std::size_t KvCache::bytes_for(const ModelConfig& config, const ElementFormat& format, std::int64_t tokens) {
  HT_CHECK(tokens >= 0);
  std::int64_t bytes = 0;
  const auto page = static_cast<std::int64_t>(layout_of(config, format).page_bytes());
  const auto layers = static_cast<std::int64_t>(config.layers.size());
  if (__builtin_mul_overflow(pages_for(tokens), layers, &bytes) || __builtin_mul_overflow(bytes, page, &bytes)) {
    fail(ErrorKind::usage, "a context of {} tokens needs more memory than can be addressed", tokens);
  }
  return static_cast<std::size_t>(bytes);
}

void KvCache::reserve(std::int64_t tokens) {
  const auto needed = static_cast<std::size_t>(pages_for(tokens));
  for (auto& layer : pages_) {
    // Pages start as zeros: a token's slot that was never written holds numbers.
    while (layer.size() < needed) layer.push_back(std::make_unique<std::byte[]>(layout_.page_bytes()));
  }
}

ElementFormat kv_format_or_fail(std::string_view name) {
  if (name == "fp32" || name == "f32") return fp32_format();
  if (name == "bf16") return bf16_format();
  if (name == "fp16" || name == "f16") return fp16_format();
  if (name == "int8") return int_format(8);
  if (name == "fp8" || name == "fp8_e4m3") return fp8_e4m3_format();
  if (name == "fp8_e5m2") return fp8_e5m2_format();
  fail(ErrorKind::usage, "'{}' is no format of the KV cache; use fp32, bf16, fp16, int8, fp8 or fp8_e5m2", name);
}

}  // namespace halftone
