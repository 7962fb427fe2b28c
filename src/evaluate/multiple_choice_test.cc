#include "evaluate/multiple_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/testing_model.h"

namespace halftone {
namespace {

std::string choice_refusal(const std::string& items, const std::string& labels = "") {
  try {
    parse_choice_items(items, labels, "file");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    return error.what();
  }
  return "";
}

TEST(MultipleChoice, ReadsTheUsualFiles) {
  const auto piqa = parse_choice_items("{\"goal\":\"G\",\"sol1\":\"a\",\"sol2\":\"b\"}\r\n\n", "1\n", "piqa");
  ASSERT_EQ(piqa.size(), 1U);
  EXPECT_EQ(piqa[0].context, "Question: G\nAnswer:");
  EXPECT_EQ(piqa[0].choices, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(piqa[0].answer, 1);
  for (const char* answer : {"2", "\"C\"", "\"2\"", "\"z\""}) {
    const auto items = parse_choice_items(
        std::string(R"({"question":"Q","choices":["x","y","z"],"answer":)") + answer + "}", "", "file");
    EXPECT_EQ(items[0].answer, 2) << answer;
  }
  const auto arc = parse_choice_items(
      R"({"question":"Q","choices":{"text":["x","y"],"label":["1","2"]},"answerKey":"1"})", "", "arc");
  EXPECT_EQ(arc[0].answer, 0);  // the label, not the digit
  EXPECT_EQ(parse_choice_items(R"({"context":"C ","choices":["x","y"],"gold":0})", "", "c")[0].context, "C ");
}

TEST(MultipleChoice, BadItemsAreNamed) {
  EXPECT_THAT(choice_refusal(""), testing::HasSubstr("no items"));
  EXPECT_THAT(choice_refusal("{"), testing::HasSubstr("item 1"));
  EXPECT_THAT(choice_refusal("[]"), testing::HasSubstr("object"));
  EXPECT_THAT(choice_refusal(R"({"question":"Q","choices":["x"],"answer":0})"), testing::HasSubstr("two choices"));
  EXPECT_THAT(choice_refusal(R"({"question":"Q","choices":["x",3],"answer":0})"), testing::HasSubstr("a text"));
  EXPECT_THAT(choice_refusal(R"({"question":"Q","choices":["x","y"],"answer":2})"),
              testing::HasSubstr("none of the 2"));
  EXPECT_THAT(choice_refusal(R"({"question":"Q","choices":["x","y"],"answer":-1})"),
              testing::HasSubstr("none of the 2"));
  EXPECT_THAT(choice_refusal(R"({"question":"Q","choices":["x","y"]})"), testing::HasSubstr("no 'answer'"));
  EXPECT_THAT(choice_refusal(R"({"goal":"Q","sol1":"x","sol2":"y"})", "0\n1\n"), testing::HasSubstr("2 labels"));
}

TEST(MultipleChoice, WilsonIntervalKnownValues) {
  const Proportion half = wilson_interval(5, 10);
  EXPECT_NEAR(half.low, 0.2366, 1e-4);
  EXPECT_NEAR(half.high, 0.7634, 1e-4);
  EXPECT_EQ(wilson_interval(0, 10).low, 0);
  EXPECT_NEAR(wilson_interval(0, 10).high, 0.2775, 1e-4);
}

class ScoreChoices : public testing::Test {
 protected:
  ScoreChoices() : tokenizer_(texts()) {}
  static std::vector<std::string> texts() {
    std::vector<std::string> all{"<end>", " "};
    for (char c = 'a'; c <= 'z'; ++c) all.emplace_back(1, c);
    while (all.size() < 61) all.push_back(fmt::format("<{}>", all.size()));
    return all;
  }
  ModelConfig config_ = small_config();
  ListTokenizer tokenizer_;
};

TEST_F(ScoreChoices, EqualsTheSumOverTheWholeText) {
  ThreadPool pool(2);
  const Model model(config_, random_weights(config_, 3), pool);
  const std::vector<ChoiceItem> items{
      {"abc", {"de", "dfgh"}, 0}, {"xy ", {"q", "r", "st"}, 2}, {"hello", {"a", "b"}, 1}};
  const ChoiceResult result = score_choices(model, tokenizer_, items, {}, pool);
  ASSERT_EQ(result.scores.size(), items.size());
  std::int64_t hits = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string context = i == 1 ? "xy" : items[i].context;
    std::vector<double> sums;
    for (const std::string& choice : items[i].choices) {
      const std::vector<TokenId> tokens = tokenizer_.encode(context + " " + choice, {});
      KvCache cache(config_, fp32_format(), 64);
      std::vector<float> hidden, logits(tokens.size() * 61);
      model.forward(tokens, cache, hidden, pool);
      model.logits(hidden, std::ssize(tokens), logits, pool);
      double sum = 0;
      for (std::size_t t = context.size(); t < tokens.size(); ++t) {
        const float* row = logits.data() + (t - 1) * 61;
        double total = 0;
        for (int v = 0; v < 61; ++v) total += std::exp(static_cast<double>(row[v]));
        sum += row[tokens[t]] - std::log(total);
      }
      sums.push_back(sum);
    }
    for (std::size_t c = 0; c < sums.size(); ++c) EXPECT_NEAR(result.scores[i].log_likelihood[c], sums[c], 1e-4);
    EXPECT_EQ(result.scores[i].chosen, std::max_element(sums.begin(), sums.end()) - sums.begin());
    for (std::size_t c = 0; c < sums.size(); ++c) sums[c] /= static_cast<double>(items[i].choices[c].size());
    EXPECT_EQ(result.scores[i].chosen_norm, std::max_element(sums.begin(), sums.end()) - sums.begin());
    hits += result.scores[i].chosen == items[i].answer ? 1 : 0;
  }
  EXPECT_DOUBLE_EQ(result.acc.value, static_cast<double>(hits) / 3);

  const ChoiceComparison same = compare_choices(result, result);
  EXPECT_EQ(same.acc_difference, 0);
  EXPECT_EQ(same.agreement, 1);
}

TEST_F(ScoreChoices, LongItemsLoseTheirFrontAndSaySo) {
  ThreadPool pool(1);
  const Model model(config_, random_weights(config_, 3), pool);
  ChoiceOptions options;
  options.max_tokens = 8;
  const ChoiceResult result = score_choices(model, tokenizer_, {{"abcdefghij", {"kl", "m"}, 0}}, options, pool);
  EXPECT_EQ(result.truncated, 1);
  options.max_tokens = 3;
  EXPECT_THROW(score_choices(model, tokenizer_, {{"abcdefghij", {"klmn", "m"}, 0}}, options, pool), Error);
}

}  // namespace
}  // namespace halftone
