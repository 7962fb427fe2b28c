#include "numeric/scheme.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/integer.h"
#include "numeric/names.h"

namespace halftone {
namespace {

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t end = text.find(at);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

constexpr std::int64_t kLargestCount = std::int64_t{1} << 40;

std::optional<std::int64_t> parse_count(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kLargestCount)
    return std::nullopt;
  return value;
}

// Names that stand for one weight scheme; the right side is the canonical long form. `prints`: to_string uses the name.
struct Alias {
  std::string_view name, scheme;
  bool prints;
};
constexpr Alias kAliases[] = {
    {"mxfp4", "fp4_e2m1:g32:e8m0", true},      {"mxfp6", "fp6_e2m3:g32:e8m0", false},
    {"mxfp6_e2m3", "fp6_e2m3:g32:e8m0", true}, {"mxfp6_e3m2", "fp6_e3m2:g32:e8m0", true},
    {"mxfp8", "fp8_e4m3:g32:e8m0", true},      {"mxfp8_e4m3", "fp8_e4m3:g32:e8m0", false},
    {"mxfp8_e5m2", "fp8_e5m2:g32:e8m0", true}, {"nvfp4", "fp4_e2m1:g16:e4m3", true},
};

// Presets of weights and activations; "" leaves activations in full precision.
struct PairAlias {
  std::string_view name, weights, activations;
};
constexpr PairAlias kPairs[] = {
    {"fp8", "fp8_e4m3:channel", "fp8_e4m3:token"},
    {"fp8_dynamic", "fp8_e4m3:channel", "fp8_e4m3:token"},
    {"w8a8_fp8", "fp8_e4m3:channel", "fp8_e4m3:token"},
    {"a8w8_fp8", "fp8_e4m3:channel", "fp8_e4m3:token"},
    {"fp8_block", "fp8_e4m3:128x128", "fp8_e4m3:g128"},
    {"w8a16_fp8", "fp8_e4m3:channel", ""},
    {"w8a8", "int8:channel", "int8:token"},
    {"a8w8", "int8:channel", "int8:token"},
    {"int8", "int8:channel", "int8:token"},
    {"w8a16", "int8:channel", ""},
    {"wint8", "int8:channel", ""},
    {"weight_only_int8", "int8:channel", ""},
    {"w4a16", "int4:g128", ""},
    {"int4_sym", "int4:g128", ""},
    {"w4a16_asym", "int4:g128:asym", ""},
    {"int4_asym", "int4:g128:asym", ""},
    {"wint4", "int4:g64", ""},
    {"weight_only_int4", "int4:g64", ""},
    {"int4", "int4:g64:asym", ""},
    {"w4a8", "int4:g128", "int8:token"},
    {"a8w4", "int4:g128", "int8:token"},
    {"mxfp4a4", "mxfp4", "mxfp4"},
    {"mxfp4a16", "mxfp4", ""},
    {"mxfp8a8", "mxfp8", "mxfp8"},
    {"nvfp4a4", "nvfp4", "nvfp4"},
    {"nvfp4a16", "nvfp4", ""},
    {"q2_k_s", "q2_k", ""},
    {"q3_k_s", "q3_k", ""},
    {"q3_k_m", "q3_k", ""},
    {"q3_k_l", "q3_k", ""},
    {"q4_k_s", "q4_k", ""},
    {"q4_k_m", "q4_k", ""},
    {"q5_k_s", "q5_k", ""},
    {"q5_k_m", "q5_k", ""},
};

// GGUF block types whose bare name means something else here are written with this prefix: ggml_mxfp4.
constexpr std::string_view kGgmlPrefix = "ggml_";

bool has_bare_name(const GgmlTypeInfo& info) {
  return info.block_elements > 1 && info.name != "mxfp4" && info.name != "nvfp4";
}

const GgmlTypeInfo* ggml_named(std::string_view name) {
  if (name.starts_with(kGgmlPrefix)) return find_ggml_type(name.substr(kGgmlPrefix.size()));
  const GgmlTypeInfo* info = find_ggml_type(name);
  return info != nullptr && has_bare_name(*info) ? info : nullptr;
}

struct NamedScale {
  std::string_view name, format;
};
constexpr NamedScale kScales[] = {{"fp32", "fp32"}, {"bf16", "bf16"},     {"fp16", "fp16"},
                                  {"e8m0", "e8m0"}, {"e4m3", "fp8_e4m3"}, {"fp8_e4m3", "fp8_e4m3"}};

struct NamedRule {
  std::string_view name;
  ScaleRule rule;
};
constexpr NamedRule kRules[] = {{"floor", ScaleRule::floor},
                                {"ceil", ScaleRule::ceil},
                                {"ct_round", ScaleRule::ct_round},
                                {"search", ScaleRule::search}};

std::string_view rule_name(ScaleRule rule) {
  for (const NamedRule& named : kRules) {
    if (named.rule == rule) return named.name;
  }
  return "";
}

constexpr std::string_view kPartsHelp =
    "parts are tensor, channel, token, gN (group), RxC (block) or none; sym or asym; a scale format (fp32, bf16, fp16, "
    "e8m0, e4m3); for e8m0 a rule (floor, ceil, ct_round, search)";

bool is_plain(const ElementFormat& element) {
  return element.kind == FormatKind::floating && element.bits >= 16;
}

// The parts of one scheme as they come, so that a second part of a kind is noticed.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Scheme parse();

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::usage, "scheme '{}': {}", text_, fmt::format(format, std::forward<Args>(args)...));
  }

  void apply(const std::string& part);
  void check();
  // Marks that a part of this kind was given; refuses a second one.
  void once(std::string& slot, const std::string& part, std::string_view kind) {
    if (!slot.empty()) refuse("'{}' and '{}' both name {}; keep one", slot, part, kind);
    slot = part;
  }

  [[noreturn]] void refuse_element(const std::string& part) const;
  [[noreturn]] void refuse_part(const std::string& part) const;

  std::string text_;
  Scheme scheme_;
  std::string granularity_, symmetry_, scale_, rule_, levels_;
};

void Parser::refuse_element(const std::string& part) const {
  std::vector<std::string> names;
  for (const NamedFormat& named : named_formats()) names.emplace_back(named.name);
  for (const Alias& alias : kAliases) names.emplace_back(alias.name);
  for (const GgmlTypeInfo& info : ggml_types()) {
    if (has_bare_name(info)) names.emplace_back(info.name);
  }
  std::vector<std::string> near = near_names(part, names, 3);
  if (near.empty()) near = {"fp8_e4m3:channel", "int8:channel", "int4:g128", "mxfp4", "nvfp4", "q4_k"};
  refuse("'{}' is no number format, alias or GGUF block type; names are such as {}", part, fmt::join(near, ", "));
}

void Parser::refuse_part(const std::string& part) const {
  const std::vector<std::string> words = {"tensor", "channel",  "token",  "none",      "sym",      "asym",
                                          "fp32",   "bf16",     "fp16",   "e8m0",      "e4m3",     "floor",
                                          "ceil",   "ct_round", "search", "one_level", "two_level"};
  const std::vector<std::string> near = near_names(part, words, 1);
  if (!near.empty() && part.size() > 2)
    refuse("'{}' is no part of a scheme; did you mean '{}'? ({})", part, near[0], kPartsHelp);
  refuse("'{}' is no part of a scheme; {}", part, kPartsHelp);
}

void Parser::apply(const std::string& part) {
  const auto granularity = [&](Granularity value) {
    once(granularity_, part, "the granularity");
    scheme_.granularity = value;
    scheme_.group = scheme_.block_rows = scheme_.block_cols = 0;
  };
  if (part == "tensor") return granularity(Granularity::tensor);
  if (part == "channel") return granularity(Granularity::channel);
  if (part == "token") return granularity(Granularity::token);
  if (part == "none") return granularity(Granularity::none);
  if (part == "sym" || part == "asym") {
    once(symmetry_, part, "the symmetry");
    scheme_.symmetric = part == "sym";
    return;
  }
  if (part == "one_level" || part == "two_level") {
    once(levels_, part, "the levels of scales");
    scheme_.two_level = part == "two_level";
    return;
  }
  for (const NamedRule& named : kRules) {
    if (part != named.name) continue;
    once(rule_, part, "the rule of the scale");
    scheme_.scale_rule = named.rule;
    return;
  }
  for (const NamedScale& named : kScales) {
    if (part != named.name) continue;
    once(scale_, part, "the scale format");
    scheme_.scale = *find_format(named.format);
    return;
  }
  if (part.size() > 1 && part[0] == 'g' && part[1] >= '0' && part[1] <= '9') {
    const auto group = parse_count(std::string_view(part).substr(1));
    if (!group) refuse("'{}' is no group: write g and how many neighbours share a scale, such as g128", part);
    granularity(Granularity::group);
    scheme_.group = *group;
    return;
  }
  if (const std::size_t x = part.find('x'); x != std::string::npos && part[0] >= '0' && part[0] <= '9') {
    const auto rows = parse_count(std::string_view(part).substr(0, x)),
               cols = parse_count(std::string_view(part).substr(x + 1));
    if (!rows || !cols) refuse("'{}' is no block: write rows x columns of a tile, such as 128x128", part);
    granularity(Granularity::block);
    scheme_.block_rows = *rows;
    scheme_.block_cols = *cols;
    return;
  }
  refuse_part(part);
}

Scheme Parser::parse() {
  std::vector<std::string> parts = split(lower_case(text_), ':');
  for (std::string& part : parts) {
    const std::size_t first = part.find_first_not_of(" \t"), last = part.find_last_not_of(" \t");
    part = first == std::string::npos ? "" : part.substr(first, last - first + 1);
    if (part.empty()) refuse("a part is empty; write such as int4:g128");
  }
  if (const GgmlTypeInfo* info = ggml_named(parts[0])) {
    if (parts.size() > 1) refuse("the GGUF block type {} takes no parts; remove '{}'", info->name, parts[1]);
    scheme_.ggml = info->type;
    return scheme_;
  }
  std::string element = parts[0];
  std::vector<std::string> implied;
  for (const Alias& alias : kAliases) {
    if (element != alias.name) continue;
    implied = split(alias.scheme, ':');
    element = implied[0];
    implied.erase(implied.begin());
    break;
  }
  const std::optional<ElementFormat> format = find_format(element);
  if (!format) refuse_element(element);
  if (format->kind == FormatKind::exponent)
    refuse("e8m0 codes scales, not values; write it after the element, as in fp4_e2m1:g32:e8m0");
  scheme_.element = *format;
  if (is_plain(*format)) {
    scheme_.granularity = Granularity::none;
  } else if (format->kind == FormatKind::codebook) {
    scheme_.granularity = Granularity::group;
    scheme_.group = 64;  // bitsandbytes' block
  } else {
    scheme_.granularity = Granularity::channel;
  }
  for (const std::string& part : implied) apply(part);
  granularity_.clear();  // what an alias implies may be said otherwise
  scale_.clear();
  for (std::size_t i = 1; i < parts.size(); ++i) apply(parts[i]);
  if (element == "mxint8" && granularity_.empty() && scale_.empty()) {  // OCP's block format of the same name
    scheme_.granularity = Granularity::group;
    scheme_.group = 32;
    scheme_.scale = e8m0_format();
  }
  check();
  return scheme_;
}

void Parser::check() {
  if (levels_.empty()) scheme_.two_level = scheme_.scale == fp8_e4m3_format();
  if (scheme_.granularity == Granularity::none) {
    if (scheme_.element.kind != FormatKind::floating) {
      refuse("{} values need a scale; write :channel, :tensor, :token or :gN instead of :none",
             format_name(scheme_.element));
    }
    for (const std::string& part : {scale_, rule_, levels_, symmetry_}) {
      if (!part.empty()) refuse("without scales '{}' says nothing; remove it or add such as :channel", part);
    }
    return;
  }
  if (!(scheme_.scale == e8m0_format()) && !rule_.empty()) {
    refuse("'{}' is a rule for e8m0 scales; add e8m0 or remove it", rule_);
  }
  if (scheme_.symmetric) return;
  if (scheme_.element.kind != FormatKind::integer || scheme_.element.bias != 0) {
    refuse("asym needs an integer format (int2 to int8), not {}", format_name(scheme_.element));
  }
  if (scheme_.scale == e8m0_format() || scheme_.two_level) refuse("asym needs fp32, bf16 or fp16 scales");
}

std::int64_t checked_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    fail(ErrorKind::bad_input, "a matrix of {} x {} values is too large", a, b);
  return product;
}

std::int64_t checked_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) fail(ErrorKind::bad_input, "a matrix of {} + {} bytes is too large", a, b);
  return sum;
}

}  // namespace

Scheme parse_scheme(std::string_view text) {
  return Parser(text).parse();
}

std::string to_string(const Scheme& scheme) {
  if (scheme.ggml) {
    const GgmlTypeInfo& info = ggml_info(*scheme.ggml);
    return has_bare_name(info) ? std::string(info.name) : fmt::format("{}{}", kGgmlPrefix, info.name);
  }
  std::string text = format_name(scheme.element);
  switch (scheme.granularity) {
    case Granularity::none:
      return is_plain(scheme.element) ? text : text + ":none";
    case Granularity::tensor:
      text += ":tensor";
      break;
    case Granularity::channel:
      text += ":channel";
      break;
    case Granularity::token:
      text += ":token";
      break;
    case Granularity::group:
      text += fmt::format(":g{}", scheme.group);
      break;
    case Granularity::block:
      text += fmt::format(":{}x{}", scheme.block_rows, scheme.block_cols);
      break;
  }
  const bool e4m3 = scheme.scale == fp8_e4m3_format(), e8m0 = scheme.scale == e8m0_format();
  if (e4m3) {
    text += ":e4m3";
  } else if (!(scheme.scale == bf16_format())) {
    text += ":" + format_name(scheme.scale);
  }
  if (scheme.two_level != e4m3) text += scheme.two_level ? ":two_level" : ":one_level";
  for (const Alias& alias : kAliases) {
    if (alias.prints && text == alias.scheme) {
      text = alias.name;
      break;
    }
  }
  if (text == "mxint8:g32:e8m0") text = "mxint8";
  if (e8m0 && scheme.scale_rule != ScaleRule::ceil) text += fmt::format(":{}", rule_name(scheme.scale_rule));
  if (!scheme.symmetric) text += ":asym";
  return text;
}

SchemePair parse_scheme_or_alias(std::string_view text) {
  const std::string name = lower_case(text);
  for (const PairAlias& pair : kPairs) {
    if (pair.name != name) continue;
    SchemePair result{parse_scheme(pair.weights), std::nullopt};
    if (!pair.activations.empty()) result.activations = parse_scheme(pair.activations);
    return result;
  }
  return {parse_scheme(text), std::nullopt};
}

std::vector<std::string> scheme_alias_names() {
  std::vector<std::string> names;
  for (const PairAlias& pair : kPairs) names.emplace_back(pair.name);
  for (const Alias& alias : kAliases) names.emplace_back(alias.name);
  return names;
}

SchemeShape scale_shape(const Scheme& scheme, std::int64_t rows, std::int64_t cols) {
  if (scheme.ggml) return {};
  switch (scheme.granularity) {
    case Granularity::none:
      return {};
    case Granularity::tensor:
      return {1, 1};
    case Granularity::channel:
    case Granularity::token:
      return {rows, 1};
    case Granularity::group:
      return {rows, ceil_div(cols, scheme.group)};
    case Granularity::block:
      return {ceil_div(rows, scheme.block_rows), ceil_div(cols, scheme.block_cols)};
  }
  return {};
}

std::int64_t scheme_bytes(const Scheme& scheme, std::int64_t rows, std::int64_t cols) {
  HT_CHECK(rows >= 0 && cols >= 0);
  if (scheme.ggml) {
    const GgmlTypeInfo& info = ggml_info(*scheme.ggml);
    return checked_product(rows, checked_product(ceil_div(cols, info.block_elements), info.block_bytes));
  }
  const SchemeShape shape = scale_shape(scheme, rows, cols);
  const int bits = scheme.element.bits;
  std::int64_t bytes = checked_product(rows, ceil_div(checked_product(cols, bits), 8));
  const std::int64_t cells = checked_product(shape.scale_rows, shape.scale_cols);
  bytes = checked_sum(bytes, checked_product(cells, scheme.scale.bits / 8));
  if (!scheme.symmetric) {
    bytes = checked_sum(bytes, checked_product(shape.scale_rows, ceil_div(checked_product(shape.scale_cols, bits), 8)));
  }
  return scheme.two_level ? checked_sum(bytes, 4) : bytes;
}

double bits_per_weight(const Scheme& scheme, std::int64_t rows, std::int64_t cols) {
  const double values = static_cast<double>(rows) * static_cast<double>(cols);
  return values > 0 ? 8.0 * static_cast<double>(scheme_bytes(scheme, rows, cols)) / values : 0.0;
}

std::optional<std::string> scheme_refusal(const Scheme& scheme, std::int64_t rows, std::int64_t cols) {
  if (rows < 1 || cols < 1) return fmt::format("a matrix of {} rows and {} columns holds no values", rows, cols);
  if (!scheme.ggml) return std::nullopt;
  const GgmlTypeInfo& info = ggml_info(*scheme.ggml);
  if (!info.can_encode) return fmt::format("{} can be read, not written", info.name);
  if (cols % info.block_elements != 0) {
    return fmt::format("{} needs rows of a multiple of {}, not {}", info.name, info.block_elements, cols);
  }
  return std::nullopt;
}

}  // namespace halftone
