#include "pipeline/report_html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace halftone {
namespace {

using testing::HasSubstr;
using testing::Not;

nlohmann::ordered_json hostile_report() {
  const std::string evil = "<script>alert('x')</script>\"&";
  return {{"storage", evil},
          {"recipe", {{"name", evil}}},
          {"source", {{"tensor_bytes", 2000000}}},
          {"output_bytes", 1000000},
          {"bits_per_weight", 8.25},
          {"substitutions", {{{"tensor", evil}, {"asked", evil}, {"given", evil}, {"reason", evil}}}},
          {"dropped", {{{"tensor", evil}, {"reason", evil}}}},
          {"notes", {evil}},
          {"totals", {{"clipped", 7}}},
          {"calibration",
           {{"origin", evil},
            {"tokens", 24576},
            {"sequences", 48},
            {"smoothing", {{{"input", evil}, {"how", evil}, {"loss", 1.0}, {"identity_loss", 4.0}}}}}},
          {"quality",
           {{"kl_mean", 0.002},
            {"perplexity_ratio", 1.001},
            {"top1_agreement", 0.97},
            {"text", evil},
            {"layers", {{{"name", evil}, {"output_cosine", 0.5}, {"sqnr_db", 3.0}}}}}},
          {"tensors",
           {{{"name", "model.layers.3." + evil},
             {"role", evil},
             {"action", "quantized"},
             {"scheme", evil},
             {"methods", evil},
             {"output_error", 0.0125},
             {"sqnr_db", 21.5}},
            {{"name", "exact"}, {"role", "norm"}, {"action", "kept"}, {"sqnr_db", nullptr}}}}};
}

TEST(ReportHtml, NothingFromAFileBecomesMarkup) {
  for (const std::string& html : {quantize_html(hostile_report(), "halftone <script>"),
                                  evaluation_html(hostile_report()["quality"], "<script>")}) {
    EXPECT_THAT(html, Not(HasSubstr("<script")));
    EXPECT_THAT(html, HasSubstr("&lt;script&gt;"));
    EXPECT_THAT(html, Not(HasSubstr("http")));  // no outside resources
    EXPECT_THAT(html, Not(HasSubstr("url(")));
  }
}

TEST(ReportHtml, SaysVerdictFirstThenWhatChanged) {
  const std::string html = quantize_html(hostile_report(), "cmd");
  EXPECT_LT(html.find("Hardly to be told"), html.find("8.250"));
  EXPECT_THAT(html, HasSubstr("7 values clipped"));
  EXPECT_THAT(html, HasSubstr("21.5"));
  EXPECT_THAT(html, HasSubstr("24576 tokens in 48 sequences"));
  EXPECT_THAT(html, HasSubstr("<td>1.250</td>"));
  EXPECT_THAT(html, HasSubstr("<td>25.0 %</td>"));
  EXPECT_THAT(html, HasSubstr("<pre>cmd</pre>"));
}

TEST(ReportHtml, WhatIsSaidOfManyTensorsIsSaidOnce) {
  nlohmann::ordered_json report = {{"notes", nlohmann::ordered_json::array()}};
  for (int i = 0; i < 40; ++i) report["notes"].push_back("layer" + std::to_string(i) + ": quantized a second time");
  report["notes"].push_back("alone: kept");
  const std::string html = quantize_html(report, "");
  EXPECT_THAT(html, HasSubstr("40 times: quantized a second time"));
  EXPECT_EQ(html.find("quantized a second time"), html.rfind("quantized a second time"));
  EXPECT_THAT(html, HasSubstr("layer39<br>"));
  EXPECT_THAT(html, HasSubstr("alone: kept"));
}

TEST(ReportHtml, EmptyReportIsStillAPage) {
  const std::string html = quantize_html(nlohmann::ordered_json::object(), "");
  EXPECT_THAT(html, HasSubstr("The loss was not measured."));
  EXPECT_THAT(html, HasSubstr("</html>"));
}

TEST(ReportHtml, EscapesEveryMark) {
  EXPECT_EQ(escape_html("a&<>\"'b"), "a&amp;&lt;&gt;&quot;&#39;b");
}

}  // namespace
}  // namespace halftone
