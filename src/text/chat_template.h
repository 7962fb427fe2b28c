// Chat templates: the part of Jinja2 that the templates of language models use, rendered as transformers renders them
// (trim_blocks, lstrip_blocks, loop controls). What it cannot run is a named error with line and column.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

struct ChatMessage {
  std::string role;  // system, user, assistant, tool
  std::string content;
};

class ChatTemplate {
 public:
  // Parses. Error(bad_input) for syntax errors, Error(unsupported) for a construct, filter or function outside the
  // subset; both with line and column.
  explicit ChatTemplate(std::string source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Variables as in transformers: messages, add_generation_prompt, tools, bos_token, eos_token, and any others.
  // Key order of objects is kept (ordered_json). raise_exception(msg) becomes Error(bad_input).
  // Error(bad_input) when it takes more than `max_steps` (default: the evaluator's limit).
  std::string render(const nlohmann::ordered_json& variables,
                     std::optional<std::int64_t> max_steps = std::nullopt) const;

  // Markup and content apart: text that came from message content is marked, so that it can be tokenized with
  // parse_control = false and can never become a control token. So is text from a role that is not a plain word, and
  // from the strings in extra's tools, documents and messages. Where an operation of the template cannot keep the two
  // apart (upper, tojson, %), its whole result counts as content. The pieces together are exactly what render() gives;
  // no piece is empty.
  struct Piece {
    std::string text;
    bool from_content = false;
  };
  std::vector<Piece> render_pieces(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                   const std::map<std::string, std::string>& special_tokens,
                                   const nlohmann::ordered_json& extra = nlohmann::ordered_json::object()) const;

  const std::string& source() const { return source_; }

 private:
  struct Program;
  std::string source_;
  std::unique_ptr<Program> program_;
};

}  // namespace halftone
