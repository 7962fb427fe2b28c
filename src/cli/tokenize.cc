#include "base/error.h"
#include "base/file.h"
#include "cli/common.h"

namespace halftone::cli {

void add_tokenize(CLI::App& app, Common& common) {
  struct Options {
    std::string model, text, file;
    bool no_bos = false, parse_control = false, ids_only = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenize", "The tokens of a text");
  command->add_option("MODEL", options->model, "A checkpoint")->required();
  command->add_option("-p,--prompt", options->text, "The text");
  command->add_option("-f,--file", options->file, "A file with the text; its bytes as they are");
  command->add_flag("--no-bos", options->no_bos, "Leave out the BOS/EOS tokens that the tokenizer adds");
  command->add_flag("--parse-control", options->parse_control, "Let text such as <|im_end|> become control tokens");
  command->add_flag("--ids", options->ids_only, "Print the ids alone, one a line");
  add_common(*command, common);
  command->callback([options, &common] {
    const Checkpoint checkpoint = open_checkpoint(options->model);
    const auto tokenizer = open_tokenizer(checkpoint);
    const std::string text = options->file.empty() ? options->text : read_text_file(options->file);
    const auto ids = tokenizer->encode(text, {.add_special = !options->no_bos, .parse_control = options->parse_control});
    if (common.json) {
      Json tokens = Json::array();
      for (const TokenId id : ids) tokens.push_back(id);
      return print_json({{"count", ids.size()}, {"ids", tokens}});
    }
    std::string out;
    for (const TokenId id : ids) {
      out += options->ids_only ? fmt::format("{}\n", id) : fmt::format("{:>7}  {}\n", id, Json(std::string(tokenizer->token_text(id))).dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    print(out);
  });
}

}  // namespace halftone::cli
