#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

#include "base/error.h"
#include "text/unicode.h"

namespace halftone {
namespace {

constexpr std::string_view kMark = "\u2581";
constexpr std::size_t kLongestCached = 64;

// Floats in descending order as unsigned integers in ascending order.
std::uint32_t descending_key(float score) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(score == 0.0f ? 0.0f : score);
  const std::uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return ~ascending;
}

// Notes the last byte of every character that stands before a mark inside a token.
void note_before_marks(std::string_view piece, std::array<bool, 256>& joined) {
  for (std::size_t at = piece.find(kMark); at != std::string_view::npos; at = piece.find(kMark, at + kMark.size())) {
    if (at > 0 && !piece.substr(0, at).ends_with(kMark)) joined[static_cast<unsigned char>(piece[at - 1])] = true;
  }
}

}  // namespace

void MergeTable::reserve(std::size_t count) {
  std::vector<Entry> old(std::bit_ceil(std::max<std::size_t>(16, count * 2)));
  if (old.size() <= entries_.size()) return;
  old.swap(entries_);
  for (const Entry& entry : old) {
    if (entry.key != ~std::uint64_t{0}) entries_[slot(entry.key)] = entry;
  }
}

std::size_t MergeTable::slot(std::uint64_t key) const {
  std::uint64_t hash = key * 0x9E3779B97F4A7C15ull;  // Fibonacci hashing (Knuth, TAOCP 3, 6.4)
  hash ^= hash >> 32;
  const std::size_t mask = entries_.size() - 1;
  std::size_t at = static_cast<std::size_t>(hash) & mask;
  while (entries_[at].key != key && entries_[at].key != ~std::uint64_t{0}) at = (at + 1) & mask;
  return at;
}

bool MergeTable::insert(TokenId left, TokenId right, std::uint32_t rank, TokenId merged) {
  if ((size_ + 1) * 2 > entries_.size()) reserve(2 * (size_ + 1));
  Entry& entry = entries_[slot(pack(left, right))];
  if (entry.key != ~std::uint64_t{0}) return false;
  entry = {pack(left, right), rank, merged};
  ++size_;
  return true;
}

const MergeTable::Entry* MergeTable::find(TokenId left, TokenId right) const {
  if (entries_.empty()) return nullptr;
  const Entry& entry = entries_[slot(pack(left, right))];
  return entry.key == ~std::uint64_t{0} ? nullptr : &entry;
}

BpeModel::BpeModel(Definition definition) : d_(std::move(definition)) {
  const bool need_texts = d_.symbols == Symbols::characters || d_.ignore_merges;
  if (need_texts) {
    by_text_.reserve(d_.pieces.size());
    for (std::size_t i = 0; i < d_.pieces.size(); ++i) {
      if (!d_.pieces[i].empty()) by_text_.try_emplace(d_.pieces[i], static_cast<TokenId>(i));
    }
  }
  if (d_.order == Order::scores) {
    HT_CHECK(d_.scores.size() == d_.pieces.size());
    score_order_.reserve(d_.scores.size());
    for (const float score : d_.scores) score_order_.push_back(descending_key(score));
  }
  if (d_.symbols == Symbols::characters && by_text_.contains(kMark)) {
    cuts_before_marks_ = true;
    for (const std::string_view piece : d_.pieces) note_before_marks(piece, joined_to_mark_);
  }
}

TokenId BpeModel::find(std::string_view piece) const {
  const auto found = by_text_.find(piece);
  return found == by_text_.end() ? -1 : found->second;
}

void BpeModel::Session::encode(std::string_view piece, std::vector<TokenId>& out) {
  if (model_.d_.ignore_merges) {
    const TokenId whole = model_.find(piece);
    if (whole >= 0) {
      out.push_back(whole);
      return;
    }
  }
  if (!model_.cuts_before_marks_) {
    encode_piece(piece, out);
    return;
  }
  // Cut before a run of marks where no token has the character before it in front of a mark: no merge crosses there, so
  // the result is that of the whole piece.
  std::size_t begin = 0;
  for (std::size_t at = piece.find(kMark); at != std::string_view::npos;) {
    if (at > begin && !model_.joined_to_mark_[static_cast<unsigned char>(piece[at - 1])]) {
      encode_piece(piece.substr(begin, at - begin), out);
      begin = at;
    }
    std::size_t end = at;
    while (piece.substr(end).starts_with(kMark)) end += kMark.size();
    at = piece.find(kMark, end);
  }
  encode_piece(piece.substr(begin), out);
}

void BpeModel::Session::encode_piece(std::string_view piece, std::vector<TokenId>& out) {
  if (piece.empty()) return;
  if (piece.size() > kLongestCached) {
    merge(piece, out);
    return;
  }
  const auto found = cache_.find(piece);
  if (found != cache_.end()) {
    const auto begin = cached_ids_.begin() + static_cast<std::ptrdiff_t>(found->second.begin);
    out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(found->second.count));
    return;
  }
  const std::size_t first = out.size();
  merge(piece, out);
  cache_.emplace(std::string(piece), Seen{cached_ids_.size(), out.size() - first});
  cached_ids_.insert(cached_ids_.end(), out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
}

void BpeModel::Session::make_symbols(std::string_view piece) {
  symbols_.clear();
  const auto add = [&](std::size_t begin, std::size_t size, TokenId id) {
    symbols_.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(size), -1, -1, id});
  };
  const Definition& d = model_.d_;
  for (std::size_t at = 0; at < piece.size();) {
    const auto byte = static_cast<unsigned char>(piece[at]);
    if (d.symbols == Symbols::bytes) {
      const TokenId id = d.byte_tokens[byte];
      if (id >= 0 || d.unknown >= 0) add(at, 1, id >= 0 ? id : d.unknown);
      ++at;
      continue;
    }
    const Utf8Step step = read_utf8(piece, at);
    const std::size_t size = step.valid ? step.size : 1;
    const TokenId id = step.valid ? model_.find(piece.substr(at, size)) : -1;
    if (id >= 0 || d.order == Order::scores) {
      add(at, size, id);  // by scores an unknown character may still be part of a token
    } else {
      bool all_bytes = d.byte_fallback;
      for (std::size_t i = 0; i < size && all_bytes; ++i) {
        all_bytes = d.byte_tokens[static_cast<unsigned char>(piece[at + i])] >= 0;
      }
      if (all_bytes) {
        for (std::size_t i = 0; i < size; ++i) add(at + i, 1, d.byte_tokens[static_cast<unsigned char>(piece[at + i])]);
      } else if (d.unknown >= 0) {
        if (d.fuse_unknown && !symbols_.empty() && symbols_.back().id == d.unknown) {
          symbols_.back().size += static_cast<std::uint32_t>(size);
        } else {
          add(at, size, d.unknown);
        }
      }
    }
    at += size;
  }
  for (std::size_t i = 0; i < symbols_.size(); ++i) {
    symbols_[i].previous = static_cast<std::int32_t>(i) - 1;
    symbols_[i].next = i + 1 < symbols_.size() ? static_cast<std::int32_t>(i) + 1 : -1;
  }
}

void BpeModel::Session::consider(std::string_view piece, std::int32_t left, std::int32_t right) {
  if (left < 0 || right < 0) return;
  const Symbol& l = symbols_[static_cast<std::size_t>(left)];
  const Symbol& r = symbols_[static_cast<std::size_t>(right)];
  Candidate candidate;
  std::uint32_t priority = 0;
  if (model_.d_.order == Order::ranks) {
    const MergeTable::Entry* entry = model_.d_.merges.find(l.id, r.id);
    if (entry == nullptr) return;
    candidate.merged = entry->merged;
    priority = entry->rank;
  } else {
    candidate.merged = model_.find(piece.substr(l.begin, l.size + r.size));
    if (candidate.merged < 0) return;
    priority = model_.score_order_[static_cast<std::size_t>(candidate.merged)];
  }
  candidate.order = (std::uint64_t{priority} << 32) | static_cast<std::uint32_t>(left);
  candidate.right = static_cast<std::uint32_t>(right);
  candidate.size = l.size + r.size;
  heap_.push_back(candidate);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>{});
}

void BpeModel::Session::merge(std::string_view piece, std::vector<TokenId>& out) {
  if (piece.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail(ErrorKind::unsupported, "a text of {} bytes without a place to cut is too long for the tokenizer: split it",
         piece.size());
  }
  make_symbols(piece);
  heap_.clear();
  for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) {
    consider(piece, static_cast<std::int32_t>(i), static_cast<std::int32_t>(i) + 1);
  }
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>{});
    const Candidate candidate = heap_.back();
    heap_.pop_back();
    const auto left = static_cast<std::int32_t>(candidate.order & 0xFFFFFFFFu);
    Symbol& l = symbols_[static_cast<std::size_t>(left)];
    Symbol& r = symbols_[candidate.right];
    // Symbols only grow: equal sizes mean that neither has changed since this candidate was found.
    if (l.size == 0 || r.size == 0 || l.next != static_cast<std::int32_t>(candidate.right) ||
        l.size + r.size != candidate.size) {
      continue;
    }
    l.size += r.size;
    l.id = candidate.merged;
    r.size = 0;
    l.next = r.next;
    if (r.next >= 0) symbols_[static_cast<std::size_t>(r.next)].previous = left;
    consider(piece, l.previous, left);
    consider(piece, left, l.next);
  }
  emit(piece, out);
}

void BpeModel::Session::emit(std::string_view piece, std::vector<TokenId>& out) const {
  if (symbols_.empty()) return;
  const Definition& d = model_.d_;
  bool after_unknown = false;
  for (std::int32_t i = 0; i >= 0; i = symbols_[static_cast<std::size_t>(i)].next) {
    const Symbol& symbol = symbols_[static_cast<std::size_t>(i)];
    if (symbol.id >= 0) {
      out.push_back(symbol.id);
      after_unknown = false;
      continue;
    }
    bool all_bytes = d.byte_fallback;
    for (std::uint32_t b = 0; b < symbol.size && all_bytes; ++b) {
      all_bytes = d.byte_tokens[static_cast<unsigned char>(piece[symbol.begin + b])] >= 0;
    }
    if (all_bytes) {
      for (std::uint32_t b = 0; b < symbol.size; ++b) {
        out.push_back(d.byte_tokens[static_cast<unsigned char>(piece[symbol.begin + b])]);
      }
      after_unknown = false;
    } else if (d.unknown >= 0) {
      if (!(d.fuse_unknown && after_unknown)) out.push_back(d.unknown);
      after_unknown = true;
    }
  }
}

}  // namespace halftone
