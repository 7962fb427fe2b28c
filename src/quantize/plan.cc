#include "quantize/plan.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <map>

#include "base/error.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;

Scheme dense_scheme(const ElementFormat& element) {
  Scheme scheme;
  scheme.element = element;
  return scheme;
}

bool is_plain_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
}

bool is_low_float(DType dtype) {
  switch (dtype) {
    case DType::f4: case DType::f6_e2m3: case DType::f6_e3m2: case DType::f8_e5m2: case DType::f8_e4m3:
    case DType::f8_e4m3fnuz: case DType::f8_e5m2fnuz:
      return true;
    default:
      return false;
  }
}

// Size at the scheme's nominal bits a weight, also for shapes that it cannot code.
std::int64_t nominal_bytes(const Scheme& scheme, std::int64_t rows, std::int64_t cols) {
  if (!scheme.ggml) return scheme_bytes(scheme, rows, cols);
  const GgmlTypeInfo& type = ggml_info(*scheme.ggml);
  return static_cast<std::int64_t>(static_cast<double>(rows) * static_cast<double>(cols) * type.block_bytes /
                                   type.block_elements);
}

// The reason why a scheme cannot code a tensor of this shape.
std::optional<std::string> refusal(const Scheme& scheme, const Shape& shape, std::int64_t rows, std::int64_t cols) {
  if (scheme.ggml && !ggml_info(*scheme.ggml).can_encode) {
    return fmt::format("{} has no encoder", ggml_info(*scheme.ggml).name);
  }
  if (std::optional<std::string> reason = scheme_refusal(scheme, rows, cols)) return reason;
  if (scheme.granularity == Granularity::block && shape.size() > 2 &&
      shape[shape.size() - 2] % scheme.block_rows != 0) {
    return fmt::format("stacked matrices of {} rows would share blocks of {} rows", shape[shape.size() - 2],
                       scheme.block_rows);
  }
  return std::nullopt;
}

std::string source_format(const PlanInput& input) {
  if (input.stored) return scheme_text(*input.stored);
  if (input.ggml) return std::string(ggml_info(*input.ggml).name);
  return std::string(dtype_name(input.dtype));
}

void set_shape(const PlanInput& input, PlannedTensor& out) {
  out.cols = input.shape.empty() ? 1 : input.shape.back();
  out.rows = 1;
  for (std::size_t i = 0; i + 1 < input.shape.size(); ++i) {
    if (__builtin_mul_overflow(out.rows, input.shape[i], &out.rows)) {
      fail(ErrorKind::bad_input, "tensor '{}': shape {} is too large", input.name, shape_string(input.shape));
    }
  }
}

// Kept as it is; GGUF blocks, which no Hugging Face reader knows, become BF16.
void keep(const PlanInput& input, const PlanOptions& options, PlannedTensor& out, Plan& plan) {
  if (input.stored && !input.stored->ggml) {
    out.action = PlanAction::restore;
    out.scheme = input.stored;
    if (!options.weights_only) out.activations = input.stored_activations;
    return;
  }
  const std::optional<GgmlType> blocks = input.stored ? input.stored->ggml : input.ggml;
  if (!blocks) {
    out.action = PlanAction::copy;
    return;
  }
  out.action = PlanAction::cast;
  out.scheme = dense_scheme(bf16_format());
  Substitution change;
  change.tensor = input.name;
  change.asked = fmt::format("kept ({})", source_format(input));
  change.given = "bf16";
  change.asked_bytes = static_cast<std::int64_t>(input.bytes);
  change.given_bytes = 2 * out.rows * out.cols;
  change.reason = "GGUF blocks of a tensor that is not quantized are decoded; values are rounded to BF16";
  plan.substitutions.push_back(std::move(change));
}

PlannedTensor resolve_one(const PlanInput& input, const Recipe& recipe, const RuleMatcher& matcher,
                          const PlanOptions& options, Plan& plan) {
  PlannedTensor out;
  out.name = input.name;
  out.role = role_of(input.name, input.shape.size());
  out.shape = input.shape;
  out.parts = input.parts;
  out.source_bytes = input.bytes;
  out.source_format = source_format(input);
  set_shape(input, out);

  const std::optional<GgmlType> blocks = input.stored ? input.stored->ggml : input.ggml;
  const bool numeric = input.stored || blocks || is_plain_float(input.dtype) || is_low_float(input.dtype);
  const bool empty = out.rows == 0 || out.cols == 0;
  if (!numeric || empty) {
    out.rule = empty ? "kept: empty" : fmt::format("kept: {} is no weight type", dtype_name(input.dtype));
    out.action = PlanAction::copy;
    return out;
  }
  if (blocks && !ggml_info(*blocks).can_decode) {
    fail(ErrorKind::unsupported, "tensor '{}': block type {} cannot be decoded", input.name, ggml_info(*blocks).name);
  }

  if (recipe.every_matrix) {
    out.rule = "default";
    const ElementFormat& element = recipe.weights->element;
    const std::optional<ElementFormat> have = input.stored || blocks ? std::nullopt : dtype_format(input.dtype);
    if (have && *have == element) {
      out.action = PlanAction::copy;
    } else {
      out.action = PlanAction::cast;
      out.scheme = recipe.weights;
    }
    return out;
  }

  const bool tied = options.tied_head && out.role == Role::embedding;
  RuleChoice choice = matcher.choose(module_of(input.name), out.role, tied);
  out.rule = choice.rule;
  const bool stacked_experts = input.shape.size() == 3 && (out.role == Role::expert_gate || out.role == Role::expert_up ||
                                                           out.role == Role::expert_down ||
                                                           out.role == Role::expert_gate_up);
  if (choice.weights && input.shape.size() < 2) {
    out.rule = fmt::format("kept: {}", role_name(out.role));
    choice.weights.reset();
  } else if (choice.weights && choice.rule == "default" && input.shape.size() != 2 && !stacked_experts) {
    out.rule = fmt::format("kept: {} dimensions", input.shape.size());
    choice.weights.reset();
  }
  if (!choice.weights) {
    keep(input, options, out, plan);
    return out;
  }
  if (options.weights_only) choice.activations.reset();

  Scheme scheme = *choice.weights;
  if (std::optional<std::string> reason = refusal(scheme, input.shape, out.rows, out.cols)) {
    Substitution change;
    change.tensor = input.name;
    change.asked = scheme_text(scheme);
    change.asked_bytes = nominal_bytes(scheme, out.rows, out.cols);
    change.reason = *reason;
    scheme = fallback_scheme(scheme, out.rows, out.cols);
    if (refusal(scheme, input.shape, out.rows, out.cols)) scheme = dense_scheme(bf16_format());
    if (scheme.is_dense() && !input.stored && !blocks && is_plain_float(input.dtype)) {
      change.given = fmt::format("kept ({})", source_format(input));
      change.given_bytes = static_cast<std::int64_t>(input.bytes);
      plan.substitutions.push_back(std::move(change));
      out.action = PlanAction::copy;
      return out;
    }
    change.given = scheme_text(scheme);
    change.given_bytes = nominal_bytes(scheme, out.rows, out.cols);
    plan.substitutions.push_back(std::move(change));
  }
  out.scheme = scheme;
  // Plain numbers of 16 and 32 bits are tensors of their own dtype; narrower ones are stored like quantized matrices.
  const bool plain = scheme.is_dense() && (scheme.element == bf16_format() || scheme.element == fp16_format() ||
                                           scheme.element == fp32_format());
  if (!plain) out.activations = choice.activations;
  if (input.stored && *input.stored == scheme) {
    out.action = PlanAction::restore;
  } else if (plain) {
    const std::optional<ElementFormat> have = input.stored || blocks ? std::nullopt : dtype_format(input.dtype);
    out.action = have && *have == scheme.element ? PlanAction::copy : PlanAction::cast;
    if (out.action == PlanAction::copy) out.scheme.reset();
  } else {
    out.action = PlanAction::quantize;
  }
  return out;
}

std::string megabytes(double bytes) {
  if (bytes < 1e6) return fmt::format("{:.1f} kB", bytes / 1e3);
  if (bytes < 1e9) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.2f} GB", bytes / 1e9);
}

// Names that differ only in their numbers share a line.
std::string line_name(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(name[i])) != 0;
    if (digit && (out.empty() || out.back() == '.' || out.back() == '*')) {
      if (out.empty() || out.back() != '*') out += '*';
    } else {
      out += name[i];
    }
  }
  return out;
}

}  // namespace

std::string PlannedTensor::scheme_name() const {
  std::string text = scheme ? scheme_text(*scheme) : source_format;
  if (activations) text += " + " + to_string(*activations);
  return text;
}

Scheme fallback_scheme(const Scheme& asked, std::int64_t rows, std::int64_t cols) {
  if (asked.ggml) {
    std::optional<GgmlType> next;
    switch (*asked.ggml) {
      case GgmlType::q4_k: next = GgmlType::q4_1; break;
      case GgmlType::q5_k: next = GgmlType::q5_1; break;
      case GgmlType::q6_k: case GgmlType::q8_k: next = GgmlType::q8_0; break;
      case GgmlType::iq4_xs: next = GgmlType::iq4_nl; break;
      case GgmlType::q2_k: case GgmlType::q3_k: case GgmlType::tq1_0: case GgmlType::tq2_0: case GgmlType::q1_0:
      case GgmlType::q2_0: case GgmlType::iq2_xxs: case GgmlType::iq2_xs: case GgmlType::iq2_s:
      case GgmlType::iq3_xxs: case GgmlType::iq3_s: case GgmlType::iq1_s: case GgmlType::iq1_m:
        next = GgmlType::q4_0;
        break;
      case GgmlType::nvfp4: next = GgmlType::mxfp4; break;
      default: break;
    }
    if (next) {
      Scheme scheme;
      scheme.ggml = next;
      if (ggml_info(*next).can_encode && !scheme_refusal(scheme, rows, cols)) return scheme;
    }
  }
  return dense_scheme(bf16_format());
}

Plan resolve_plan(const std::vector<PlanInput>& inputs, const Recipe& recipe, const PlanOptions& options) {
  Plan plan;
  const RuleMatcher matcher(recipe);
  for (const PlanInput& input : inputs) {
    plan.source_bytes += input.bytes;
    plan.tensors.push_back(resolve_one(input, recipe, matcher, options, plan));
    const PlannedTensor& tensor = plan.tensors.back();
    std::int64_t count = 0;
    if (__builtin_mul_overflow(tensor.rows, tensor.cols, &count) ||
        __builtin_add_overflow(plan.parameters, count, &plan.parameters)) {
      fail(ErrorKind::bad_input, "tensor '{}': more values than can be counted", input.name);
    }
    if (tensor.action == PlanAction::quantize && input.stored) {
      plan.notes.push_back(fmt::format("{}: quantized a second time, from {}", input.name, tensor.source_format));
    }
  }
  plan.notes.insert(plan.notes.end(), recipe.notes.begin(), recipe.notes.end());
  for (const std::string& rule : matcher.unused_rules()) {
    plan.notes.push_back(fmt::format("{} matches no tensor", rule));
  }
  if (options.strict) {
    for (const Substitution& change : plan.substitutions) {
      if (change.lossless) continue;
      fail(ErrorKind::unsupported, "--strict: tensor '{}' would be {} instead of {}: {}", change.tensor, change.given,
           change.asked, change.reason);
    }
  }
  return plan;
}

Json to_json(const Plan& plan) {
  Json json;
  Json tensors = Json::array();
  for (const PlannedTensor& tensor : plan.tensors) {
    Json item;
    item["name"] = tensor.name;
    item["role"] = std::string(role_name(tensor.role));
    item["scheme"] = tensor.scheme ? scheme_text(*tensor.scheme) : tensor.source_format;
    item["activations"] = tensor.activations ? Json(to_string(*tensor.activations)) : Json();
    item["rule"] = tensor.rule;
    item["bytes"] = tensor.bytes;
    item["source"] = tensor.source_format;
    tensors.push_back(std::move(item));
  }
  json["tensors"] = std::move(tensors);
  json["output_bytes"] = plan.output_bytes;
  json["peak_memory_bytes"] = plan.peak_memory_bytes;
  json["disk_bytes"] = plan.disk_bytes;
  json["source_bytes"] = plan.source_bytes;
  json["parameters"] = plan.parameters;
  json["bits_per_weight"] = plan.bits_per_weight;
  json["estimated_seconds"] = plan.estimated_seconds;
  json["storage"] = plan.storage;
  if (!plan.storage_reason.empty()) json["storage_reason"] = plan.storage_reason;
  Json substitutions = Json::array();
  for (const Substitution& change : plan.substitutions) {
    substitutions.push_back({{"tensor", change.tensor},
                             {"asked", change.asked},
                             {"given", change.given},
                             {"reason", change.reason},
                             {"asked_bytes", change.asked_bytes},
                             {"given_bytes", change.given_bytes},
                             {"lossless", change.lossless}});
  }
  json["substitutions"] = std::move(substitutions);
  Json dropped = Json::array();
  for (const DroppedTensor& drop : plan.dropped) {
    dropped.push_back({{"tensor", drop.tensor}, {"reason", drop.reason}, {"lossless", drop.lossless}});
  }
  json["dropped"] = std::move(dropped);
  json["notes"] = plan.notes;
  return json;
}

std::string to_text(const Plan& plan) {
  struct Line {
    std::string name, role, scheme, rule;
    std::int64_t count = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Line> lines;
  std::map<std::string, std::size_t> index;
  for (const PlannedTensor& tensor : plan.tensors) {
    Line line{line_name(tensor.name), std::string(role_name(tensor.role)), tensor.scheme_name(), tensor.rule, 0, 0};
    const std::string key = line.name + '\n' + line.scheme + '\n' + line.rule;
    const auto [at, fresh] = index.try_emplace(key, lines.size());
    if (fresh) lines.push_back(std::move(line));
    ++lines[at->second].count;
    lines[at->second].bytes += tensor.bytes;
  }
  std::size_t name_width = 6, scheme_width = 6, role_width = 4;
  for (const Line& line : lines) {
    name_width = std::max(name_width, line.name.size());
    scheme_width = std::max(scheme_width, line.scheme.size());
    role_width = std::max(role_width, line.role.size());
  }
  std::string out = fmt::format("{:<{}}  {:>5}  {:<{}}  {:<{}}  {:>10}  {}\n", "tensor", name_width, "count", "role",
                                role_width, "scheme", scheme_width, "size", "rule");
  for (const Line& line : lines) {
    out += fmt::format("{:<{}}  {:>5}  {:<{}}  {:<{}}  {:>10}  {}\n", line.name, name_width, line.count, line.role,
                       role_width, line.scheme, scheme_width, megabytes(static_cast<double>(line.bytes)), line.rule);
  }
  for (const Substitution& change : plan.substitutions) {
    out += fmt::format("substitution: {}: {} instead of {} ({:+.1f} kB{}): {}\n", change.tensor, change.given,
                       change.asked, static_cast<double>(change.given_bytes - change.asked_bytes) / 1e3,
                       change.lossless ? ", lossless" : "", change.reason);
  }
  for (const DroppedTensor& drop : plan.dropped) out += fmt::format("dropped: {}: {}\n", drop.tensor, drop.reason);
  for (const std::string& note : plan.notes) out += fmt::format("note: {}\n", note);
  out += fmt::format("stored as: {}{}\n", plan.storage,
                     plan.storage_reason.empty() ? "" : fmt::format(" ({})", plan.storage_reason));
  out += fmt::format("output: {} ({} bytes), {:.2f} bits per weight; source: {}\n",
                     megabytes(static_cast<double>(plan.output_bytes)), plan.output_bytes, plan.bits_per_weight,
                     megabytes(static_cast<double>(plan.source_bytes)));
  out += fmt::format("needs: {} of memory, {} of disk, about {:.0f} s\n",
                     megabytes(static_cast<double>(plan.peak_memory_bytes)),
                     megabytes(static_cast<double>(plan.disk_bytes)), plan.estimated_seconds);
  return out;
}

}  // namespace halftone
