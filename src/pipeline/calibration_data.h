// What a model is shown so that methods learn what its layers see: sequences of tokens from a text, from JSON lines, or
// whatever the caller brings (a text sampled from the model itself).
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pipeline/open.h"
#include "text/tokenizer.h"

namespace halftone {

struct CalibrationData {
  std::string origin;  // the file, or "sampled from the model (seed 1)"
  std::vector<std::vector<TokenId>> sequences;
  std::int64_t vocabulary = 0;
  std::int64_t unused_tokens = 0;  // of the chosen rows or the text: beyond the length or the number of samples
  std::int64_t dropped_rows = 0;
  std::vector<std::string> notes;  // what was dropped and why, for people
};

struct CalibrationOptions {
  std::int64_t samples = 48, length = 512;  // sequences, tokens each
  bool chat = false;                        // JSON lines with messages, or src and tgt, go through the chat template
};

// A text file (its bytes as they are) is tokenized whole and cut into windows, which are taken evenly from all of it.
// Of JSON lines (the name ends in .jsonl or .json), each row is one sequence, the first `samples` usable ones are
// taken; a row is an object with "text" (or "content"), with "src" and "tgt" (PaddleNLP; texts or lists of texts, whose
// first is taken), with "messages" (role and content), or with "prompt" and "response". Error(bad_input): file missing,
// empty, a line that is no such object (file and line).
CalibrationData load_calibration(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                 const std::filesystem::path& path, const CalibrationOptions& options);

// Sequences of `length` tokens that follow one another in `tokens`.
CalibrationData calibration_of_tokens(std::vector<TokenId> tokens, std::int64_t length, std::int64_t vocabulary,
                                      std::string origin);

// Coverage: tokens, sequences, distinct tokens and their share of the vocabulary, what was not used.
nlohmann::ordered_json to_json(const CalibrationData& data);

}  // namespace halftone
