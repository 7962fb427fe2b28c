#include "text/tokenizer_json_reader.h"

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "text/gguf_vocabulary.h"

namespace halftone {
namespace {

using nlohmann::json;

constexpr std::size_t kDeepestJson = 64;

// Builds a document from parser events, except below model.vocab and model.merges.
class Reader : public nlohmann::json_sax<json> {
 public:
  explicit Reader(TokenizerJson& out) : out_(out) {}

  bool null() override { return value(json(nullptr)); }
  bool boolean(bool v) override { return value(json(v)); }
  bool number_integer(number_integer_t v) override { return number(v); }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > static_cast<number_unsigned_t>(INT64_MAX)) return value(json(v));
    return number(static_cast<std::int64_t>(v));
  }
  bool number_float(number_float_t v, const string_t&) override { return value(json(v)); }
  bool binary(binary_t&) override { return false; }
  bool string(string_t& v) override {
    if (mode_ == Mode::merges) {
      if (in_pair_) {
        if (++pair_parts_ == 1) {
          left_ = std::move(v);
        } else {
          right_ = std::move(v);
        }
      } else {
        const auto [left, right] = split_merge(v, out_.merges.size());
        out_.merges.emplace_back(left, right);
      }
      return true;
    }
    return value(json(std::move(v)));
  }
  bool start_object(std::size_t) override {
    if (mode_ != Mode::document) entry_error();
    if (at_model("vocab")) {
      mode_ = Mode::vocabulary;
      return true;
    }
    return open(json::object());
  }
  bool key(string_t& v) override {
    key_ = std::move(v);
    return true;
  }
  bool end_object() override {
    if (mode_ == Mode::vocabulary) {
      mode_ = Mode::document;
      return true;
    }
    return close();
  }
  bool start_array(std::size_t) override {
    if (mode_ == Mode::merges && !in_pair_) {
      in_pair_ = true;
      pair_parts_ = 0;
      return true;
    }
    if (mode_ != Mode::document) entry_error();
    if (at_model("merges")) {
      mode_ = Mode::merges;
      return true;
    }
    return open(json::array());
  }
  bool end_array() override {
    if (mode_ == Mode::merges) {
      if (!in_pair_) {
        mode_ = Mode::document;
        return true;
      }
      in_pair_ = false;
      if (pair_parts_ != 2 || left_.empty() || right_.empty()) entry_error();
      out_.merges.emplace_back(std::move(left_), std::move(right_));
      return true;
    }
    return close();
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(ErrorKind::bad_input, "tokenizer.json is not valid JSON at byte {}", position);
  }

 private:
  enum class Mode { document, vocabulary, merges };

  struct Level {
    json value;
    std::string key;  // in the level above
  };

  // Whether the value that begins now is root.model.NAME.
  bool at_model(std::string_view name) const {
    return levels_.size() == 2 && levels_[1].key == "model" && key_ == name;
  }

  [[noreturn]] void entry_error() const {
    if (mode_ == Mode::vocabulary) {
      fail(ErrorKind::bad_input, "tokenizer.json: the token '{}' of model.vocab has no valid id", key_);
    }
    fail(ErrorKind::bad_input, "tokenizer.json: merge {} is neither \"a b\" nor [\"a\", \"b\"]", out_.merges.size());
  }

  bool number(std::int64_t v) {
    if (mode_ == Mode::vocabulary) {
      if (v < 0 || v >= kMaxTokens) entry_error();
      out_.vocabulary.emplace_back(std::move(key_), static_cast<TokenId>(v));
      return true;
    }
    return value(json(v));
  }

  bool value(json v) {
    if (mode_ != Mode::document) entry_error();
    if (levels_.empty()) {
      out_.rest = std::move(v);
    } else if (levels_.back().value.is_array()) {
      levels_.back().value.push_back(std::move(v));
    } else {
      levels_.back().value[key_] = std::move(v);
    }
    return true;
  }

  bool open(json v) {
    if (levels_.size() >= kDeepestJson) fail(ErrorKind::bad_input, "tokenizer.json is nested too deeply");
    levels_.push_back({std::move(v), key_});
    return true;
  }

  bool close() {
    Level done = std::move(levels_.back());
    levels_.pop_back();
    key_ = std::move(done.key);
    return value(std::move(done.value));
  }

  TokenizerJson& out_;
  std::vector<Level> levels_;
  std::string key_, left_, right_;
  Mode mode_ = Mode::document;
  bool in_pair_ = false;
  int pair_parts_ = 0;
};

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text) {
  TokenizerJson out;
  Reader reader(out);
  json::sax_parse(text, &reader);
  if (!out.rest.is_object()) fail(ErrorKind::bad_input, "tokenizer.json is not a JSON object");
  return out;
}

}  // namespace halftone
