// Element formats: how one number is coded. A format is a row of facts; one scalar decoder and one scalar encoder serve
// all of them. Golden vectors: tests against ../shared/golden (decode.csv, encode.csv, encode_digests.json,
// rounding.csv).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace halftone {

enum class FormatKind : std::uint8_t {
  floating,  // sign, exponent, mantissa
  integer,   // two's complement; value = code (times 2^-6 for mxint8)
  codebook,  // value = table[code]
  exponent   // E8M0: value = 2^(code-127), 255 = NaN; no sign, no zero
};

// Which codes of a floating format are special.
enum class Family : std::uint8_t {
  ieee,    // all-ones exponent: infinity (mantissa 0) and NaN
  fn,      // only the all-ones magnitude is NaN; no infinity
  fnuz,    // only 10...0 is NaN; no infinity, no minus zero; bias 2^(E-1)
  finite,  // every code is a number (MX FP6 and FP4)
  p3109    // IEEE P3109's extended domain: only 10...0 is NaN, the all-ones magnitudes are infinite; bias 2^(E-1)
};

struct ElementFormat {
  FormatKind kind = FormatKind::floating;
  Family family = Family::ieee;
  std::uint8_t bits = 32;
  std::uint8_t exponent_bits = 8;
  std::uint8_t mantissa_bits = 23;  // stored bits, without the hidden one
  std::int16_t bias = 127;
  const float* codebook = nullptr;  // 2^bits entries, ascending (kind codebook)

  friend bool operator==(const ElementFormat&, const ElementFormat&) = default;
};

// fp32 bf16 fp16 fp8_e4m3 fp8_e5m2 fp8_e4m3fnuz fp8_e5m2fnuz fp8_e4m3b11fnuz fp8_e4m3ieee fp8_e3m4 fp6_e3m2 fp6_e2m3
// fp4_e2m1 mxint8 int8 ... int2 nf4 e8m0. Family rows of arbitrary eXmY are made by find_format.
struct NamedFormat {
  std::string_view name;
  ElementFormat format;
  std::string_view also;  // other names, comma separated: "F8_E4M3,float8_e4m3fn"
};
std::span<const NamedFormat> named_formats();

// A named format (any spelling of the table, case-insensitive), or `eXmY`, `eXmYfn`, `eXmYieee`, `eXmYfnuz`,
// `eXmYfinite` with 1 <= X <= 8, 0 <= Y, 1+X+Y <= 16, or a signed format of IEEE P3109: `k8p3se`, `k4p2sf`. Plain
// `eXmY` is a name of the table where there is one (e5m2 = fp8_e5m2), else family fn, or finite where 1+X+Y <= 6.
// nullopt if it is none, or too small to hold a finite value besides zero.
std::optional<ElementFormat> find_format(std::string_view name);
ElementFormat format_or_fail(std::string_view name);   // Error(usage) that lists near names
std::string format_name(const ElementFormat& format);  // the canonical name; find_format(format_name(f)) == f

// Shorthands for the formats that code names.
const ElementFormat& fp32_format();
const ElementFormat& bf16_format();
const ElementFormat& fp16_format();
const ElementFormat& fp8_e4m3_format();
const ElementFormat& fp8_e5m2_format();
const ElementFormat& fp4_e2m1_format();
const ElementFormat& e8m0_format();
ElementFormat int_format(int bits);  // 2..8

// Derived facts.
std::uint64_t code_count(const ElementFormat& format);  // 2^bits
double max_finite(const ElementFormat& format);         // largest magnitude (for int b: 2^(b-1), the negative end)
double min_normal(const ElementFormat& format);
double min_subnormal(const ElementFormat& format);  // smallest positive value
bool has_infinity(const ElementFormat& format);
bool has_nan(const ElementFormat& format);
bool has_minus_zero(const ElementFormat& format);

enum class Rounding : std::uint8_t {
  nearest_even,
  nearest_away,
  toward_zero,
  toward_positive,
  toward_negative,
  to_odd,
  stochastic_a,  // up if floor(d * 2^N) + R >= 2^N              (names of IEEE P3109)
  stochastic_b,  // up if floor(d * 2^(N+1)) + 2R + 1 >= 2^(N+1)
  stochastic_c   // up if RNE(d * 2^N) + R >= 2^N
};

enum class Overflow : std::uint8_t {
  saturate,  // finite overflow and infinities become the largest finite value: what quantizers do
  ieee       // infinity where the format has one, else NaN, else the largest finite value: what casts do
};

struct EncodeOptions {
  Rounding rounding = Rounding::nearest_even;
  Overflow overflow = Overflow::saturate;
  std::uint32_t random = 0;  // R in [0, 2^random_bits), for the stochastic modes
  int random_bits = 16;      // N
};

// code -> value. Exact. `code` must be below code_count().
double decode(const ElementFormat& format, std::uint32_t code);

// value -> code, by the rule of shared/formats.md 1.2.1; exact for every double (no double rounding). NaN gives the
// format's NaN, or, where it has none, zero with ml_dtypes' sign (integers and codebooks: 0; eXm0ieee: infinity):
// quantizers refuse NaN beforehand. Codebook: nearest entry, ties to the lower index. E8M0: nearest power of two, half
// up (see E8m0Rule).
std::uint32_t encode(const ElementFormat& format, double value, const EncodeOptions& options = {});

// decode(encode(x)).
double round_to(const ElementFormat& format, double value, const EncodeOptions& options = {});

// E8M0 has at least five cast rules in use (shared/formats.md 1.2.3), so the rule is always named.
// Zero and finite negative values -> 0; infinities and NaN -> 255.
enum class E8m0Rounding : std::uint8_t { floor, ceil, nearest };
std::uint8_t encode_e8m0(float value, E8m0Rounding rounding);
float decode_e8m0(std::uint8_t code);

// Fast conversions of the 16-bit formats: nearest even, overflow to infinity. NaN stays NaN with its upper payload
// bits; BF16 -> FP32 -> BF16 changes no code. encode() gives the canonical NaN instead.
float bf16_to_float(std::uint16_t code);
std::uint16_t float_to_bf16(float value);
float fp16_to_float(std::uint16_t code);
std::uint16_t float_to_fp16(float value);

}  // namespace halftone
