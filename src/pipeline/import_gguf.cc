#include "pipeline/import_gguf.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/integer.h"
#include "kernels/rope/rope.h"
#include "model/config.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;

struct NamePair {
  std::string_view gguf, canonical;
};

constexpr NamePair kWholeNames[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};

constexpr NamePair kBlockNames[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_norm", "post_attention_layernorm"},
};

// Where Gemma's four norms a layer go; ffn_norm means another place than in Llama.
constexpr NamePair kGemmaNames[] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};

struct Architecture {
  std::string_view gguf, model_type, model_class;
  bool interleaved = false;     // Q and K rows were permuted for interleaved pairs
  bool norm_plus_one = false;   // norms hold 1 + w
};

constexpr Architecture kArchitectures[] = {
    {.gguf = "llama", .model_type = "llama", .model_class = "LlamaForCausalLM", .interleaved = true},
    {.gguf = "gemma3", .model_type = "gemma3_text", .model_class = "Gemma3ForCausalLM", .norm_plus_one = true},
    {.gguf = "qwen2", .model_type = "qwen2", .model_class = "Qwen2ForCausalLM"},
    {.gguf = "qwen3", .model_type = "qwen3", .model_class = "Qwen3ForCausalLM"},
};

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.gguf == name) return &architecture;
  }
  return nullptr;
}

// ---- tensors -------------------------------------------------------------------------------------------------------

enum class Change : std::uint8_t { none, permuted_rows, permuted_vector, minus_one };

struct Origin {
  const TensorInfo* stored = nullptr;
  Change change = Change::none;
  std::int64_t head_dim = 0;  // permuted_*
};

// Row r of a rotate-half matrix lies at this row of the interleaved one: head rows (j, i) at 2 i + j.
std::int64_t interleaved_row(std::int64_t r, std::int64_t head_dim) {
  const std::int64_t half = head_dim / 2, head = r / head_dim, within = r % head_dim;
  return head * head_dim + 2 * (within % half) + within / half;
}

class CanonicalTensors final : public TensorSource {
 public:
  explicit CanonicalTensors(std::shared_ptr<const GgufFile> file) : file_(std::move(file)) {}

  void add(TensorInfo info, const Origin& origin) {
    origins_.emplace(info.name, origin);
    tensors_.push_back(std::move(info));
  }
  bool has(const std::string& name) const { return origins_.contains(name); }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }

  std::span<const std::byte> rows(const TensorInfo& info, std::int64_t first, std::int64_t count,
                                  std::vector<std::byte>& scratch) const override {
    const Origin& origin = origin_of(info);
    const TensorInfo& stored = *origin.stored;
    switch (origin.change) {
      case Change::none:
        return file_->rows(stored, first, count, scratch);
      case Change::permuted_rows:
        return permuted_rows(origin, first, count, scratch);
      case Change::permuted_vector: {
        std::vector<std::byte> own;
        const std::span<const std::byte> bytes = file_->rows(stored, first, count, own);
        const std::size_t width = bytes.size() / static_cast<std::size_t>(std::max<std::int64_t>(1, stored.cols()));
        scratch.resize(bytes.size());
        for (std::int64_t i = 0; i < stored.cols() && !bytes.empty(); ++i) {
          std::memcpy(scratch.data() + static_cast<std::size_t>(i) * width,
                      bytes.data() + static_cast<std::size_t>(interleaved_row(i, origin.head_dim)) * width, width);
        }
        return scratch;
      }
      case Change::minus_one: {
        std::vector<float> values(static_cast<std::size_t>(count * stored.cols()));
        read_rows_as_float(*file_, stored, first, count, values);
        for (float& value : values) value -= 1.0F;
        scratch.resize(values.size() * sizeof(float));
        if (!values.empty()) std::memcpy(scratch.data(), values.data(), scratch.size());
        return scratch;
      }
    }
    return {};
  }

  void forget(const TensorInfo& info) const override { file_->forget(*origin_of(info).stored); }

 private:
  const Origin& origin_of(const TensorInfo& info) const {
    const auto found = origins_.find(info.name);
    HT_CHECK(found != origins_.end());
    return found->second;
  }

  std::span<const std::byte> permuted_rows(const Origin& origin, std::int64_t first, std::int64_t count,
                                           std::vector<std::byte>& scratch) const {
    const TensorInfo& stored = *origin.stored;
    HT_CHECK(first >= 0 && count >= 0 && first + count <= stored.rows());
    if (count == 0) return {};
    // Rows stay inside their head, so the heads that the range touches hold all of them.
    const std::int64_t dim = origin.head_dim, begin = first / dim * dim;
    const std::int64_t end = std::min(stored.rows(), round_up(first + count, dim));
    std::vector<std::byte> own;
    const std::span<const std::byte> bytes = file_->rows(stored, begin, end - begin, own);
    const auto width = static_cast<std::size_t>(stored.row_bytes());
    scratch.resize(static_cast<std::size_t>(count) * width);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t from = interleaved_row(first + r, dim) - begin;
      std::memcpy(scratch.data() + static_cast<std::size_t>(r) * width, bytes.data() + static_cast<std::size_t>(from) * width,
                  width);
    }
    return scratch;
  }

  std::shared_ptr<const GgufFile> file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, Origin, std::less<>> origins_;
};

bool is_norm(std::string_view canonical) {
  return canonical.ends_with("norm.weight") || canonical.ends_with("layernorm.weight");
}

// ---- metadata ------------------------------------------------------------------------------------------------------

// Keys under the architecture's name: "llama.block_count".
class Keys {
 public:
  Keys(const GgufFile& file, std::string architecture) : file_(file), architecture_(std::move(architecture)) {}

  std::string name(std::string_view key) const { return architecture_ + "." + std::string(key); }

  std::optional<std::int64_t> whole(std::string_view key) const {
    const auto value = file_.unsigned_integer(name(key));
    if (!value) return std::nullopt;
    if (*value > static_cast<std::uint64_t>(kMaxCount)) {
      fail(ErrorKind::bad_input, "metadata key '{}' is {}, which is too large", name(key), *value);
    }
    return static_cast<std::int64_t>(*value);
  }
  std::int64_t whole_or_fail(std::string_view key) const {
    const auto value = whole(key);
    if (!value) fail(ErrorKind::bad_input, "metadata key '{}' is missing", name(key));
    return *value;
  }
  std::optional<double> number(std::string_view key) const {
    const auto value = file_.number(name(key));
    if (value && !std::isfinite(*value)) fail(ErrorKind::bad_input, "metadata key '{}' is not finite", name(key));
    return value;
  }
  std::optional<std::string> string(std::string_view key) const { return file_.string(name(key)); }
  const GgufFile& file() const { return file_; }

 private:
  const GgufFile& file_;
  std::string architecture_;
};

// As a decimal that reads back to the FP32 number of the file ("1e-05", not "9.999999747378752e-06").
double decimal(double value) {
  if (!(std::fabs(value) <= static_cast<double>(std::numeric_limits<float>::max()))) return value;
  char text[64];
  const auto [end, code] = std::to_chars(text, text + sizeof text, static_cast<float>(value));
  HT_CHECK(code == std::errc());
  double shortest = value;
  std::from_chars(text, end, shortest);
  return shortest;
}

Json token_id_json(const std::vector<std::int64_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids.front();
  return ids;
}

std::vector<std::int64_t> special_ids(const GgufFile& file, std::initializer_list<std::string_view> keys) {
  std::vector<std::int64_t> ids;
  for (const std::string_view key : keys) {
    const auto id = file.unsigned_integer(fmt::format("tokenizer.ggml.{}", key));
    if (!id || *id > std::numeric_limits<std::int32_t>::max()) continue;
    const auto value = static_cast<std::int64_t>(*id);
    if (std::find(ids.begin(), ids.end(), value) == ids.end()) ids.push_back(value);
  }
  return ids;
}

// Llama 3's scaling is stored as divisors of the frequencies. Where the published parameters give these divisors, the
// config says them in Hugging Face's words; else it carries the divisors under a key of our own.
Json scaling_of_divisors(const std::vector<float>& divisors, double theta, std::int64_t dim, Json& config,
                         std::vector<std::string>& notes) {
  const float largest = *std::max_element(divisors.begin(), divisors.end());
  if (std::all_of(divisors.begin(), divisors.end(), [](float d) { return d == 1.0F; })) return nullptr;
  for (const std::int64_t original : {8192, 4096, 16384, 2048, 32768}) {
    RopeSpec plain, scaled;
    plain.theta = scaled.theta = theta;
    plain.dim = scaled.dim = dim;
    scaled.type = RopeSpec::Type::llama3;
    scaled.factor = largest;
    scaled.low_freq_factor = 1.0;
    scaled.high_freq_factor = 4.0;
    scaled.original_context = original;
    const std::vector<float> a = rope_frequencies(plain).inverse, b = rope_frequencies(scaled).inverse;
    bool same = a.size() == divisors.size();
    for (std::size_t i = 0; same && i < a.size(); ++i) same = std::fabs(a[i] / b[i] / divisors[i] - 1.0F) < 1e-5F;
    if (same) {
      return {{"rope_type", "llama3"}, {"factor", decimal(largest)}, {"low_freq_factor", 1.0},
              {"high_freq_factor", 4.0}, {"original_max_position_embeddings", original}};
    }
  }
  config[std::string(kRopeDivisorsKey)] = divisors;
  notes.push_back(fmt::format("rope_freqs.weight fits no rope type of Hugging Face; config.json carries it as '{}', "
                              "which only Halftone reads",
                              kRopeDivisorsKey));
  return nullptr;
}

Json rope_scaling(const Keys& keys, double theta, std::int64_t dim, const TensorInfo* divisors, Json& config,
                  std::vector<std::string>& notes) {
  if (divisors != nullptr) {
    if (divisors->elements() != dim / 2) {
      fail(ErrorKind::bad_input, "tensor rope_freqs.weight: {} values for {} frequencies", divisors->elements(), dim / 2);
    }
    const std::vector<float> values = read_as_float(keys.file(), *divisors);
    for (const float value : values) {
      if (!(value > 0) || !std::isfinite(value)) {
        fail(ErrorKind::bad_input, "tensor rope_freqs.weight: must hold positive numbers, not {}", value);
      }
    }
    if (!values.empty()) return scaling_of_divisors(values, theta, dim, config, notes);
  }
  const std::string type = keys.string("rope.scaling.type").value_or("");
  double factor = keys.number("rope.scaling.factor").value_or(0);
  if (type.empty() && factor == 0) factor = keys.number("rope.scale_linear").value_or(0);
  if (type == "none" || factor == 0 || (factor == 1 && type != "yarn")) return nullptr;
  if (type.empty() || type == "linear") return {{"rope_type", "linear"}, {"factor", decimal(factor)}};
  if (type != "yarn") fail(ErrorKind::unsupported, "rope scaling of type '{}' cannot be run", type);
  Json scaling{{"rope_type", "yarn"}, {"factor", decimal(factor)}};
  if (const auto original = keys.whole("rope.scaling.original_context_length")) {
    scaling["original_max_position_embeddings"] = *original;
  }
  if (const auto fast = keys.number("rope.scaling.yarn_beta_fast")) scaling["beta_fast"] = decimal(*fast);
  if (const auto slow = keys.number("rope.scaling.yarn_beta_slow")) scaling["beta_slow"] = decimal(*slow);
  // GGUF stores a factor on top of YaRN's own 0.1 ln(factor) + 1, Hugging Face the product.
  const double extra = keys.number("rope.scaling.attn_factor").value_or(1.0);
  if (extra != 1.0) scaling["attention_factor"] = extra * (0.1 * std::log(factor) + 1.0);
  return scaling;
}

void gemma_config(const Keys& keys, std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t head_dim,
                  Json& config) {
  config["hidden_activation"] = "gelu_pytorch_tanh";
  // The 27B model (62 layers) is the one whose query scale is not the head's width.
  config["query_pre_attn_scalar"] = layers == 62 ? hidden / heads : head_dim;
  const std::int64_t window = keys.whole("attention.sliding_window").value_or(0);
  const std::int64_t pattern = 6;
  Json types = Json::array();
  for (std::int64_t i = 0; i < layers; ++i) {
    types.push_back(window > 0 && (i + 1) % pattern != 0 ? "sliding_attention" : "full_attention");
  }
  if (window > 0) config["sliding_window"] = window;
  config["layer_types"] = types;
  config["rope_local_base_freq"] = decimal(keys.number("rope.freq_base_swa").value_or(10000.0));
  config["attn_logit_softcapping"] = nullptr;
  config["final_logit_softcapping"] = nullptr;
  if (const auto cap = keys.number("attn_logit_softcapping"); cap && *cap > 0) config["attn_logit_softcapping"] = decimal(*cap);
  if (const auto cap = keys.number("final_logit_softcapping"); cap && *cap > 0) config["final_logit_softcapping"] = decimal(*cap);
}

Json make_config(const GgufFile& file, const Architecture& architecture, const TensorSource& tensors,
                 std::vector<std::string>& notes) {
  const Keys keys(file, std::string(architecture.gguf));
  if (keys.whole("expert_count").value_or(0) > 0) {
    fail(ErrorKind::unsupported, "mixtures of experts in GGUF files of architecture '{}' cannot be run", architecture.gguf);
  }
  const TensorInfo* embedding = tensors.find("model.embed_tokens.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    fail(ErrorKind::bad_input, "the file has no matrix token_embd.weight");
  }
  const std::int64_t layers = keys.whole_or_fail("block_count"), hidden = keys.whole_or_fail("embedding_length");
  const std::int64_t heads = keys.whole_or_fail("attention.head_count");
  if (heads == 0 || layers == 0 || layers > 4096) {
    fail(ErrorKind::bad_input, "metadata says {} layers of {} heads, which makes no model", layers, heads);
  }
  const std::int64_t kv_heads = keys.whole("attention.head_count_kv").value_or(heads);
  const std::int64_t head_dim = keys.whole("attention.key_length").value_or(hidden / heads);
  if (keys.whole("attention.value_length").value_or(head_dim) != head_dim) {
    fail(ErrorKind::unsupported, "keys and values of different widths ({} and {}) cannot be run", head_dim,
         *keys.whole("attention.value_length"));
  }
  const std::int64_t rotated = keys.whole("rope.dimension_count").value_or(head_dim);
  if (rotated != head_dim) {
    fail(ErrorKind::unsupported, "heads that are rotated in part ({} of {} dimensions) cannot be run from GGUF", rotated,
         head_dim);
  }
  const auto eps = keys.number("attention.layer_norm_rms_epsilon");
  if (!eps) fail(ErrorKind::bad_input, "metadata key '{}' is missing", keys.name("attention.layer_norm_rms_epsilon"));
  const bool gemma = architecture.norm_plus_one;
  const double theta = keys.number("rope.freq_base").value_or(10000.0);

  Json config;
  config["architectures"] = Json::array({std::string(architecture.model_class)});
  config["model_type"] = architecture.model_type;
  config["vocab_size"] = embedding->shape[0];
  config["hidden_size"] = hidden;
  config["intermediate_size"] = keys.whole_or_fail("feed_forward_length");
  config["num_hidden_layers"] = layers;
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = kv_heads;
  config["head_dim"] = head_dim;
  config["max_position_embeddings"] = keys.whole_or_fail("context_length");
  config["rms_norm_eps"] = decimal(*eps);
  if (gemma) {
    gemma_config(keys, layers, hidden, heads, head_dim, config);
  } else {
    config["hidden_act"] = "silu";
  }
  const auto has_bias = [&](std::string_view part) {
    return tensors.find(module_name(0, part) + ".bias") != nullptr;
  };
  if (architecture.model_type == "llama" || architecture.model_type == "qwen3") {
    const bool q = has_bias("self_attn.q_proj"), o = has_bias("self_attn.o_proj");
    if (q != o) {
      fail(ErrorKind::unsupported, "biases on {} only cannot be run for architecture '{}'",
           q ? "queries, keys and values" : "the attention's output", architecture.gguf);
    }
    config["attention_bias"] = q;
    if (architecture.model_type == "llama") config["mlp_bias"] = has_bias("mlp.down_proj");
  }
  if (architecture.model_type == "qwen2" || architecture.model_type == "qwen3") {
    config["use_sliding_window"] = false;
    config["sliding_window"] = nullptr;
  }
  config["rope_theta"] = decimal(theta);
  config["rope_scaling"] =
      rope_scaling(keys, theta, head_dim, file.find("rope_freqs.weight"), config, notes);
  config["attention_dropout"] = 0.0;
  config["tie_word_embeddings"] = tensors.find("lm_head.weight") == nullptr;
  config["torch_dtype"] = "bfloat16";
  config["bos_token_id"] = token_id_json(special_ids(file, {"bos_token_id"}));
  config["eos_token_id"] = token_id_json(special_ids(file, {"eos_token_id", "eot_token_id", "eom_token_id"}));
  config["pad_token_id"] = token_id_json(special_ids(file, {"padding_token_id"}));
  return config;
}

std::optional<TokenId> token_id(const GgufFile& file, std::string_view key) {
  const auto ids = special_ids(file, {key});
  return ids.empty() ? std::nullopt : std::optional<TokenId>(static_cast<TokenId>(ids.front()));
}

std::optional<GgufVocabulary> read_vocabulary(const GgufFile& file) {
  const auto model = file.string("tokenizer.ggml.model");
  const std::vector<std::string>* tokens = file.strings("tokenizer.ggml.tokens");
  if (!model || *model == "none" || tokens == nullptr) return std::nullopt;
  GgufVocabulary v;
  v.model = *model;
  v.pre = file.string("tokenizer.ggml.pre").value_or("default");
  v.tokens = *tokens;
  if (const auto scores = file.numbers("tokenizer.ggml.scores")) {
    v.scores.reserve(scores->size());
    for (const double score : *scores) v.scores.push_back(static_cast<float>(score));
  }
  if (const auto types = file.integers("tokenizer.ggml.token_type")) {
    v.types.reserve(types->size());
    for (const std::int64_t type : *types) {
      if (type < 0 || type > 100) fail(ErrorKind::bad_input, "tokenizer.ggml.token_type holds {}, which is no type", type);
      v.types.push_back(static_cast<std::int32_t>(type));
    }
  }
  if (const std::vector<std::string>* merges = file.strings("tokenizer.ggml.merges")) v.merges = *merges;
  v.bos = token_id(file, "bos_token_id");
  v.eos = token_id(file, "eos_token_id");
  v.eot = token_id(file, "eot_token_id");
  v.eom = token_id(file, "eom_token_id");
  v.unknown = token_id(file, "unknown_token_id");
  v.padding = token_id(file, "padding_token_id");
  v.add_bos = file.boolean("tokenizer.ggml.add_bos_token");
  v.add_eos = file.boolean("tokenizer.ggml.add_eos_token");
  v.add_space_prefix = file.boolean("tokenizer.ggml.add_space_prefix");
  return v;
}

std::int64_t heads_of(const GgufFile& file, std::string_view canonical) {
  const Keys keys(file, "llama");
  const std::int64_t heads = keys.whole("attention.head_count").value_or(0);
  return canonical.find("k_proj") != std::string_view::npos ? keys.whole("attention.head_count_kv").value_or(heads) : heads;
}

}  // namespace

std::optional<std::string> canonical_name(std::string_view architecture, std::string_view gguf_name) {
  const std::size_t dot = gguf_name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view suffix = gguf_name.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return std::nullopt;
  std::string_view stem = gguf_name.substr(0, dot);
  for (const NamePair& pair : kWholeNames) {
    if (pair.gguf == stem) return std::string(pair.canonical) + std::string(suffix);
  }
  if (!stem.starts_with("blk.")) return std::nullopt;
  stem.remove_prefix(4);
  const std::size_t end = stem.find('.');
  if (end == std::string_view::npos || end == 0 || end > 6) return std::nullopt;
  const std::string_view number = stem.substr(0, end), part = stem.substr(end + 1);
  if (number.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  if (number.size() > 1 && number.front() == '0') return std::nullopt;
  const auto made = [&](std::string_view canonical) {
    return fmt::format("model.layers.{}.{}{}", number, canonical, suffix);
  };
  if (architecture.starts_with("gemma")) {
    for (const NamePair& pair : kGemmaNames) {
      if (pair.gguf == part) return made(pair.canonical);
    }
  }
  for (const NamePair& pair : kBlockNames) {
    if (pair.gguf == part) return made(pair.canonical);
  }
  return std::nullopt;
}

GgufImport import_gguf(std::shared_ptr<const GgufFile> file) {
  GgufImport out;
  if (const auto parts = file->unsigned_integer("split.count").value_or(1); parts > 1) {
    fail(ErrorKind::unsupported, "the file is part {} of {} of a split GGUF: join the parts to one file first",
         file->unsigned_integer("split.no").value_or(0) + 1, parts);
  }
  const std::string name = file->string("general.architecture").value_or("");
  const Architecture* architecture = find_architecture(name);
  auto tensors = std::make_shared<CanonicalTensors>(file);
  std::vector<std::string> kept;
  std::int64_t permuted = 0, shifted = 0;
  for (const TensorInfo& stored : file->tensors()) {
    TensorInfo info = stored;
    Origin origin{.stored = &stored};
    if (const auto canonical = canonical_name(name, stored.name)) {
      info.name = *canonical;
    } else if (architecture != nullptr && stored.name == "rope_freqs.weight") {
      out.notes.push_back("rope_freqs.weight is said by the config (RoPE scaling), no longer by a tensor");
      continue;
    } else {
      kept.push_back(stored.name);
    }
    if (tensors->has(info.name)) {
      fail(ErrorKind::bad_input, "{}: tensors '{}' and another one stand for {}", stored.file, stored.name, info.name);
    }
    const bool qk = info.name.find(".self_attn.q_proj.") != std::string::npos ||
                    info.name.find(".self_attn.k_proj.") != std::string::npos;
    if (architecture != nullptr && architecture->interleaved && qk) {
      const bool vector = stored.shape.size() == 1;
      const std::int64_t size = vector ? stored.cols() : stored.rows(), heads = heads_of(*file, info.name);
      if (heads <= 0 || size % heads != 0 || size / heads % 2 != 0 || size == 0 || stored.shape.size() > 2) {
        fail(ErrorKind::bad_input, "{}: tensor '{}' {} does not hold {} heads", stored.file, stored.name,
             shape_string(stored.shape), heads);
      }
      origin.head_dim = size / heads;
      origin.change = vector ? Change::permuted_vector : Change::permuted_rows;
      ++permuted;
    } else if (architecture != nullptr && architecture->norm_plus_one && info.name != stored.name && is_norm(info.name)) {
      origin.change = Change::minus_one;
      info.dtype = DType::f32;
      info.ggml.reset();
      info.bytes = static_cast<std::uint64_t>(info.elements()) * sizeof(float);
      ++shifted;
    }
    tensors->add(std::move(info), origin);
  }
  out.tensors = tensors;
  if (permuted > 0) {
    out.notes.push_back(fmt::format("{} query and key tensors: rows back in Hugging Face's order (rotate-half)", permuted));
  }
  if (shifted > 0) {
    out.notes.push_back(fmt::format("{} norm weights: stored as 1 + w, given as w in FP32", shifted));
  }
  if (!kept.empty()) {
    out.notes.push_back(fmt::format("{} tensors without a Hugging Face name keep their own: {}{}", kept.size(),
                                    fmt::join(kept.begin(), kept.begin() + std::min<std::ptrdiff_t>(4, std::ssize(kept)), ", "),
                                    kept.size() > 4 ? ", ..." : ""));
  }

  if (architecture == nullptr) {
    std::string list;
    for (const Architecture& known : kArchitectures) list += (list.empty() ? "" : ", ") + std::string(known.gguf);
    out.config = Json{{"model_type", name}};
    out.refusal = fmt::format("the GGUF architecture '{}' cannot be run (these can: {})", name, list);
    out.notes.push_back("config.json made from this file names the architecture only");
  } else {
    try {
      out.config = make_config(*file, *architecture, *tensors, out.notes);
    } catch (const Error& error) {
      out.config = Json{{"model_type", std::string(architecture->model_type)}};
      out.refusal = error.what();
      out.refusal_kind = error.kind();
    }
  }
  try {
    out.vocabulary = read_vocabulary(*file);
  } catch (const Error& error) {
    out.notes.push_back(fmt::format("the tokenizer of this file cannot be read: {}", error.what()));
  }
  out.chat_template = file->string("tokenizer.chat_template");
  return out;
}

}  // namespace halftone
