#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/testing.h"
#include "text/added_tokens.h"
#include "text/byte_level.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace halftone {
namespace {

using nlohmann::json;

std::vector<std::string> pieces_of(const PreTokenizer& steps, const std::string& text, bool byte_level = false) {
  PieceList list;
  list.pieces.push_back({text, true});
  run_pretokenizer(steps, list);
  std::vector<std::string> out;
  for (const auto& piece : list.pieces) {
    if (piece.text.empty()) continue;
    out.push_back(byte_level ? to_byte_level(piece.text) : std::string(piece.text));
  }
  return out;
}

PreTokenizer one(std::unique_ptr<PreTokenizerStep> step) {
  PreTokenizer steps;
  steps.push_back(std::move(step));
  return steps;
}

using Strings = std::vector<std::string>;

TEST(PreTokenizer, GoldenPieces) {
  if (!have_shared()) GTEST_SKIP() << "SKIPPED: no shared folder";
  const json file = json::parse(read_text_file(shared_folder() / "golden" / "pretokenize.json"));
  std::map<std::string, PreTokenizer> chains;
  chains["gpt2"] = make_pretokenizer(*pretokenizer_family("gpt-2"));
  chains["llama3"] = make_pretokenizer(*pretokenizer_family("llama-bpe"));
  chains["qwen2"] = make_pretokenizer(*pretokenizer_family("qwen2"));
  chains["smollm2"] = make_pretokenizer(*pretokenizer_family("smollm"));
  chains["deepseek3"] = make_pretokenizer(*pretokenizer_family("deepseek-v3"));
  chains["metaspace_always_split"] = one(metaspace("\u2581", PrependScheme::always, true));
  chains["metaspace_first_nosplit"] = one(metaspace("\u2581", PrependScheme::first, false));
  for (const auto& [name, lists] : file["pieces"].items()) {
    ASSERT_TRUE(chains.contains(name)) << name;
    for (std::size_t i = 0; i < lists.size(); ++i) {
      const std::string text = file["texts"][i].get<std::string>();
      EXPECT_EQ(json(pieces_of(chains[name], text, !name.starts_with("metaspace"))), lists[i]) << name << ": " << text;
    }
  }
  Normalizer nfc;
  nfc.push_back(unicode_form(UnicodeForm::nfc));
  for (std::size_t i = 0; i < file["texts"].size(); ++i) {
    std::string text = file["texts"][i].get<std::string>();
    run_normalizer(nfc, text);
    EXPECT_EQ(text, file["nfc(qwen2 normaliser)"][i].get<std::string>());
  }
}

TEST(PreTokenizer, PiecesCoverTheBytesOfAnyText) {
  const std::string text = "a\xff\xe4\xbd 12 \xc0x\u00a0\u4f60\r\n  \xf0\x9f";
  for (const char* name : {"gpt-2", "llama-bpe", "qwen2", "smollm", "deepseek-v3"}) {
    std::string joined;
    for (const std::string& piece : pieces_of(make_pretokenizer(*pretokenizer_family(name)), text)) joined += piece;
    EXPECT_EQ(joined, text) << name;
  }
  EXPECT_FALSE(pretokenizer_family("no-such-name"));
}

TEST(PreTokenizer, SplitBehaviors) {
  const std::string text = "the-final--countdown";
  const auto split = [&](SplitBehavior behavior, bool invert = false) {
    return pieces_of(one(split_by_regex("-", behavior, invert)), text);
  };
  EXPECT_EQ(split(SplitBehavior::removed), (Strings{"the", "final", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::isolated), (Strings{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::merged_with_previous), (Strings{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::merged_with_next), (Strings{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(split(SplitBehavior::contiguous), (Strings{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::removed, true), (Strings{"-", "-", "-"}));
  EXPECT_EQ(pieces_of(one(split_by_regex("x", SplitBehavior::removed, true)), "abc"), (Strings{}));
}

TEST(Regex, WhiteSpaceIsUnicodes) {
  // U+180E lost White_Space in Unicode 6.3; U+0085 and U+2028 have it; U+200B never had it.
  const PreTokenizer steps = one(split_by_regex(R"(\s+)", SplitBehavior::isolated));
  EXPECT_EQ(pieces_of(steps, "a\u180Eb\u0085c\u2028d\u200Be"),
            (Strings{"a\u180Eb", "\u0085", "c", "\u2028", "d\u200Be"}));
  EXPECT_EQ(pieces_of(one(split_by_regex(R"([^\s]+)", SplitBehavior::removed)), "a b\u3000c"),
            (Strings{" ", "\u3000"}));
  EXPECT_EQ(pieces_of(one(split_by_regex(escape_regex("a.b"), SplitBehavior::removed)), "a.bxaxb"), (Strings{"xaxb"}));
}

TEST(Unicode, StepsOverAnything) {
  EXPECT_TRUE(is_valid_utf8("a\u00e9\u4f60\U0001F600"));
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xf8\x88\x80\x80\x80", "\xe4\xbd"}) {
    EXPECT_FALSE(is_valid_utf8(bad)) << bad;
  }
  EXPECT_EQ(replace_invalid_utf8("a\xe4\xbd"
                                 "b\xff"),
            "a\uFFFDb\uFFFD");
  for (char32_t c = 0; c < 0x110000; c += 61) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Step step = read_utf8(text, 0);
    ASSERT_TRUE(step.valid);
    ASSERT_EQ(step.value, c);
    ASSERT_EQ(step.size, text.size());
  }
}

TEST(ByteLevel, AlphabetIsOneToOne) {
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  EXPECT_EQ(from_byte_level(to_byte_level(all)), all);
  EXPECT_EQ(to_byte_level(" \n"), "\u0120\u010A");
  EXPECT_FALSE(from_byte_level("\u4f60"));
  EXPECT_FALSE(from_byte_level(" "));
  for (int b = 0; b < 256; ++b) {
    EXPECT_EQ(parse_byte_token(byte_token(static_cast<std::uint8_t>(b))), static_cast<std::uint8_t>(b));
  }
  EXPECT_FALSE(parse_byte_token("<0xG0>"));
  EXPECT_FALSE(parse_byte_token("<0x00"));
}

TEST(AddedTokens, LeftmostThenLongest) {
  std::vector<AddedToken> tokens(3);
  tokens[0].content = "ab";
  tokens[1].content = "abcd";
  tokens[2].content = "bcdef";
  for (TokenId i = 0; i < 3; ++i) tokens[static_cast<std::size_t>(i)].id = i;
  const AddedTokenMatcher matcher(tokens);
  std::vector<TokenId> ids;
  for (const auto& part : matcher.find("xabcdefabcab")) ids.push_back(part.id);
  EXPECT_EQ(ids, (std::vector<TokenId>{-1, 1, -1, 0, -1, 0}));
  EXPECT_TRUE(matcher.find("").empty());
  EXPECT_EQ(AddedTokenMatcher().find("text").size(), 1u);
}

TEST(Normalizer, Steps) {
  const auto run = [](std::unique_ptr<NormalizerStep> step, std::string text) {
    step->apply(text);
    return text;
  };
  EXPECT_EQ(run(unicode_form(UnicodeForm::nfc), "e\u0301\xff"), "\u00e9\xff");
  EXPECT_EQ(run(unicode_form(UnicodeForm::nfd), "\u00e9"), "e\u0301");
  EXPECT_EQ(run(unicode_form(UnicodeForm::nfkc), "\ufb01\u2460"), "fi1");
  EXPECT_EQ(run(unicode_form(UnicodeForm::nfc), std::string("\u00e9\0x", 4)), std::string("\u00e9\0x", 4));
  EXPECT_EQ(run(prepend_text("_"), ""), "");
  EXPECT_EQ(run(prepend_text("_"), "a"), "_a");
  EXPECT_EQ(run(replace_text(" ", "__"), " a  b"), "__a____b");
  EXPECT_EQ(run(replace_regex(" +", "_"), " a  b"), "_a_b");
  EXPECT_EQ(run(lowercase(), "\u00c9\u0130A\xff"), "\u00e9i\u0307a\xff");
  EXPECT_EQ(run(strip_white_space(true, true), " \u3000a b \n"), "a b");
  EXPECT_EQ(run(strip_white_space(true, false), " a "), "a ");
  EXPECT_EQ(run(strip_white_space(true, true), "  "), "");
}

}  // namespace
}  // namespace halftone
