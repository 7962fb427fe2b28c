// Byte-pair encoding of one piece of text, by merge ranks (tokenizer.json, GGUF "gpt2") or by the scores of the merged
// pieces (SentencePiece, GGUF "llama").
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace halftone {

// (left token, right token) -> rank and merged token. Open addressing: half a million entries load in well under 0.1 s.
class MergeTable {
 public:
  struct Entry {
    std::uint64_t key = ~std::uint64_t{0};
    std::uint32_t rank = 0;
    TokenId merged = -1;
  };
  void reserve(std::size_t count);
  // false if the pair is there already.
  bool insert(TokenId left, TokenId right, std::uint32_t rank, TokenId merged);
  const Entry* find(TokenId left, TokenId right) const;
  std::size_t size() const { return size_; }

 private:
  static std::uint64_t pack(TokenId left, TokenId right) {
    return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
  }
  std::size_t slot(std::uint64_t key) const;
  std::vector<Entry> entries_;
  std::size_t size_ = 0;
};

class BpeModel {
 public:
  enum class Symbols {
    bytes,      // byte-level: a symbol is a byte; `pieces` are raw bytes
    characters  // a symbol is a character; unknown ones fall back to byte tokens
  };
  enum class Order { ranks, scores };

  // What the readers fill. `pieces` views must stay valid for the model's life.
  struct Definition {
    Symbols symbols = Symbols::bytes;
    Order order = Order::ranks;
    // Texts that may come out of encode, by token id; an empty view is a token that text never becomes (control,
    // unknown, byte and unused tokens).
    std::vector<std::string_view> pieces;
    MergeTable merges;                       // Order::ranks
    std::vector<float> scores;               // Order::scores, a token
    std::array<TokenId, 256> byte_tokens{};  // -1 where there is none; Symbols::characters falls back to them
    bool byte_fallback = false;
    TokenId unknown = -1;  // for what has neither token nor bytes; -1: left out, as the reference tokenizers do
    bool fuse_unknown = false;
    bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
  };
  explicit BpeModel(Definition definition);

  // Scratch of one thread's encoding: the working set and the pieces seen so far.
  class Session {
   public:
    explicit Session(const BpeModel& model) : model_(model) {}
    // Appends the tokens of `piece`. O(n log n) in the bytes of the piece; pieces seen before cost one look-up.
    void encode(std::string_view piece, std::vector<TokenId>& out);

   private:
    struct Symbol {
      std::uint32_t begin = 0, size = 0;  // size 0: merged into its left neighbour
      std::int32_t previous = -1, next = -1;
      TokenId id = -1;
    };
    struct Candidate {
      std::uint64_t order = 0;  // (rank or inverted score, position): the smallest goes first
      std::uint32_t right = 0;
      std::uint32_t size = 0;
      TokenId merged = -1;
      bool operator>(const Candidate& other) const { return order > other.order; }
    };
    struct TextHash {
      using is_transparent = void;
      std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
    };
    struct Seen {
      std::size_t begin = 0, count = 0;
    };

    void encode_piece(std::string_view piece, std::vector<TokenId>& out);
    void merge(std::string_view piece, std::vector<TokenId>& out);
    void make_symbols(std::string_view piece);
    void consider(std::string_view piece, std::int32_t left, std::int32_t right);
    void emit(std::string_view piece, std::vector<TokenId>& out) const;

    const BpeModel& model_;
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
    std::unordered_map<std::string, Seen, TextHash, std::equal_to<>> cache_;
    std::vector<TokenId> cached_ids_;
  };

 private:
  TokenId find(std::string_view piece) const;

  Definition d_;
  std::unordered_map<std::string_view, TokenId> by_text_;
  std::vector<std::uint32_t> score_order_;  // smaller = higher score
  // Words (from one U+2581 to the next) merge on their own, except after bytes that end a character which some token
  // has right before U+2581.
  bool cuts_before_marks_ = false;
  std::array<bool, 256> joined_to_mark_{};
};

}  // namespace halftone
