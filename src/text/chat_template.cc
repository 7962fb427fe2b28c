#include "text/chat_template.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace halftone {

namespace {

// Values that are made outside the evaluator can hit its limits too.
template <class Make>
void guarded(Make&& make) {
  try {
    make();
  } catch (const jinja::Problem& caught) {
    throw Error(caught.kind, "chat template: " + caught.message);
  }
}

}  // namespace

struct ChatTemplate::Program {
  jinja::Body body;
};

ChatTemplate::ChatTemplate(std::string source) : source_(std::move(source)), program_(std::make_unique<Program>()) {
  guarded([&] { program_->body = jinja::parse(source_); });
}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

namespace {

using Variables = std::vector<std::pair<std::string, jinja::Value>>;

// A name such as "assistant" cannot smuggle a control token in, and templates build markup from it ("<|user|>").
bool plain_role(std::string_view role) {
  return std::all_of(role.begin(), role.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

}  // namespace

std::string ChatTemplate::render(const nlohmann::ordered_json& variables, std::optional<std::int64_t> max_steps) const {
  if (!variables.is_object()) fail(ErrorKind::bad_input, "the variables of a chat template must be an object");
  Variables values;
  for (const auto& [name, value] : variables.items()) values.emplace_back(name, jinja::from_json(value));
  return jinja::run(program_->body, values, max_steps.value_or(jinja::kMaxSteps)).bytes();
}

std::vector<ChatTemplate::Piece> ChatTemplate::render_pieces(const std::vector<ChatMessage>& messages,
                                                             bool add_generation_prompt,
                                                             const std::map<std::string, std::string>& special_tokens,
                                                             const nlohmann::ordered_json& extra) const {
  if (!extra.is_object()) fail(ErrorKind::bad_input, "the extra variables of a chat template must be an object");
  Variables values;
  guarded([&] {
    for (const auto& [name, text] : special_tokens) values.emplace_back(name, jinja::Value::text(text));
    jinja::Values list;
    for (const ChatMessage& message : messages) {
      jinja::Dict dict;
      dict.set(jinja::Value::text("role"), jinja::Value::text(message.role, !plain_role(message.role)));
      dict.set(jinja::Value::text("content"), jinja::Value::text(message.content, true));
      list.push_back(jinja::make_dict(std::move(dict)));
    }
    values.emplace_back("messages", jinja::make_list(std::move(list)));
    values.emplace_back("add_generation_prompt", add_generation_prompt);
  });
  for (const auto& [name, value] : extra.items()) {
    // Definitions of tools, documents and ready-made messages are written by users as contents are.
    const bool from_users = name == "tools" || name == "documents" || name == "messages";
    values.emplace_back(name, jinja::from_json(value, from_users));
  }

  std::vector<Piece> pieces;
  jinja::run(program_->body, values).each_piece([&](std::string_view text, bool from_content) {
    pieces.push_back({std::string(text), from_content});
  });
  return pieces;
}

}  // namespace halftone
