#include "base/error.h"
#include "base/file.h"
#include "cli/common.h"
#include "text/chat_template.h"

namespace halftone::cli {
namespace {

std::vector<TokenId> encode_chat(const LoadedModel& loaded, const ChatTemplate& chat_template,
                                 const std::vector<ChatMessage>& messages) {
  std::map<std::string, std::string> special;
  if (const auto bos = loaded.tokenizer->bos()) special["bos_token"] = loaded.tokenizer->token_text(*bos);
  if (const auto eos = loaded.tokenizer->eos()) special["eos_token"] = loaded.tokenizer->token_text(*eos);
  std::vector<TokenId> ids;
  for (const ChatTemplate::Piece& piece : chat_template.render_pieces(messages, true, special)) {
    // The template writes BOS itself where the model wants one; what people typed never becomes a control token.
    const auto part = loaded.tokenizer->encode(piece.text, {.add_special = false, .parse_control = !piece.from_content});
    ids.insert(ids.end(), part.begin(), part.end());
  }
  return ids;
}

ChatTemplate chat_template_of(const LoadedModel& loaded, const std::string& model) {
  if (!loaded.checkpoint.chat_template) {
    fail(ErrorKind::bad_input, "{}: no chat template; use 'halftone run' with a plain prompt", model);
  }
  return ChatTemplate(*loaded.checkpoint.chat_template);
}

void report_speed(const GenerateResult& result, std::int64_t prompt_tokens) {
  const auto new_tokens = static_cast<double>(result.tokens.size());
  say(fmt::format("[{} prompt tokens, {:.1f}/s; {} new tokens, {:.1f}/s; {}]", prompt_tokens,
                  result.prefill_seconds > 0 ? static_cast<double>(prompt_tokens) / result.prefill_seconds : 0.0,
                  result.tokens.size(), result.decode_seconds > 0 ? new_tokens / result.decode_seconds : 0.0,
                  result.finish_reason));
}

bool stream(std::string_view text) {
  print(std::string(text));
  return !interrupt_flag().load();
}

}  // namespace

void add_run(CLI::App& app, Common& common) {
  struct Options {
    std::string model, prompt, file, system;
    bool chat = false;
    SamplingFlags sampling;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("run", "Go on with a text, or answer it (--chat)");
  command->add_option("MODEL,-m,--model", options->model, "A checkpoint")->required();
  command->add_option("-p,--prompt", options->prompt, "The text");
  command->add_option("-f,--file", options->file, "A file with the text; its bytes as they are");
  command->add_flag("--chat", options->chat, "Put the text into the model's chat template as a user's message");
  command->add_option("--system", options->system, "System message (with --chat)");
  add_sampling(*command, options->sampling);
  add_common(*command, common);
  command->callback([options, &common] {
    apply(common);
    check(options->sampling.options.sampling);
    if (options->prompt.empty() && options->file.empty()) fail(ErrorKind::usage, "run: give a text with -p or -f");
    const auto progress = make_progress(common);
    const LoadedModel loaded = load_model(options->model, *progress);
    const std::string text = options->file.empty() ? options->prompt : read_text_file(options->file);
    std::vector<TokenId> ids;
    if (options->chat) {
      std::vector<ChatMessage> messages;
      if (!options->system.empty()) messages.push_back({"system", options->system});
      messages.push_back({"user", text});
      ids = encode_chat(loaded, chat_template_of(loaded, options->model), messages);
    } else {
      ids = loaded.tokenizer->encode(text);
    }
    const std::int64_t ctx = context_of(options->sampling, loaded.model->config());
    if (static_cast<std::int64_t>(ids.size()) >= ctx) {
      fail(ErrorKind::usage, "the prompt has {} tokens, the context holds {}: shorten it or raise --ctx", ids.size(), ctx);
    }
    KvCache cache(loaded.model->config(), kv_format_or_fail(options->sampling.kv), ctx);
    const GenerateResult result = generate(*loaded.model, *loaded.tokenizer, cache, ids, options->sampling.options,
                                           default_pool(), common.json ? std::function<bool(std::string_view)>{} : stream);
    if (common.json) {
      return print_json({{"text", result.text}, {"tokens", result.tokens}, {"finish_reason", result.finish_reason},
                         {"prompt_tokens", result.prompt_tokens}, {"prompt_ids", ids},
                         {"prefill_seconds", result.prefill_seconds}, {"decode_seconds", result.decode_seconds}});
    }
    print("\n");
    if (common.verbose) report_speed(result, result.prompt_tokens);
    throw_if_interrupted();
  });
}

void add_chat(CLI::App& app, Common& common) {
  struct Options {
    std::string model, system;
    SamplingFlags sampling;
  };
  auto options = std::make_shared<Options>();
  options->sampling.options.max_tokens = 512;
  CLI::App* command = app.add_subcommand("chat", "Talk with a model: one message a line, an empty line or Ctrl-D ends");
  command->add_option("MODEL,-m,--model", options->model, "A checkpoint")->required();
  command->add_option("--system", options->system, "System message");
  add_sampling(*command, options->sampling);
  add_common(*command, common);
  command->callback([options, &common] {
    apply(common);
    check(options->sampling.options.sampling);
    const auto progress = make_progress(common);
    const LoadedModel loaded = load_model(options->model, *progress);
    const ChatTemplate chat_template = chat_template_of(loaded, options->model);
    const std::int64_t ctx = context_of(options->sampling, loaded.model->config());
    KvCache cache(loaded.model->config(), kv_format_or_fail(options->sampling.kv), ctx);
    std::vector<TokenId> cached;
    std::vector<ChatMessage> messages;
    if (!options->system.empty()) messages.push_back({"system", options->system});
    for (std::string line;;) {
      if (!common.json) print("> ");
      if (!std::getline(std::cin, line) || line.empty()) break;
      messages.push_back({"user", line});
      const std::vector<TokenId> ids = encode_chat(loaded, chat_template, messages);
      if (static_cast<std::int64_t>(ids.size()) >= ctx) {
        fail(ErrorKind::usage, "the conversation has {} tokens, the context holds {}: raise --ctx or start anew", ids.size(), ctx);
      }
      // Earlier turns are in the cache as far as the tokens are the same.
      std::size_t same = 0;
      while (same < cached.size() && same + 1 < ids.size() && cached[same] == ids[same]) ++same;
      cache.truncate(std::min<std::int64_t>(static_cast<std::int64_t>(same), cache.length()));
      same = static_cast<std::size_t>(cache.length());
      const GenerateResult result = generate(*loaded.model, *loaded.tokenizer, cache, std::span(ids).subspan(same),
                                             options->sampling.options, default_pool(),
                                             common.json ? std::function<bool(std::string_view)>{} : stream);
      cached = ids;
      cached.insert(cached.end(), result.tokens.begin(), result.tokens.end());
      messages.push_back({"assistant", result.text});
      if (common.json) {
        print(Json{{"text", result.text}, {"finish_reason", result.finish_reason}}.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
      } else {
        print("\n");
        if (common.verbose) report_speed(result, result.prompt_tokens);
      }
      throw_if_interrupted();
    }
  });
}

}  // namespace halftone::cli
