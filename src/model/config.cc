#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxDimension = std::int64_t{1} << 24;  // hidden, ffn, heads * head_dim
constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 28;
constexpr std::int64_t kMaxContext = std::int64_t{1} << 31;
constexpr std::int64_t kMaxLayers = 4096;

// What the families' config classes take for keys that a file leaves out, and what they do differently.
struct ArchitectureRow {
  std::string_view type;
  std::string_view head_class;  // of `architectures`, for files without model_type
  bool gemma = false, qk_norm = false, qkv_bias = false;
  bool bias_flags = false;       // attention_bias and mlp_bias are read
  bool window_everywhere = false;  // sliding_window goes for every layer
  bool window_from_layer = false;  // use_sliding_window, max_window_layers
  bool tied = false;
  std::int64_t head_dim = 0;  // 0: hidden / heads
  std::int64_t context = 2048;
  double eps = 1e-6;
  std::string_view activation = "silu";
};

constexpr ArchitectureRow kFamilies[] = {
    {.type = "llama", .head_class = "LlamaForCausalLM", .bias_flags = true},
    {.type = "mistral", .head_class = "MistralForCausalLM", .window_everywhere = true, .context = 131072},
    {.type = "gemma3_text", .head_class = "Gemma3ForCausalLM", .gemma = true, .qk_norm = true, .tied = true,
     .head_dim = 256, .context = 131072, .activation = "gelu_pytorch_tanh"},
    {.type = "qwen2", .head_class = "Qwen2ForCausalLM", .qkv_bias = true, .window_from_layer = true, .context = 32768},
    {.type = "qwen3", .head_class = "Qwen3ForCausalLM", .qk_norm = true, .bias_flags = true, .window_from_layer = true,
     .head_dim = 128, .context = 32768},
};

const Json* find(const Json& object, std::string_view key) {
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

double number_of(const Json& value, std::string_view key) {
  if (!value.is_number()) fail(ErrorKind::bad_input, "config.json: '{}' must be a number, not {}", key, value.dump());
  const double number = value.get<double>();
  if (!std::isfinite(number)) fail(ErrorKind::bad_input, "config.json: '{}' must be finite", key);
  return number;
}

double number(const Json& object, std::string_view key, std::optional<double> otherwise) {
  const Json* value = find(object, key);
  if (value == nullptr) {
    if (otherwise) return *otherwise;
    fail(ErrorKind::bad_input, "config.json: '{}' is missing", key);
  }
  return number_of(*value, key);
}

double positive(const Json& object, std::string_view key, std::optional<double> otherwise) {
  const double value = number(object, key, otherwise);
  if (!(value > 0)) fail(ErrorKind::bad_input, "config.json: '{}' is {}, but must be positive", key, value);
  return value;
}

// A whole number in [low, high].
std::int64_t whole(const Json& object, std::string_view key, std::optional<std::int64_t> otherwise, std::int64_t low,
                   std::int64_t high) {
  const Json* value = find(object, key);
  if (value == nullptr) {
    if (otherwise) return *otherwise;
    fail(ErrorKind::bad_input, "config.json: '{}' is missing", key);
  }
  const double as_double = number_of(*value, key);
  if (as_double != std::floor(as_double)) {
    fail(ErrorKind::bad_input, "config.json: '{}' is {}, but must be a whole number", key, value->dump());
  }
  if (as_double < static_cast<double>(low) || as_double > static_cast<double>(high)) {
    fail(ErrorKind::bad_input, "config.json: '{}' is {}, but must lie in {}..{}", key, value->dump(), low, high);
  }
  return static_cast<std::int64_t>(as_double);
}

bool flag(const Json& object, std::string_view key, bool otherwise) {
  const Json* value = find(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    fail(ErrorKind::bad_input, "config.json: '{}' must be true or false, not {}", key, value->dump());
  }
  return value->get<bool>();
}

std::string text(const Json& object, std::string_view key, std::string_view otherwise) {
  const Json* value = find(object, key);
  if (value == nullptr) return std::string(otherwise);
  if (!value->is_string()) fail(ErrorKind::bad_input, "config.json: '{}' must be a string, not {}", key, value->dump());
  return value->get<std::string>();
}

std::string supported_list() {
  std::string list;
  for (const std::string_view name : supported_architectures()) {
    list += (list.empty() ? "" : ", ") + std::string(name);
  }
  return list;
}

const ArchitectureRow& family_of(const Json& whole_config, const Json& config) {
  std::string type = text(config, "model_type", "");
  if (type.empty() && &whole_config != &config) type = text(whole_config, "model_type", "");
  std::string head_class;
  if (const Json* list = find(whole_config, "architectures"); list != nullptr && list->is_array() && !list->empty() &&
                                                             list->front().is_string()) {
    head_class = list->front().get<std::string>();
  }
  if (type == "gemma3") type = "gemma3_text";
  for (const ArchitectureRow& family : kFamilies) {
    if (type.empty() ? family.head_class == head_class : family.type == type) return family;
  }
  const std::string name = head_class.empty() ? type : type.empty() ? head_class : head_class + " (" + type + ")";
  if (name.empty()) {
    fail(ErrorKind::bad_input, "config.json: neither 'model_type' nor 'architectures' says what the model is");
  }
  fail(ErrorKind::unsupported, "the architecture {} cannot be run (these can: {})", name, supported_list());
}

GateActivation activation_of(const std::string& name) {
  if (name == "silu" || name == "swish") return GateActivation::silu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return GateActivation::gelu_tanh;
  if (name == "gelu") return GateActivation::gelu_erf;
  if (name == "relu") return GateActivation::relu;
  fail(ErrorKind::unsupported,
       "config.json: activation '{}' cannot be run (these can: silu, gelu, gelu_pytorch_tanh, relu)", name);
}

// `parameters` (may be nullptr) is rope_scaling or rope_parameters, or one layer type's part of it.
RopeSpec rope_of(const Json& config, const Json* parameters, double theta, std::int64_t head_dim, std::int64_t context) {
  static const Json kNone = Json::object();
  if (parameters != nullptr && !parameters->is_object()) {
    fail(ErrorKind::bad_input, "config.json: the RoPE parameters must be an object, not {}", parameters->dump());
  }
  const Json& p = parameters != nullptr ? *parameters : kNone;
  RopeSpec spec;
  spec.theta = positive(p, "rope_theta", theta);
  const double part = positive(p, "partial_rotary_factor", positive(config, "partial_rotary_factor", 1.0));
  spec.dim = static_cast<std::int64_t>(static_cast<double>(head_dim) * part);
  if (part > 1 || spec.dim < 2 || spec.dim % 2 != 0) {
    fail(ErrorKind::bad_input, "config.json: {} of {} dimensions of a head would be rotated; this must be an even number",
         spec.dim, head_dim);
  }
  const std::string type = text(p, "rope_type", text(p, "type", "default"));
  const std::int64_t original =
      whole(p, "original_max_position_embeddings",
            whole(config, "original_max_position_embeddings", context, 1, kMaxContext), 1, kMaxContext);
  if (type == "default") {
    return spec;
  }
  if (type == "linear") {
    spec.type = RopeSpec::Type::linear;
    spec.factor = positive(p, "factor", std::nullopt);
  } else if (type == "llama3") {
    spec.type = RopeSpec::Type::llama3;
    spec.factor = positive(p, "factor", std::nullopt);
    spec.low_freq_factor = positive(p, "low_freq_factor", std::nullopt);
    spec.high_freq_factor = positive(p, "high_freq_factor", std::nullopt);
    if (spec.high_freq_factor <= spec.low_freq_factor) {
      fail(ErrorKind::bad_input, "config.json: 'high_freq_factor' ({}) must be larger than 'low_freq_factor' ({})",
           spec.high_freq_factor, spec.low_freq_factor);
    }
    spec.original_context = original;
  } else if (type == "yarn") {
    spec.type = RopeSpec::Type::yarn;
    spec.factor = positive(p, "factor", std::nullopt);
    spec.beta_fast = positive(p, "beta_fast", 32.0);
    spec.beta_slow = positive(p, "beta_slow", 1.0);
    spec.original_context = original;
    spec.truncate = flag(p, "truncate", true);
    if (find(p, "attention_factor") != nullptr) spec.attention_factor = positive(p, "attention_factor", std::nullopt);
    if (find(p, "mscale") != nullptr) spec.mscale = number(p, "mscale", std::nullopt);
    if (find(p, "mscale_all_dim") != nullptr) spec.mscale_all_dim = number(p, "mscale_all_dim", std::nullopt);
  } else {
    fail(ErrorKind::unsupported, "config.json: RoPE type '{}' cannot be run (these can: default, linear, llama3, yarn)",
         type);
  }
  return spec;
}

void read_rope(const Json& config, const ArchitectureRow& family, ModelConfig& out) {
  const double theta = positive(config, "rope_theta", family.gemma ? 1e6 : 1e4);
  const Json* parameters = find(config, "rope_scaling");
  if (parameters == nullptr) parameters = find(config, "rope_parameters");
  const Json *global = parameters, *local = nullptr;
  bool nested = false;
  if (parameters != nullptr && parameters->is_object()) {
    for (const char* key : {"full_attention", "sliding_attention"}) nested = nested || parameters->contains(key);
    if (nested) {
      global = find(*parameters, "full_attention");
      local = find(*parameters, "sliding_attention");
    }
  }
  out.rope = rope_of(config, global, theta, out.head_dim, out.context);
  if (family.gemma) {
    const double local_theta = positive(config, "rope_local_base_freq", 1e4);
    out.rope_local = rope_of(config, local, local_theta, out.head_dim, out.context);
    for (LayerConfig& layer : out.layers) layer.local_rope = layer.window > 0;
  } else if (nested) {
    out.rope_local = rope_of(config, local, theta, out.head_dim, out.context);
    for (LayerConfig& layer : out.layers) layer.local_rope = layer.window > 0;
  } else {
    out.rope_local = out.rope;
  }
  if (const Json* divisors = find(config, kRopeDivisorsKey)) {
    if (!divisors->is_array() || static_cast<std::int64_t>(divisors->size()) != out.rope.dim / 2) {
      fail(ErrorKind::bad_input, "config.json: '{}' must be a list of {} numbers", kRopeDivisorsKey, out.rope.dim / 2);
    }
    for (const Json& value : *divisors) {
      const double divisor = number_of(value, kRopeDivisorsKey);
      if (!(divisor > 0)) fail(ErrorKind::bad_input, "config.json: '{}' must hold positive numbers", kRopeDivisorsKey);
      out.rope.divisors.push_back(static_cast<float>(divisor));
    }
  }
}

void read_layers(const Json& config, const ArchitectureRow& family, ModelConfig& out) {
  const std::int64_t count = whole(config, "num_hidden_layers", std::nullopt, 1, kMaxLayers);
  out.layers.resize(static_cast<std::size_t>(count));
  const bool may_slide = family.gemma || family.window_everywhere || family.window_from_layer;
  if (!may_slide) return;
  const bool said = config.contains("sliding_window");
  std::int64_t window = whole(config, "sliding_window", said ? 0 : 4096, 0, kMaxContext);
  if (family.window_from_layer && !flag(config, "use_sliding_window", false)) window = 0;

  const Json* types = family.window_everywhere ? nullptr : find(config, "layer_types");
  if (types != nullptr) {
    if (!types->is_array() || static_cast<std::int64_t>(types->size()) != count) {
      fail(ErrorKind::bad_input, "config.json: 'layer_types' must be a list of {} names", count);
    }
    for (std::size_t i = 0; i < types->size(); ++i) {
      const Json& type = (*types)[i];
      if (type == "full_attention") continue;
      if (type != "sliding_attention") {
        fail(ErrorKind::unsupported, "config.json: layer {} has the type {}, which cannot be run", i, type.dump());
      }
      if (window == 0) {
        fail(ErrorKind::bad_input, "config.json: layer {} is 'sliding_attention', but 'sliding_window' says no window", i);
      }
      out.layers[i].window = window;
    }
    return;
  }
  const std::int64_t pattern = whole(
      config, "sliding_window_pattern", whole(config, "_sliding_window_pattern", 6, 1, kMaxLayers), 1, kMaxLayers);
  const std::int64_t first = whole(config, "max_window_layers", 28, 0, std::numeric_limits<std::int32_t>::max());
  for (std::int64_t i = 0; i < count; ++i) {
    const bool slides = family.gemma ? (i + 1) % pattern != 0 : family.window_from_layer ? i >= first : true;
    if (slides) out.layers[static_cast<std::size_t>(i)].window = window;
  }
}

}  // namespace

std::vector<std::string_view> supported_architectures() {
  std::vector<std::string_view> names;
  for (const ArchitectureRow& family : kFamilies) names.push_back(family.type);
  return names;
}

std::vector<std::int32_t> token_ids(const Json& object, std::string_view key) {
  std::vector<std::int32_t> ids;
  if (!object.is_object()) return ids;
  const Json* value = find(object, key);
  if (value == nullptr) return ids;
  const auto add = [&](const Json& id) {
    const bool fits = id.is_number_unsigned() ? id.get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max()
                                              : id.is_number_integer() && id.get<std::int64_t>() >= 0;
    if (!fits) fail(ErrorKind::bad_input, "'{}' must hold token ids, not {}", key, id.dump());
    ids.push_back(id.get<std::int32_t>());
  };
  if (value->is_array()) {
    for (const Json& id : *value) add(id);
  } else {
    add(*value);
  }
  return ids;
}

std::string module_name(std::int64_t layer, std::string_view part, std::string_view stem) {
  return fmt::format("{}layers.{}{}{}", stem, layer, part.empty() ? "" : ".", part);
}

ModelConfig model_config_from_json(const Json& whole_config) {
  if (!whole_config.is_object()) fail(ErrorKind::bad_input, "config.json: not a JSON object");
  const Json* inner = find(whole_config, "text_config");
  if (inner != nullptr && !inner->is_object()) {
    fail(ErrorKind::bad_input, "config.json: 'text_config' must be an object");
  }
  const Json& config = inner != nullptr ? *inner : whole_config;
  const ArchitectureRow& family = family_of(whole_config, config);

  ModelConfig out;
  out.architecture = family.type;
  // The released multimodal Gemma 3 configs leave out what equals their class's defaults.
  const auto gemma_default = [&](std::int64_t value) {
    return family.gemma ? std::optional<std::int64_t>(value) : std::nullopt;
  };
  out.hidden = whole(config, "hidden_size", gemma_default(2304), 1, kMaxDimension);
  out.ffn = whole(config, "intermediate_size", gemma_default(9216), 1, kMaxDimension);
  out.vocabulary = whole(config, "vocab_size", gemma_default(262208), 1, kMaxVocabulary);
  out.heads = whole(config, "num_attention_heads", gemma_default(8), 1, kMaxDimension);
  out.kv_heads = whole(config, "num_key_value_heads", family.gemma ? 4 : out.heads, 1, kMaxDimension);
  if (out.heads % out.kv_heads != 0) {
    fail(ErrorKind::bad_input, "config.json: 'num_attention_heads' ({}) is not a multiple of 'num_key_value_heads' ({})",
         out.heads, out.kv_heads);
  }
  if (find(config, "head_dim") == nullptr && family.head_dim == 0 && out.hidden % out.heads != 0) {
    fail(ErrorKind::bad_input,
         "config.json: 'head_dim' is missing and 'hidden_size' ({}) is not a multiple of 'num_attention_heads' ({})",
         out.hidden, out.heads);
  }
  out.head_dim = whole(config, "head_dim", family.head_dim != 0 ? family.head_dim : out.hidden / out.heads, 2, 1 << 16);
  if (out.head_dim % 2 != 0) fail(ErrorKind::bad_input, "config.json: 'head_dim' ({}) must be even", out.head_dim);
  if (out.heads * out.head_dim > kMaxDimension) {
    fail(ErrorKind::bad_input, "config.json: {} heads of {} dimensions are too many", out.heads, out.head_dim);
  }
  out.context = whole(config, "max_position_embeddings", family.context, 1, kMaxContext);
  out.norm_eps = static_cast<float>(positive(config, "rms_norm_eps", family.eps));
  out.activation = activation_of(
      text(config, family.gemma ? "hidden_activation" : "hidden_act", text(config, "hidden_act", family.activation)));
  out.norm_weight_plus_one = family.gemma;
  out.post_norms = family.gemma;
  out.qk_norm = family.qk_norm;
  const bool bias = (family.bias_flags || family.gemma) && flag(config, "attention_bias", false);
  out.attention_bias = family.qkv_bias || bias;
  out.output_bias = bias;
  out.ffn_bias = family.bias_flags && flag(config, "mlp_bias", false);
  const bool tied = flag(config, "tie_word_embeddings", family.tied);
  out.tied_head = inner != nullptr ? flag(whole_config, "tie_word_embeddings", tied) : tied;
  const double scalar = family.gemma ? positive(config, "query_pre_attn_scalar", 256.0) : static_cast<double>(out.head_dim);
  out.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  if (family.gemma) {
    out.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(out.hidden)));
    if (find(config, "attn_logit_softcapping") != nullptr) {
      out.attention_softcap = static_cast<float>(positive(config, "attn_logit_softcapping", std::nullopt));
    }
    if (find(config, "final_logit_softcapping") != nullptr) {
      out.final_softcap = static_cast<float>(positive(config, "final_logit_softcapping", std::nullopt));
    }
    if (flag(config, "use_bidirectional_attention", false)) {
      fail(ErrorKind::unsupported, "config.json: 'use_bidirectional_attention' cannot be run: it is no causal model");
    }
  }
  read_layers(config, family, out);
  read_rope(config, family, out);
  out.bos_ids = token_ids(config, "bos_token_id");
  out.eos_ids = token_ids(config, "eos_token_id");
  if (inner != nullptr) {
    for (const std::int32_t id : token_ids(whole_config, "eos_token_id")) {
      if (std::find(out.eos_ids.begin(), out.eos_ids.end(), id) == out.eos_ids.end()) out.eos_ids.push_back(id);
    }
  }
  return out;
}

}  // namespace halftone
