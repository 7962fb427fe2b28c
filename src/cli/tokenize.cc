#include "base/error.h"
#include "base/file.h"
#include "cli/common.h"

namespace halftone::cli {

void add_tokenize(CLI::App& app, Common& common) {
  struct Options {
    std::string model;
    std::vector<std::string> texts, files;
    bool no_bos = false, parse_control = false, ids_only = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenize", "The tokens of a text");
  command->add_option("MODEL,-m,--model", options->model, "A checkpoint")->required();
  command->add_option("-p,--prompt", options->texts, "A text (may be given several times)")->expected(1)->take_all();
  command->add_option("-f,--file", options->files, "A file with a text; its bytes as they are (may be given several times)")->expected(1)->take_all();
  command->add_flag("--no-bos", options->no_bos, "Leave out the BOS/EOS tokens that the tokenizer adds");
  command->add_flag("--parse-control", options->parse_control, "Let text such as <|im_end|> become control tokens");
  command->add_flag("--ids", options->ids_only, "Print the ids alone, one a line");
  add_common(*command, common);
  command->callback([options, &common] {
    std::vector<std::string> texts = options->texts;
    for (const std::string& file : options->files) texts.push_back(read_text_file(file));
    if (texts.empty()) fail(ErrorKind::usage, "tokenize: give a text with -p or -f");
    const Checkpoint checkpoint = open_checkpoint(options->model);
    const auto tokenizer = open_tokenizer(checkpoint);
    Json results = Json::array();
    std::string out;
    for (const std::string& text : texts) {
      const std::vector<TokenId> ids =
          tokenizer->encode(text, {.add_special = !options->no_bos, .parse_control = options->parse_control});
      results.push_back({{"count", ids.size()}, {"ids", ids}});
      for (const TokenId id : ids) {
        if (options->ids_only) {
          out += fmt::format("{}\n", id);
        } else {
          const Json quoted = std::string(tokenizer->token_text(id));
          out += fmt::format("{:>7}  {}\n", id, quoted.dump(-1, ' ', false, Json::error_handler_t::replace));
        }
      }
    }
    if (common.json) {
      // One text, one result; a list only for several.
      return print(Json(texts.size() == 1 ? results[0] : Json{{"results", results}}).dump() + "\n");
    }
    print(out);
  });
}

}  // namespace halftone::cli
