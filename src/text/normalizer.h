// Normalizers: what happens to text before it is cut into pieces. A chain of steps, as in tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  virtual void apply(std::string& text) const = 0;
};

using Normalizer = std::vector<std::unique_ptr<NormalizerStep>>;

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };

std::unique_ptr<NormalizerStep> unicode_form(UnicodeForm form);       // invalid UTF-8 is left as it is
std::unique_ptr<NormalizerStep> prepend_text(std::string_view text);  // nothing is put before empty text
std::unique_ptr<NormalizerStep> replace_text(std::string_view from, std::string_view to);
std::unique_ptr<NormalizerStep> replace_regex(std::string_view pattern, std::string_view to);
std::unique_ptr<NormalizerStep> lowercase();
std::unique_ptr<NormalizerStep> strip_white_space(bool left, bool right);

void run_normalizer(const Normalizer& steps, std::string& text);

}  // namespace halftone
