// Multiple choice by log-likelihood: which of the given endings does the model find most likely? Scored by the rules of
// EleutherAI's lm-evaluation-harness (Gao et al. 2021), so that figures compare:
//   - context and continuation are encoded together; the continuation's tokens are those beyond the number of tokens of
//     the context alone; spaces at the end of the context belong to the continuation (the leading-space convention);
//   - acc: the choice with the largest sum of log-probabilities; acc_norm: that sum divided by the choice's bytes.
// The tokens that all choices of an item share are computed once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "base/threads.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace halftone {

struct ChoiceItem {
  std::string context;               // "Question: ...\nAnswer:"
  std::vector<std::string> choices;  // without the delimiter, at least two
  std::int64_t answer = 0;           // index of the right one
};

// JSON lines: {"question"|"query"|"goal", "choices": [...] or {"text": [...], "label": [...]} or "sol1", "sol2"...,
// "answer"|"gold"|"label"|"answerKey": index, letter or the choice's text}. PIQA keeps answers in a file of their own,
// one a line: `labels`, "" if there is none. A "context" stands as it is; a question becomes "Question: Q\nAnswer:".
// Error(bad_input) names `where` and the line.
std::vector<ChoiceItem> parse_choice_items(std::string_view json_lines, std::string_view labels,
                                           const std::string& where);

struct Proportion {
  double value = 0, low = 0, high = 0;  // 95 % interval (Wilson 1927)
};
Proportion wilson_interval(std::int64_t hits, std::int64_t count);

struct ItemScore {
  std::vector<double> log_likelihood;        // a choice
  std::int64_t chosen = 0, chosen_norm = 0;  // the lowest index on ties
  bool right = false, right_norm = false;
};

struct ChoiceResult {
  std::int64_t items = 0;
  std::int64_t truncated = 0;  // items that lost tokens at the front: longer than the context
  Proportion acc, acc_norm;
  std::vector<ItemScore> scores;
};

struct ChoiceOptions {
  std::int64_t limit = 0;       // at most this many items; 0 = all
  std::int64_t max_tokens = 0;  // longer items lose tokens at the front; 0 = 2048
  ElementFormat kv_format = fp32_format();
};

// Error(bad_input) for no items, for a choice without tokens, for logits that are not finite.
ChoiceResult score_choices(const Model& model, const Tokenizer& tokenizer, const std::vector<ChoiceItem>& items,
                           const ChoiceOptions& options, ThreadPool& pool, Progress& progress = no_progress());

// Candidate minus reference over the same items, paired.
struct ChoiceComparison {
  double acc_difference = 0, acc_low = 0, acc_high = 0;  // 95 %, normal approximation of the paired differences
  double acc_norm_difference = 0, acc_norm_low = 0, acc_norm_high = 0;
  double agreement = 0;  // share of items with the same choice (acc rule)
};
ChoiceComparison compare_choices(const ChoiceResult& candidate, const ChoiceResult& reference);

}  // namespace halftone
