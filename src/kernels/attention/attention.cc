#include "kernels/attention/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/integer.h"
#include "kernels/activation/elementary.h"
#include "kernels/attention/kernels.h"
#include "kernels/attention/page.h"

namespace halftone {
namespace {

constexpr std::int64_t kMaxBlockRows = 64;  // rows that share one decoding of a page
constexpr std::int64_t kSerialPairs = 48;   // (row, head, page) triples that are done before a second thread wakes
constexpr std::int64_t kMaxSplitRows = 8;   // up to here pages may be shared out among threads
constexpr std::int64_t kPairs = 16;  // (row, head) pairs whose scores are kept at a time, so that keys stay in L1

// Floats that start at a cache line: registers loaded from here never straddle two lines.
class AlignedFloats {
 public:
  void resize(std::int64_t n) {
    constexpr std::size_t kLine = 64;
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(float);
    if (storage_.size() < bytes + kLine) storage_.resize(bytes + kLine);
    void* start = storage_.data();
    std::size_t space = storage_.size();
    data_ = static_cast<float*>(std::align(kLine, bytes, start, space));
  }
  float* data() { return data_; }
  const float* data() const { return data_; }

 private:
  std::vector<std::byte> storage_;
  float* data_ = nullptr;
};

struct Scratch {
  AlignedFloats raw, keys, values;  // a page of one head: [tokens][dim], [dim][tokens], [tokens][dim]
  AlignedFloats scores;             // [kPairs][tokens]
  AlignedFloats part;               // [dim]
  AlignedFloats outputs;            // [pairs of a task][dim]
  std::vector<float> maxima, sums;  // [pairs of a task]
};

Scratch& scratch() {
  thread_local Scratch own;
  return own;
}

// Tokens [low, high) of a page.
struct TokenRange {
  std::int64_t low = 0, high = 0;
};

// Everything that the steps of one call share.
struct Job {
  const AttentionKernels& kernels;
  const AttentionSpec& spec;
  const PageMap map;
  std::int64_t kv_heads, group;  // query heads a key head
  std::int64_t head_dim, dim;    // dim: head_dim rounded up to 8
  const float* q;
  float* out;
  std::int64_t rows, first_position;
  std::span<const std::byte* const> pages;

  std::int64_t first_page(std::int64_t row) const {
    const std::int64_t position = first_position + row;
    return spec.window > 0 && position >= spec.window ? (position - spec.window + 1) / kKvPageTokens : 0;
  }
  std::int64_t last_page(std::int64_t row) const { return (first_position + row) / kKvPageTokens; }

  // Tokens of a page that a row may see; empty if high <= low.
  TokenRange visible(std::int64_t row, std::int64_t page) const {
    const std::int64_t at = first_position + row - page * kKvPageTokens;
    return {spec.window > 0 ? std::max<std::int64_t>(0, at - spec.window + 1) : 0, std::min(kKvPageTokens, at + 1)};
  }

  const float* query(std::int64_t row, std::int64_t head) const { return q + (row * spec.heads + head) * head_dim; }

  void decode_rows(const std::byte* page, std::size_t codes, std::size_t scales, std::int64_t tokens, float* to) const;
  void load_page(std::int64_t page, std::int64_t kv_head, std::int64_t tokens, Scratch& s) const;
  void combine(float* output, float& maximum, float& sum, const float* part, float page_maximum, float page_sum) const;
  void finish(const float* output, float sum, std::int64_t row, std::int64_t head) const;
  void run_rows(std::int64_t kv_head, std::int64_t begin, std::int64_t end) const;
};

void Job::decode_rows(const std::byte* page, std::size_t codes, std::size_t scales, std::int64_t tokens,
                      float* to) const {
  const bool scaled = map.code_bytes == 1;
  if (!scaled && dim == head_dim) {
    kernels.decode(map.kind, page + codes, 1.0F, tokens * dim, to);
  } else {
    if (dim != head_dim) std::fill_n(to, tokens * dim, 0.0F);
    for (std::int64_t t = 0; t < tokens; ++t) {
      float scale = 1.0F;
      if (scaled) std::memcpy(&scale, page + scales + static_cast<std::size_t>(t) * sizeof scale, sizeof scale);
      kernels.decode(map.kind, page + codes + static_cast<std::size_t>(t * head_dim) * map.code_bytes, scale, head_dim,
                     to + t * dim);
    }
  }
}

// Keys (transposed) and values of the first `tokens` tokens; slots after them may hold anything and are not read.
void Job::load_page(std::int64_t page, std::int64_t kv_head, std::int64_t tokens, Scratch& s) const {
  const std::int64_t numbers = kKvPageTokens * dim;
  s.raw.resize(numbers);
  s.keys.resize(numbers);
  s.values.resize(numbers);
  const std::byte* bytes = pages[static_cast<std::size_t>(page)];
  HT_CHECK(bytes != nullptr);
  const auto row = static_cast<std::size_t>(kv_head * kKvPageTokens);
  decode_rows(bytes, map.key_codes(row), map.key_scale(row), tokens, s.raw.data());
  std::fill(s.raw.data() + tokens * dim, s.raw.data() + numbers, 0.0F);
  kernels.transpose(s.raw.data(), dim, dim, s.keys.data());
  decode_rows(bytes, map.value_codes(row), map.value_scale(row), tokens, s.values.data());
}

void Job::combine(float* output, float& maximum, float& sum, const float* part, float page_maximum,
                  float page_sum) const {
  const float top = page_maximum > maximum ? page_maximum : maximum;
  // exp(0) is exactly 1.
  const float a = maximum == top ? 1.0F : scalar::exp_f32(maximum - top);
  const float b = page_maximum == top ? 1.0F : scalar::exp_f32(page_maximum - top);
  kernels.combine(output, a, part, b, dim);
  sum = page_sum * b + sum * a;
  maximum = top;
}

void Job::finish(const float* output, float sum, std::int64_t row, std::int64_t head) const {
  float* to = out + (row * spec.heads + head) * head_dim;
  for (std::int64_t d = 0; d < head_dim; ++d) to[d] = output[d] / sum;
}

// Rows [begin, end) of the query heads of one key head, page after page.
void Job::run_rows(std::int64_t kv_head, std::int64_t begin, std::int64_t end) const {
  Scratch& s = scratch();
  const std::int64_t pairs = (end - begin) * group;
  s.scores.resize(kPairs * kKvPageTokens);
  s.part.resize(dim);
  s.outputs.resize(pairs * dim);
  std::fill_n(s.outputs.data(), pairs * dim, 0.0F);
  s.maxima.assign(static_cast<std::size_t>(pairs), -std::numeric_limits<float>::infinity());
  s.sums.assign(static_cast<std::size_t>(pairs), 0.0F);
  for (std::int64_t page = first_page(begin); page <= last_page(end - 1); ++page) {
    const TokenRange whole = visible(end - 1, page);  // the last row sees furthest
    load_page(page, kv_head, whole.high, s);
    for (std::int64_t first = 0; first < pairs; first += kPairs) {
      const std::int64_t count = std::min(kPairs, pairs - first);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = begin + (first + i) / group, head = kv_head * group + (first + i) % group;
        const TokenRange range = visible(row, page);
        if (range.low >= range.high) continue;
        kernels.scores(query(row, head), s.keys.data(), head_dim, range.low, range.high,
                       s.scores.data() + i * kKvPageTokens);
      }
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t pair = first + i;
        const TokenRange range = visible(begin + pair / group, page);
        if (range.low >= range.high) continue;
        float* scores = s.scores.data() + i * kKvPageTokens;
        float sum = 0.0F;
        const float maximum = kernels.softmax(scores, range.low, range.high, spec.scale, spec.softcap, &sum);
        kernels.weighted(scores, s.values.data(), dim, range.low, range.high, s.part.data());
        combine(s.outputs.data() + pair * dim, s.maxima[static_cast<std::size_t>(pair)],
                s.sums[static_cast<std::size_t>(pair)], s.part.data(), maximum, sum);
      }
    }
  }
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    finish(s.outputs.data() + pair * dim, s.sums[static_cast<std::size_t>(pair)], begin + pair / group,
           kv_head * group + pair % group);
  }
}

// Few rows: threads take pages, and the parts are combined afterwards in the same order as run_rows does.
void run_split(const Job& job, ThreadPool& pool) {
  const std::int64_t first_page = job.first_page(0);
  const std::int64_t page_count = job.last_page(job.rows - 1) - first_page + 1;
  const std::int64_t pairs = job.rows * job.group;  // of one key head
  const std::int64_t stride = job.dim + 2;          // maximum, sum, output
  std::vector<float> parts(static_cast<std::size_t>(job.kv_heads * page_count * pairs * stride));
  const auto part = [&](std::int64_t kv_head, std::int64_t page, std::int64_t pair) {
    return parts.data() + ((kv_head * page_count + page) * pairs + pair) * stride;
  };
  pool.run(job.kv_heads * page_count, [&](std::int64_t task, int) {
    const std::int64_t kv_head = task / page_count, page = task % page_count;
    Scratch& s = scratch();
    s.scores.resize(kPairs * kKvPageTokens);
    job.load_page(first_page + page, kv_head, job.visible(job.rows - 1, first_page + page).high, s);
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const std::int64_t row = pair / job.group;
      const TokenRange range = job.visible(row, first_page + page);
      if (range.low >= range.high) continue;
      float* to = part(kv_head, page, pair);
      float* scores = s.scores.data();
      job.kernels.scores(job.query(row, kv_head * job.group + pair % job.group), s.keys.data(), job.head_dim, range.low,
                         range.high, scores);
      to[0] = job.kernels.softmax(scores, range.low, range.high, job.spec.scale, job.spec.softcap, &to[1]);
      job.kernels.weighted(scores, s.values.data(), job.dim, range.low, range.high, to + 2);
    }
  });
  std::vector<float> output(static_cast<std::size_t>(job.dim));
  for (std::int64_t kv_head = 0; kv_head < job.kv_heads; ++kv_head) {
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const std::int64_t row = pair / job.group;
      std::fill(output.begin(), output.end(), 0.0F);
      float maximum = -std::numeric_limits<float>::infinity(), sum = 0.0F;
      for (std::int64_t page = 0; page < page_count; ++page) {
        const TokenRange range = job.visible(row, first_page + page);
        if (range.low >= range.high) continue;
        const float* from = part(kv_head, page, pair);
        job.combine(output.data(), maximum, sum, from + 2, from[0], from[1]);
      }
      job.finish(output.data(), sum, row, kv_head * job.group + pair % job.group);
    }
  }
}

}  // namespace

const AttentionKernels& attention_kernels([[maybe_unused]] Isa isa) {
#ifdef HALFTONE_SIMD
  if (isa >= Isa::avx2) return avx2::attention_kernels;
#endif
  return scalar::attention_kernels;
}

void attention_with(Isa isa, const AttentionSpec& spec, const KvLayout& layout, const float* q, std::int64_t rows,
                    std::int64_t first_position, std::span<const std::byte* const> pages, float* out,
                    ThreadPool& pool) {
  if (rows == 0) return;
  HT_CHECK(rows > 0 && first_position >= 0 && layout.kv_heads > 0 && layout.head_dim > 0);
  HT_CHECK(spec.heads > 0 && spec.heads % layout.kv_heads == 0 && spec.window >= 0);
  HT_CHECK(static_cast<std::int64_t>(pages.size()) > (first_position + rows - 1) / kKvPageTokens);
  const Job job{attention_kernels(isa),
                spec,
                PageMap(layout),
                layout.kv_heads,
                spec.heads / layout.kv_heads,
                layout.head_dim,
                (layout.head_dim + 7) / 8 * 8,
                q,
                out,
                rows,
                first_position,
                pages};
  const std::int64_t threads = pool.size();
  const std::int64_t page_count = job.last_page(rows - 1) - job.first_page(0) + 1;
  if (threads == 1 || rows * spec.heads * page_count <= kSerialPairs) {
    for (std::int64_t first = 0; first < rows; first += kMaxBlockRows) {
      for (std::int64_t h = 0; h < job.kv_heads; ++h) job.run_rows(h, first, std::min(rows, first + kMaxBlockRows));
    }
    return;
  }
  if (rows <= kMaxSplitRows && page_count > 1) return run_split(job, pool);

  // About four tasks a thread, so that the triangle of a prefill is shared out evenly.
  const std::int64_t wanted = ceil_div(rows * job.kv_heads, 4 * threads);
  const std::int64_t block = std::clamp<std::int64_t>(round_up(wanted, 8), 8, kMaxBlockRows);
  const std::int64_t blocks = ceil_div(rows, block);
  pool.run(blocks * job.kv_heads, [&](std::int64_t task, int) {
    const std::int64_t b = blocks - 1 - task / job.kv_heads;  // the longest first
    job.run_rows(task % job.kv_heads, b * block, std::min(rows, (b + 1) * block));
  });
}

void attention(const AttentionSpec& spec, const KvLayout& layout, const float* q, std::int64_t rows,
               std::int64_t first_position, std::span<const std::byte* const> pages, float* out, ThreadPool& pool) {
  attention_with(active_isa().isa, spec, layout, q, rows, first_position, pages, out, pool);
}

}  // namespace halftone
