#include "numeric/format.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "numeric/names.h"

namespace halftone {
namespace {

// NF4 (Dettmers et al. 2023, QLoRA, appendix E).
constexpr float kNf4[16] = {-1.0F,
                            -0.6961928009986877F,
                            -0.5250730514526367F,
                            -0.39491748809814453F,
                            -0.28444138169288635F,
                            -0.18477343022823334F,
                            -0.09105003625154495F,
                            0.0F,
                            0.07958029955625534F,
                            0.16093020141124725F,
                            0.24611230194568634F,
                            0.33791524171829224F,
                            0.44070982933044434F,
                            0.5626170039176941F,
                            0.7229568362236023F,
                            1.0F};

constexpr ElementFormat make_float(Family family, int e, int m, int bias) {
  ElementFormat f;
  f.kind = FormatKind::floating;
  f.family = family;
  f.bits = static_cast<std::uint8_t>(1 + e + m);
  f.exponent_bits = static_cast<std::uint8_t>(e);
  f.mantissa_bits = static_cast<std::uint8_t>(m);
  f.bias = static_cast<std::int16_t>(bias);
  return f;
}

// value = code * 2^-bias
constexpr ElementFormat make_int(int bits, int bias = 0) {
  ElementFormat f;
  f.kind = FormatKind::integer;
  f.family = Family::finite;
  f.bits = static_cast<std::uint8_t>(bits);
  f.exponent_bits = f.mantissa_bits = 0;
  f.bias = static_cast<std::int16_t>(bias);
  return f;
}

constexpr ElementFormat make_codebook(int bits, const float* table) {
  ElementFormat f = make_int(bits);
  f.kind = FormatKind::codebook;
  f.codebook = table;
  return f;
}

constexpr ElementFormat make_e8m0() {
  ElementFormat f;
  f.kind = FormatKind::exponent;
  f.family = Family::fn;
  f.bits = f.exponent_bits = 8;
  f.mantissa_bits = 0;
  f.bias = 127;
  return f;
}

constexpr int ieee_bias(int e) {
  return (1 << (e - 1)) - 1;
}

constexpr NamedFormat kFormats[] = {
    {"fp32", make_float(Family::ieee, 8, 23, 127), "F32,float32,float"},
    {"bf16", make_float(Family::ieee, 8, 7, 127), "BF16,bfloat16"},
    {"fp16", make_float(Family::ieee, 5, 10, 15), "F16,float16,half"},
    {"fp8_e4m3", make_float(Family::fn, 4, 3, 7), "F8_E4M3,float8_e4m3fn,e4m3fn,FLOAT8E4M3FN,fp8"},
    {"fp8_e5m2", make_float(Family::ieee, 5, 2, 15), "F8_E5M2,float8_e5m2,e5m2,FLOAT8E5M2"},
    {"fp8_e4m3fnuz", make_float(Family::fnuz, 4, 3, 8), "F8_E4M3FNUZ,float8_e4m3fnuz,FLOAT8E4M3FNUZ"},
    {"fp8_e5m2fnuz", make_float(Family::fnuz, 5, 2, 16), "F8_E5M2FNUZ,float8_e5m2fnuz,FLOAT8E5M2FNUZ"},
    {"fp8_e4m3b11fnuz", make_float(Family::fnuz, 4, 3, 11), "float8_e4m3b11fnuz,e4m3b11fnuz"},
    {"fp8_e4m3ieee", make_float(Family::ieee, 4, 3, 7), "float8_e4m3,e4m3_ieee"},
    {"fp8_e3m4", make_float(Family::ieee, 3, 4, 3), "float8_e3m4,e3m4_ieee"},
    {"fp6_e3m2", make_float(Family::finite, 3, 2, 3), "F6_E3M2,float6_e3m2fn"},
    {"fp6_e2m3", make_float(Family::finite, 2, 3, 1), "F6_E2M3,float6_e2m3fn"},
    {"fp4_e2m1", make_float(Family::finite, 2, 1, 1), "F4,float4_e2m1fn,float4_e2m1fn_x2,FLOAT4E2M1,fp4"},
    {"mxint8", make_int(8, 6), ""},
    {"int8", make_int(8), "I8"},
    {"int7", make_int(7), ""},
    {"int6", make_int(6), ""},
    {"int5", make_int(5), ""},
    {"int4", make_int(4), ""},
    {"int3", make_int(3), ""},
    {"int2", make_int(2), ""},
    {"nf4", make_codebook(4, kNf4), ""},
    {"e8m0", make_e8m0(), "F8_E8M0,ue8m0,float8_e8m0fnu"},
};

template <class Use>
void for_each_name(std::string_view list, const Use& use) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    use(list.substr(0, comma));
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
}

bool is_also(std::string_view list, std::string_view wanted) {
  bool found = false;
  for_each_name(list, [&](std::string_view name) { found = found || lower_case(name) == wanted; });
  return found;
}

std::uint32_t sign_mask(const ElementFormat& f) {
  return 1U << (f.bits - 1);
}
std::uint32_t magnitude_mask(const ElementFormat& f) {
  return sign_mask(f) - 1;
}

// The code of the largest finite magnitude.
std::uint32_t max_code(const ElementFormat& f) {
  switch (f.family) {
    case Family::ieee:
      return (((1U << f.exponent_bits) - 1) << f.mantissa_bits) - 1;
    case Family::fn:
    case Family::p3109:
      return magnitude_mask(f) - 1;
    case Family::fnuz:
    case Family::finite:
      return magnitude_mask(f);
  }
  return 0;
}

// Reads up to three digits off the front of `text`; nullopt without any.
std::optional<int> take_number(std::string_view& text) {
  std::size_t digits = 0;
  int value = 0;
  while (digits < text.size() && digits < 3 && std::isdigit(static_cast<unsigned char>(text[digits])) != 0) {
    value = value * 10 + (text[digits++] - '0');
  }
  if (digits == 0) return std::nullopt;
  text.remove_prefix(digits);
  return value;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

constexpr int kMaxExponentBits = 8, kMaxBits = 16;

// eXmY with an optional family suffix, after an optional fpN_ that must agree: "e4m4", "fp9_e4m4", "e5m4ieee".
std::optional<ElementFormat> parse_minifloat(std::string_view name) {
  std::optional<int> bits;
  if (take(name, "fp") || take(name, "float")) {
    bits = take_number(name);
    if (!bits || !take(name, "_")) return std::nullopt;
  }
  if (!take(name, "e")) return std::nullopt;
  const std::optional<int> e = take_number(name);
  if (!e || !take(name, "m")) return std::nullopt;
  const std::optional<int> m = take_number(name);
  if (!m || *e < 1 || *e > kMaxExponentBits || 1 + *e + *m > kMaxBits || (bits && *bits != 1 + *e + *m)) {
    return std::nullopt;
  }
  const int total = 1 + *e + *m;
  ElementFormat format;
  if (name.empty()) {
    format = make_float(total <= 6 ? Family::finite : Family::fn, *e, *m, ieee_bias(*e));
  } else if (name == "fn") {
    format = make_float(Family::fn, *e, *m, ieee_bias(*e));
  } else if (name == "ieee") {
    format = make_float(Family::ieee, *e, *m, ieee_bias(*e));
  } else if (name == "fnuz") {
    format = make_float(Family::fnuz, *e, *m, ieee_bias(*e) + 1);
  } else if (name == "finite") {
    format = make_float(Family::finite, *e, *m, ieee_bias(*e));
  } else {
    return std::nullopt;
  }
  if (max_code(format) == 0) return std::nullopt;  // too small to hold a finite value besides zero
  return format;
}

// IEEE P3109 names of signed formats: binary{K}p{P}s{e|f}, also k{K}p{P}s{e|f}. The finite domain is the family fnuz.
std::optional<ElementFormat> parse_p3109(std::string_view name) {
  take(name, "p3109_");
  if (!take(name, "binary") && !take(name, "k")) return std::nullopt;
  const std::optional<int> k = take_number(name);
  if (!k || !take(name, "p")) return std::nullopt;
  const std::optional<int> p = take_number(name);
  if (!p || *p < 1 || *k > kMaxBits || *k - *p < 1 || *k - *p > kMaxExponentBits) return std::nullopt;
  const int e = *k - *p;
  if (name == "se") return make_float(Family::p3109, e, *p - 1, 1 << (e - 1));
  if (name == "sf") return make_float(Family::fnuz, e, *p - 1, 1 << (e - 1));
  return std::nullopt;
}

// 2^exponent by its bits where double has it as a normal number.
double pow2(int exponent) {
  return exponent >= -1022 && exponent <= 1023
             ? std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52)
             : std::ldexp(1.0, exponent);
}

double decode_magnitude(const ElementFormat& f, std::uint32_t magnitude) {
  const int exponent = static_cast<int>(magnitude >> f.mantissa_bits);
  const auto mantissa = static_cast<double>(magnitude & ((1U << f.mantissa_bits) - 1));
  if (exponent == 0) return mantissa * pow2(1 - f.bias - f.mantissa_bits);
  return (mantissa + pow2(f.mantissa_bits)) * pow2(exponent - f.bias - f.mantissa_bits);
}

int exponent_of(double x) {  // floor(log2 x) of a finite x > 0
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const int field = static_cast<int>(bits >> 52 & 0x7FF);
  return field != 0 ? field - 1023 : std::ilogb(x);
}

std::uint64_t to_integer(double whole) {
  return static_cast<std::uint64_t>(whole);
}

// Rounds scaled >= 0 to a whole number; `negative` is the sign of the value for the directed modes.
std::uint64_t round_magnitude(double scaled, bool negative, const EncodeOptions& options) {
  // Adding and taking away 2^52 rounds to nearest even.
  if (options.rounding == Rounding::nearest_even && scaled < 0x1p51) return to_integer((scaled + 0x1p52) - 0x1p52);
  const double whole = std::floor(scaled), d = scaled - whole;
  const std::uint64_t n = to_integer(whole);
  const double steps = pow2(options.random_bits);
  const double r = options.random;
  bool up = false;
  switch (options.rounding) {
    case Rounding::nearest_even:
      up = d > 0.5 || (d == 0.5 && n % 2 == 1);
      break;
    case Rounding::nearest_away:
      up = d >= 0.5;
      break;
    case Rounding::toward_zero:
      break;
    case Rounding::toward_positive:
      up = d > 0 && !negative;
      break;
    case Rounding::toward_negative:
      up = d > 0 && negative;
      break;
    case Rounding::to_odd:
      up = d > 0 && n % 2 == 0;
      break;
    case Rounding::stochastic_a:
      up = std::floor(d * steps) + r >= steps;
      break;
    case Rounding::stochastic_b:
      up = std::floor(d * 2 * steps) + 2 * r + 1 >= 2 * steps;
      break;
    case Rounding::stochastic_c:
      up = std::nearbyint(d * steps) + r >= steps;
      break;
  }
  return n + (up ? 1 : 0);
}

std::uint32_t nan_code(const ElementFormat& f, bool negative) {
  const std::uint32_t sign = negative ? sign_mask(f) : 0;
  switch (f.family) {
    case Family::ieee: {
      const std::uint32_t quiet = f.mantissa_bits > 0 ? 1U << (f.mantissa_bits - 1) : 0;
      return sign | ((1U << f.exponent_bits) - 1) << f.mantissa_bits | quiet;
    }
    case Family::fn:
      return sign | magnitude_mask(f);
    case Family::fnuz:
    case Family::p3109:
      return sign_mask(f);
    case Family::finite:
      return negative ? 0 : sign_mask(f);
  }
  return 0;
}

std::uint32_t overflow_code(const ElementFormat& f, bool negative, Overflow overflow) {
  const std::uint32_t sign = negative ? sign_mask(f) : 0;
  if (overflow == Overflow::saturate || f.family == Family::finite) return sign | max_code(f);
  if (has_infinity(f)) return sign | (max_code(f) + 1);
  return nan_code(f, negative);
}

bool overflow_stays_finite(Rounding rounding, bool negative) {
  return rounding == Rounding::toward_zero || rounding == Rounding::to_odd ||
         (rounding == Rounding::toward_positive && negative) || (rounding == Rounding::toward_negative && !negative);
}

std::uint32_t encode_float(const ElementFormat& f, double value, const EncodeOptions& options) {
  const bool negative = std::signbit(value);
  if (std::isnan(value)) return nan_code(f, negative);
  if (std::isinf(value)) return overflow_code(f, negative, options.overflow);
  const std::uint32_t sign = negative ? sign_mask(f) : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return has_minus_zero(f) ? sign : 0;
  const int e = std::max(exponent_of(magnitude), 1 - f.bias);
  const double scaled = magnitude * pow2(f.mantissa_bits - e);
  const std::uint64_t n = round_magnitude(scaled, negative, options);
  // A carry out of the mantissa lands in the exponent by itself.
  const std::int64_t code =
      (static_cast<std::int64_t>(e + f.bias - 1) << f.mantissa_bits) + static_cast<std::int64_t>(n);
  if (code > static_cast<std::int64_t>(max_code(f))) {
    if (overflow_stays_finite(options.rounding, negative)) return sign | max_code(f);
    return overflow_code(f, negative, options.overflow);
  }
  if (code == 0 && !has_minus_zero(f)) return 0;
  return sign | static_cast<std::uint32_t>(code);
}

std::uint32_t encode_integer(const ElementFormat& f, double value, const EncodeOptions& options) {
  if (std::isnan(value)) return 0;
  const double low = -pow2(f.bits - 1), high = pow2(f.bits - 1) - 1;
  const double scaled = std::clamp(value * pow2(f.bias), low - 1, high + 1);
  const bool negative = scaled < 0;
  const auto n = static_cast<double>(round_magnitude(std::fabs(scaled), negative, options));
  const auto code = static_cast<std::int32_t>(std::clamp(negative ? -n : n, low, high));
  return static_cast<std::uint32_t>(code) & static_cast<std::uint32_t>(code_count(f) - 1);
}

// The number of midpoints below the value; the sum of two neighbours is exact in double.
std::uint32_t encode_codebook(const ElementFormat& f, double value) {
  if (std::isnan(value)) return 0;
  const auto n = static_cast<std::uint32_t>(code_count(f));
  std::uint32_t code = 0;
  for (std::uint32_t i = 0; i + 1 < n; ++i) {
    if (value > (double{f.codebook[i]} + double{f.codebook[i + 1]}) / 2) ++code;
  }
  return code;
}

std::uint8_t encode_exponent(double value, E8m0Rounding rounding) {
  if (!std::isfinite(value)) return 255;
  if (!(value > 0)) return 0;
  int e = exponent_of(value);
  const double fraction = value / pow2(e);  // [1, 2)
  if (rounding == E8m0Rounding::ceil && fraction > 1) ++e;
  if (rounding == E8m0Rounding::nearest && fraction >= 1.5) ++e;
  return static_cast<std::uint8_t>(std::clamp(e + 127, 0, 254));
}

}  // namespace

std::span<const NamedFormat> named_formats() {
  return kFormats;
}

std::optional<ElementFormat> find_format(std::string_view name) {
  const std::string wanted = lower_case(name);
  for (const NamedFormat& row : kFormats) {
    if (row.name == wanted || is_also(row.also, wanted)) return row.format;
  }
  if (const auto format = parse_minifloat(wanted)) return format;
  return parse_p3109(wanted);
}

ElementFormat format_or_fail(std::string_view name) {
  if (const auto format = find_format(name)) return *format;
  std::vector<std::string> names;
  for (const NamedFormat& row : kFormats) {
    names.emplace_back(row.name);
    for_each_name(row.also, [&](std::string_view also) { names.emplace_back(also); });
  }
  std::vector<std::string> near = near_names(name, names, 3);
  if (near.empty()) near = {"fp8_e4m3", "fp4_e2m1", "int8", "int4", "bf16"};
  fail(ErrorKind::usage, "unknown number format '{}': formats are such as {}; any eXmY with 1+X+Y <= 16 works too",
       name, fmt::join(near, ", "));
}

std::string format_name(const ElementFormat& format) {
  for (const NamedFormat& row : kFormats) {
    if (row.format == format) return std::string(row.name);
  }
  const std::string base = fmt::format("e{}m{}", format.exponent_bits, format.mantissa_bits);
  if (find_format(base) == format) return base;
  switch (format.family) {
    case Family::ieee:
      return base + "ieee";
    case Family::fn:
      return base + "fn";
    case Family::fnuz:
      return base + "fnuz";
    case Family::finite:
      return base + "finite";
    case Family::p3109:
      return fmt::format("k{}p{}se", format.bits, format.mantissa_bits + 1);
  }
  return base;
}

const ElementFormat& fp32_format() {
  return kFormats[0].format;
}
const ElementFormat& bf16_format() {
  return kFormats[1].format;
}
const ElementFormat& fp16_format() {
  return kFormats[2].format;
}
const ElementFormat& fp8_e4m3_format() {
  return kFormats[3].format;
}
const ElementFormat& fp8_e5m2_format() {
  return kFormats[4].format;
}
const ElementFormat& fp4_e2m1_format() {
  return kFormats[12].format;
}
const ElementFormat& e8m0_format() {
  return kFormats[22].format;
}

ElementFormat int_format(int bits) {
  HT_CHECK(bits >= 2 && bits <= 8);
  return make_int(bits);
}

std::uint64_t code_count(const ElementFormat& format) {
  return std::uint64_t{1} << format.bits;
}

double max_finite(const ElementFormat& format) {
  switch (format.kind) {
    case FormatKind::floating:
      return decode_magnitude(format, max_code(format));
    case FormatKind::integer:
      return pow2(format.bits - 1 - format.bias);
    case FormatKind::codebook: {
      double best = 0;
      for (std::uint64_t i = 0; i < code_count(format); ++i)
        best = std::max(best, std::fabs(double{format.codebook[i]}));
      return best;
    }
    case FormatKind::exponent:
      return pow2(127);
  }
  return 0;
}

double min_normal(const ElementFormat& format) {
  if (format.kind == FormatKind::floating) return pow2(1 - format.bias);
  return min_subnormal(format);
}

double min_subnormal(const ElementFormat& format) {
  switch (format.kind) {
    case FormatKind::floating:
      return format.mantissa_bits > 0 ? pow2(1 - format.bias - format.mantissa_bits) : pow2(1 - format.bias);
    case FormatKind::integer:
      return pow2(-format.bias);
    case FormatKind::codebook: {
      double best = std::numeric_limits<double>::infinity();
      for (std::uint64_t i = 0; i < code_count(format); ++i) {
        if (format.codebook[i] > 0) best = std::min(best, double{format.codebook[i]});
      }
      return best;
    }
    case FormatKind::exponent:
      return pow2(-127);
  }
  return 0;
}

bool has_infinity(const ElementFormat& format) {
  return format.kind == FormatKind::floating && (format.family == Family::ieee || format.family == Family::p3109);
}

bool has_nan(const ElementFormat& format) {
  if (format.kind == FormatKind::exponent) return true;
  if (format.kind != FormatKind::floating || format.family == Family::finite) return false;
  return format.family != Family::ieee || format.mantissa_bits > 0;
}

bool has_minus_zero(const ElementFormat& format) {
  return format.kind == FormatKind::floating && format.family != Family::fnuz && format.family != Family::p3109;
}

double decode(const ElementFormat& format, std::uint32_t code) {
  switch (format.kind) {
    case FormatKind::integer: {
      const int shift = 32 - format.bits;
      return static_cast<double>(static_cast<std::int32_t>(code << shift) >> shift) * pow2(-format.bias);
    }
    case FormatKind::codebook:
      return format.codebook[code & (code_count(format) - 1)];
    case FormatKind::exponent:
      return code == 255 ? std::numeric_limits<double>::quiet_NaN() : pow2(static_cast<int>(code) - 127);
    case FormatKind::floating:
      break;
  }
  const bool negative = (code & sign_mask(format)) != 0;
  const std::uint32_t magnitude = code & magnitude_mask(format);
  if (negative && magnitude == 0 && !has_minus_zero(format)) return std::numeric_limits<double>::quiet_NaN();
  double value = 0;
  if (magnitude > max_code(format)) {
    const bool infinite = has_infinity(format) && magnitude == max_code(format) + 1;
    value = infinite ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else {
    value = decode_magnitude(format, magnitude);
  }
  return negative ? -value : value;
}

std::uint32_t encode(const ElementFormat& format, double value, const EncodeOptions& options) {
  switch (format.kind) {
    case FormatKind::floating:
      return encode_float(format, value, options);
    case FormatKind::integer:
      return encode_integer(format, value, options);
    case FormatKind::codebook:
      return encode_codebook(format, value);
    case FormatKind::exponent:
      return encode_exponent(value, E8m0Rounding::nearest);
  }
  return 0;
}

double round_to(const ElementFormat& format, double value, const EncodeOptions& options) {
  return decode(format, encode(format, value, options));
}

std::uint8_t encode_e8m0(float value, E8m0Rounding rounding) {
  return encode_exponent(value, rounding);
}

float decode_e8m0(std::uint8_t code) {
  return static_cast<float>(decode(e8m0_format(), code));
}

float bf16_to_float(std::uint16_t code) {
  return std::bit_cast<float>(std::uint32_t{code} << 16);
}

std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {
    // The upper payload bits stay, so that BF16 -> FP32 -> BF16 changes nothing; without any, one must be set.
    return static_cast<std::uint16_t>(bits >> 16 | ((bits & 0x7F0000U) == 0 ? 0x40U : 0U));
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

float fp16_to_float(std::uint16_t code) {
  const std::uint32_t sign = std::uint32_t{code & 0x8000U} << 16, magnitude = code & 0x7FFFU;
  if (magnitude >= 0x7C00U) return std::bit_cast<float>(sign | 0x7F800000U | (magnitude & 0x3FFU) << 13);
  // Exponent bias 127 - 15 = 112; the product is exact and handles subnormals too.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

std::uint16_t float_to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t code = 0;
  if (magnitude > 0x7F800000U) {
    code = 0x7C00U | (magnitude >> 13 & 0x3FFU) | 0x200U;
  } else if (magnitude >= 0x477FF000U) {  // 65520 and above, the midpoint to what would be 65536
    code = 0x7C00U;
  } else if (magnitude >= 0x38800000U) {  // 2^-14: normal; a carry lands in the exponent by itself
    code = (magnitude + 0xFFFU + (magnitude >> 13 & 1U) - (112U << 23)) >> 13;
  } else {  // one ulp of 0.5 is 2^-24, the smallest subnormal: the addition rounds
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  }
  return static_cast<std::uint16_t>(sign | code);
}

}  // namespace halftone
