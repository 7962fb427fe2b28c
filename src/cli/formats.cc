#include "base/error.h"
#include "cli/common.h"
#include "numeric/format.h"
#include "numeric/ggml.h"

namespace halftone::cli {
namespace {

std::string_view kind_name(const ElementFormat& format) {
  switch (format.kind) {
    case FormatKind::floating: return "float";
    case FormatKind::integer: return "integer";
    case FormatKind::codebook: return "codebook";
    case FormatKind::exponent: return "exponent";
  }
  return "";
}

Json describe(const ElementFormat& format, std::string_view also) {
  Json json{{"name", format_name(format)}, {"kind", kind_name(format)}, {"bits", format.bits}};
  if (format.kind == FormatKind::floating) {
    json["exponent_bits"] = format.exponent_bits;
    json["mantissa_bits"] = format.mantissa_bits;
    json["bias"] = format.bias;
    json["min_normal"] = min_normal(format);
  }
  json["max"] = max_finite(format);
  json["min_positive"] = min_subnormal(format);
  json["infinity"] = has_infinity(format);
  json["nan"] = has_nan(format);
  json["minus_zero"] = has_minus_zero(format);
  json["codes"] = code_count(format);
  if (!also.empty()) json["also"] = also;
  return json;
}

std::string short_number(double value) { return fmt::format("{:.6g}", value); }

}  // namespace

void add_formats(CLI::App& app, Common& common) {
  struct Options {
    std::string name;
    bool table = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("formats", "Every element format: range, precision, codes");
  command->add_option("NAME", options->name, "A format (fp8_e4m3, int4, nf4, any eXmY such as e5m4): all of its facts");
  command->add_flag("--table", options->table, "Print every code and its value");
  add_common(*command, common);
  command->callback([options, &common] {
    if (options->name.empty()) {
      if (options->table) fail(ErrorKind::usage, "--table needs the name of a format");
      Json list = Json::array();
      std::vector<std::vector<std::string>> rows{{"format", "bits", "layout", "max", "min normal", "min positive", "inf", "nan", "also"}};
      for (const NamedFormat& named : named_formats()) {
        const ElementFormat& f = named.format;
        list.push_back(describe(f, named.also));
        const bool is_float = f.kind == FormatKind::floating;
        rows.push_back({std::string(named.name), std::to_string(f.bits),
                        is_float ? fmt::format("e{}m{}", f.exponent_bits, f.mantissa_bits) : std::string(kind_name(f)),
                        short_number(max_finite(f)), is_float ? short_number(min_normal(f)) : "-",
                        short_number(min_subnormal(f)), has_infinity(f) ? "yes" : "no", has_nan(f) ? "yes" : "no",
                        std::string(named.also)});
      }
      Json blocks = Json::array();
      std::vector<std::vector<std::string>> block_rows{{"GGUF block", "values", "bytes", "bits/value", "decode", "encode"}};
      for (const GgmlTypeInfo& info : ggml_types()) {
        if (info.block_elements <= 1) continue;
        const double bits = 8.0 * info.block_bytes / info.block_elements;
        blocks.push_back({{"name", info.name}, {"values", info.block_elements}, {"bytes", info.block_bytes},
                          {"bits_per_value", bits}, {"decode", info.can_decode}, {"encode", info.can_encode}});
        block_rows.push_back({std::string(info.name), std::to_string(info.block_elements), std::to_string(info.block_bytes),
                              short_number(bits), info.can_decode ? "yes" : "no", info.can_encode ? "yes" : "no"});
      }
      if (common.json) return print_json({{"formats", list}, {"blocks", blocks}});
      print(format_table(rows) + "\nAny eXmY with 1+X+Y <= 16 works too: eXmY (OCP style), eXmYieee, eXmYfnuz.\n\n" +
            format_table(block_rows));
      return;
    }
    const ElementFormat format = format_or_fail(options->name);
    Json json = describe(format, "");
    if (options->table) {
      if (format.bits > 16) fail(ErrorKind::usage, "--table: {} has 2^{} codes; at most 16 bits can be printed", options->name, format.bits);
      Json table = Json::array();
      std::string text;
      for (std::uint32_t code = 0; code < code_count(format); ++code) {
        const double value = decode(format, code);
        table.push_back(std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value)));
        text += fmt::format("{:0{}x}  {}\n", code, (format.bits + 3) / 4, value);
      }
      json["table"] = table;
      if (!common.json) return print(text);
    }
    if (common.json) return print_json(json);
    std::vector<std::vector<std::string>> rows;
    for (const auto& [key, value] : json.items()) {
      rows.push_back({key, value.is_string() ? value.get<std::string>() : value.dump()});
    }
    std::string text;
    for (const auto& row : rows) text += fmt::format("{:<14} {}\n", row[0], row[1]);
    print(text);
  });
}

}  // namespace halftone::cli
