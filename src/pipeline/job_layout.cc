#include "pipeline/job_layout.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/integer.h"
#include "base/file.h"
#include "checkpoint/hf_writer.h"
#include "checkpoint/safetensors.h"
#include "model/model.h"
#include "pipeline/calibration_walk.h"
#include "pipeline/stored_config.h"

namespace halftone {
namespace {

using Json = nlohmann::ordered_json;

struct Tables {
  std::string head, embedding;  // tensor names, "" if absent
};

Tables find_tables(const std::vector<PlanInput>& inputs) {
  Tables tables;
  for (const PlanInput& input : inputs) {
    const Role role = role_of(input.name, input.shape.size());
    if (role == Role::head && tables.head.empty() && input.name.ends_with(".weight")) tables.head = input.name;
    if (role == Role::embedding && tables.embedding.empty()) tables.embedding = input.name;
  }
  return tables;
}

bool says_tied(const Checkpoint& source) {
  if (source.model) return source.model->tied_head;
  if (!source.config.is_object()) return false;
  const auto flag = [](const Json& object) {
    const auto found = object.find("tie_word_embeddings");
    return found != object.end() && found->is_boolean() && found->get<bool>();
  };
  const auto text = source.config.find("text_config");
  return flag(source.config) || (text != source.config.end() && text->is_object() && flag(*text));
}

std::vector<PlanInput> plan_inputs(const Checkpoint& source) {
  std::vector<PlanInput> inputs;
  for (const StoredEntry& entry : stored_entries(*source.tensors, source.config)) {
    PlanInput input;
    input.name = entry.name;
    input.parts = entry.parts;
    for (const std::string& part : entry.parts) input.bytes += source.tensors->at(part).bytes;
    const TensorInfo* plain = source.tensors->find(entry.name);
    if (entry.quantized) {
      input.stored = entry.info.scheme;
      input.stored_activations = entry.info.activations;
      input.shape = {entry.info.rows, entry.info.cols};
      if (entry.info.scheme.ggml && plain != nullptr) input.shape = plain->shape;
      if (plain != nullptr) input.dtype = plain->dtype;
    } else {
      HT_CHECK(plain != nullptr);
      input.shape = plain->shape;
      input.dtype = plain->dtype;
      input.ggml = plain->ggml;
    }
    inputs.push_back(std::move(input));
  }
  return inputs;
}

// The same table stored twice under a config that ties them is stored once; a head that differs stays, and the config
// stops saying that they are tied.
void settle_head(const Checkpoint& source, std::vector<PlanInput>& inputs, PlanOptions& options,
                 std::vector<DroppedTensor>& dropped, std::vector<std::string>& notes, bool& untie) {
  const Tables tables = find_tables(inputs);
  if (tables.embedding.empty()) return;
  if (tables.head.empty()) {
    options.tied_head = says_tied(source) || source.config.is_null() || source.container == "gguf";
    return;
  }
  if (!says_tied(source)) return;
  const TensorInfo* head = source.tensors->find(tables.head);
  const TensorInfo* embedding = source.tensors->find(tables.embedding);
  if (head == nullptr || embedding == nullptr) return;
  if (same_bytes(*source.tensors, *head, *embedding)) {
    dropped.push_back({tables.head, fmt::format("the same bytes as {}, to which the config ties it", tables.embedding),
                       true});
    std::erase_if(inputs, [&](const PlanInput& input) { return input.name == tables.head; });
    options.tied_head = true;
  } else {
    untie = true;
    notes.push_back(fmt::format("{}: differs from {} although the config ties them; the stored head is used and "
                                "tie_word_embeddings becomes false",
                                tables.head, tables.embedding));
  }
}

// The matrices whose inputs a calibration walk sees.
std::set<std::string> walked_modules(const Checkpoint& source) {
  const ModuleNames names = find_module_names(*source.weights);
  std::set<std::string> modules;
  modules.insert(source.model->tied_head ? names.stem + "embed_tokens" : names.head.empty() ? "lm_head" : names.head);
  for (std::size_t i = 0; i < source.model->layers.size(); ++i) {
    for (const char* part : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      modules.insert(module_name(static_cast<std::int64_t>(i), part, names.stem));
    }
  }
  return modules;
}

DType dtype_of_plain(const ElementFormat& element) {
  return element == fp32_format() ? DType::f32 : element == fp16_format() ? DType::f16 : DType::bf16;
}

std::uint64_t dense_bytes(const PlannedTensor& tensor, DType dtype) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(tensor.rows * tensor.cols, std::int64_t{dtype_bits(dtype) / 8}, &bytes)) {
    fail(ErrorKind::bad_input, "tensor '{}': too large", tensor.name);
  }
  return static_cast<std::uint64_t>(bytes);
}

StoredMethod pick_method(const std::vector<StoredModule>& modules, const QuantizeOptions& options, Plan& plan) {
  std::string why;
  StoredMethod method = choose_method(modules, &why);
  if (options.storage == "compressed-tensors") {
    if (method == StoredMethod::halftone) fail(ErrorKind::unsupported, "compressed-tensors cannot store {}", why);
  } else if (options.storage == "halftone") {
    if (method == StoredMethod::compressed_tensors) {
      method = StoredMethod::halftone;
      why = "asked for";
    }
  } else if (options.storage != "auto") {
    fail(ErrorKind::usage, "unknown storage '{}' (there are: auto, compressed-tensors, halftone)", options.storage);
  }
  plan.storage = method == StoredMethod::none                 ? "none"
                 : method == StoredMethod::compressed_tensors ? "compressed-tensors"
                                                              : "halftone";
  if (method == StoredMethod::halftone) plan.storage_reason = why;
  return method;
}

// Where every tensor stands; what belongs to one item stays in one shard.
void place(JobLayout& layout, std::uint64_t shard_bytes) {
  std::vector<TensorInfo> infos;
  std::vector<std::size_t> groups;
  for (std::size_t i = 0; i < layout.items.size(); ++i) {
    for (const OutputTensor& output : layout.items[i].outputs) {
      infos.push_back(output.info);
      groups.push_back(i);
    }
  }
  HfWriterOptions options;
  options.max_shard_bytes = shard_bytes;
  HfLayout places = hf_layout(std::move(infos), options, groups);
  std::size_t next = 0;
  for (JobItem& item : layout.items) {
    for (OutputTensor& output : item.outputs) {
      output = {std::move(places.tensors[next]), places.places[next].shard, places.places[next].offset};
      ++next;
    }
  }
  layout.files = std::move(places.shards);
  layout.index_json = std::move(places.index_json);
  layout.plan.output_bytes += places.disk_bytes;
  layout.plan.bits_per_weight = layout.plan.parameters > 0 ? 8.0 * static_cast<double>(places.total_size) /
                                                                 static_cast<double>(layout.plan.parameters)
                                                           : 0.0;
}

std::string torch_name(const ElementFormat& element) {
  return element == fp32_format() ? "float32" : element == fp16_format() ? "float16" : "bfloat16";
}

Json output_config(const Checkpoint& source, const JobLayout& layout, const std::vector<StoredModule>& modules,
                   const std::vector<std::string>& dense_linears, const QuantizeOptions& options, bool untie) {
  Json config = source.config;
  if (config.is_object()) {
    config.erase("quantization_config");
    config.erase("compression_config");
    if (config.contains("text_config") && config["text_config"].is_object()) {
      config["text_config"].erase("quantization_config");
    }
    if (untie) {
      config["tie_word_embeddings"] = false;
      if (config.contains("text_config") && config["text_config"].contains("tie_word_embeddings")) {
        config["text_config"]["tie_word_embeddings"] = false;
      }
    }
    if (options.recipe.every_matrix) {
      const std::string name = torch_name(options.recipe.weights->element);
      bool said = false;
      for (const char* key : {"torch_dtype", "dtype"}) {
        if (config.contains(key)) {
          config[key] = name;
          said = true;
        }
        if (config.contains("text_config") && config["text_config"].contains(key)) config["text_config"][key] = name;
      }
      if (!said) config["torch_dtype"] = name;
    }
  }
  if (layout.method != StoredMethod::none) {
    if (!config.is_object()) config = Json::object();
    config["quantization_config"] = quantization_config(layout.method, modules, dense_linears);
    if (!options.recipe.kv_cache.empty() && layout.method == StoredMethod::halftone) {
      config["quantization_config"]["kv_cache"] = options.recipe.kv_cache;
    }
  }
  return config;
}

}  // namespace

std::uint64_t JobItem::bytes() const {
  std::uint64_t sum = 0;
  for (const OutputTensor& output : outputs) sum += output.info.bytes;
  return sum;
}

std::int64_t task_rows(const JobItem& item, std::int64_t cols) {
  const std::int64_t rows = std::max<std::int64_t>(1, kTaskValues / std::max<std::int64_t>(1, cols));
  return round_up(rows, item.row_multiple);
}

JobLayout lay_out(const Checkpoint& source, const QuantizeOptions& options, int threads) {
  JobLayout layout;
  std::vector<PlanInput> inputs = plan_inputs(source);
  if (inputs.empty()) fail(ErrorKind::bad_input, "{}: holds no tensors", source.path.string());
  PlanOptions plan_options;
  plan_options.weights_only = options.weights_only;
  plan_options.strict = options.strict;
  std::vector<DroppedTensor> dropped;
  std::vector<std::string> notes;
  bool untie = false;
  settle_head(source, inputs, plan_options, dropped, notes, untie);
  layout.plan = resolve_plan(inputs, options.recipe, plan_options);
  Plan& plan = layout.plan;
  plan.dropped = std::move(dropped);
  plan.notes.insert(plan.notes.begin(), notes.begin(), notes.end());
  plan.notes.insert(plan.notes.begin(), source.notes.begin(), source.notes.end());

  std::vector<StoredModule> modules;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.action != PlanAction::quantize && tensor.action != PlanAction::restore) continue;
    StoredModule module;
    module.module = module_of(tensor.name);
    module.weights = *tensor.scheme;
    module.activations = tensor.activations;
    module.rows = tensor.rows;
    module.cols = tensor.cols;
    module.is_table = tensor.role == Role::embedding || tensor.role == Role::position || tensor.shape.size() != 2 ||
                      !tensor.name.ends_with(".weight");
    modules.push_back(std::move(module));
  }
  layout.method = pick_method(modules, options, plan);

  if (needs_calibration(options.recipe.methods)) {
    layout.methods = make_calibrated_methods(options.recipe.methods);
    if (!source.model) {
      fail(source.model_refusal_kind, "methods [{}] need to run the model: {}",
           fmt::join(options.recipe.methods, ", "), source.model_refusal);
    }
    if (untie) {
      fail(ErrorKind::unsupported, "methods [{}]: the stored head differs from the table that the config ties it to",
           fmt::join(options.recipe.methods, ", "));
    }
  }
  const std::set<std::string> walked = layout.methods.empty() ? std::set<std::string>() : walked_modules(source);

  const ValueReader reader(source.tensors, source.weights);
  std::vector<std::string> dense_linears;
  bool has_head = false;
  std::size_t next_module = 0;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    PlannedTensor& tensor = plan.tensors[i];
    JobItem item;
    item.planned = i;
    has_head = has_head || tensor.role == Role::head;
    if (tensor.action == PlanAction::quantize || tensor.action == PlanAction::restore) {
      item.module = modules[next_module++];
      for (TensorInfo& info : stored_tensors(layout.method, *item.module)) {
        item.outputs.push_back(OutputTensor{std::move(info), 0, 0});
      }
      const std::optional<ValueReader::Item> from = reader.find(tensor.name);
      HT_CHECK(from.has_value());
      if (!layout.methods.empty() && tensor.action == PlanAction::quantize) {
        item.calibrated = walked.contains(item.module->module) && MatrixProblem::can_solve(*tensor.scheme);
        if (!item.calibrated) {
          plan.notes.push_back(fmt::format("{}: rounded to nearest without calibration: {}", tensor.name,
                                           walked.contains(item.module->module)
                                               ? "its scheme leaves nothing to choose"
                                               : "its inputs cannot be seen"));
        }
      }
      item.row_multiple = std::lcm(store_row_multiple(layout.method, *item.module), reader.row_multiple(*from));
    } else {
      TensorInfo info;
      info.name = tensor.name;
      info.shape = tensor.shape;
      if (tensor.action == PlanAction::cast) {
        item.cast = dtype_of_plain(tensor.scheme->element);
        info.dtype = *item.cast;
        info.bytes = dense_bytes(tensor, info.dtype);
        const std::optional<ValueReader::Item> from = reader.find(tensor.name);
        HT_CHECK(from.has_value());
        item.row_multiple = reader.row_multiple(*from);
      } else {
        const TensorInfo& from = source.tensors->at(tensor.name);
        info.dtype = from.dtype;
        info.bytes = from.bytes;
      }
      item.outputs.push_back(OutputTensor{std::move(info), 0, 0});
      const bool table = tensor.role == Role::embedding || tensor.role == Role::position || tensor.role == Role::norm ||
                         tensor.role == Role::other;
      if (tensor.shape.size() == 2 && tensor.name.ends_with(".weight") && !table) {
        dense_linears.push_back(module_of(tensor.name));
      }
    }
    tensor.bytes = item.bytes();
    layout.items.push_back(std::move(item));
  }
  if (!has_head) {
    // Readers make a head from the tied table; it must not look like a linear layer that lost its scales.
    const bool table_quantized = std::any_of(modules.begin(), modules.end(), [](const StoredModule& module) {
      return role_of(module.module + ".weight", 2) == Role::embedding;
    });
    if (!table_quantized) dense_linears.emplace_back("lm_head");
  }
  place(layout, std::max<std::uint64_t>(1, options.shard_bytes));
  if (!options.recipe.kv_cache.empty() && layout.method != StoredMethod::halftone) {
    plan.notes.push_back(fmt::format(
        "kv_cache {} of the recipe is not stored: {}; give --kv {} when the model runs", options.recipe.kv_cache,
        layout.method == StoredMethod::none
            ? "the output is not quantized"
            : "compressed-tensors describes only caches with calibrated scales of each tensor, ours has one of each vector",
        options.recipe.kv_cache));
  }
  layout.config = output_config(source, layout, modules, dense_linears, options, untie);

  // Memory: what is resident now, room for the allocator and the report, and the chunks under way.
  std::uint64_t largest_task = 0, largest_step = 0;
  for (const JobItem& item : layout.items) {
    const PlannedTensor& tensor = plan.tensors[item.planned];
    if (tensor.action == PlanAction::copy) continue;
    const std::uint64_t row = static_cast<std::uint64_t>(tensor.cols) * static_cast<std::uint64_t>(kBytesPerValue);
    const std::int64_t rows = std::min(task_rows(item, tensor.cols), std::max<std::int64_t>(1, tensor.rows));
    largest_task = std::max(largest_task, row * static_cast<std::uint64_t>(rows));
    const std::uint64_t step =
        row * static_cast<std::uint64_t>(std::min(item.row_multiple, std::max<std::int64_t>(1, tensor.rows)));
    if (step > largest_step) {
      largest_step = step;
      layout.minimum_tensor = tensor.name;
    }
  }
  constexpr std::uint64_t room = std::uint64_t{48} << 20;
  layout.base_bytes = std::max<std::uint64_t>(std::uint64_t{64} << 20, current_resident_bytes() + room);
  if (!layout.methods.empty()) {
    const Recipe::Calibration& calibration = options.recipe.calibration;
    layout.base_bytes += walk_bytes(*source.model, calibration.samples * calibration.length);
    layout.minimum_tensor = "the calibration's hidden states and one block";
  }
  layout.minimum_bytes = layout.base_bytes + largest_step;
  const std::uint64_t comfortable = layout.base_bytes + 4 * static_cast<std::uint64_t>(threads) * largest_task;
  plan.peak_memory_bytes = comfortable;
  if (options.max_memory > 0) {
    if (options.max_memory < layout.minimum_bytes) {
      fail(ErrorKind::resources,
           "--max-memory {} bytes is less than the {} bytes that this job needs at least (largest step: tensor '{}')",
           options.max_memory, layout.minimum_bytes, layout.minimum_tensor);
    }
    plan.peak_memory_bytes = std::min(options.max_memory, comfortable);
  }
  std::uint64_t sidecars = layout.config.is_null() ? 0 : layout.config.dump(2).size();
  for (const auto& [name, text] : source.sidecars) sidecars += text.size();
  constexpr std::uint64_t report_bytes_a_tensor = 600;
  plan.disk_bytes = plan.output_bytes + sidecars + report_bytes_a_tensor * 2 * layout.items.size() + (1U << 16);
  double values = 0;
  for (const JobItem& item : layout.items) {
    const PlannedTensor& tensor = plan.tensors[item.planned];
    if (tensor.action != PlanAction::copy) {
      values += static_cast<double>(tensor.rows) * static_cast<double>(tensor.cols);
    }
  }
  // About 50 ns a value and thread for coding, decoding and comparing; 300 MB/s of disk.
  plan.estimated_seconds = values * 50e-9 / std::max(1, threads) +
                           static_cast<double>(plan.output_bytes + plan.source_bytes) / 300e6;

  // Conservation: every tensor of the input has a place or a reason.
  std::set<std::string> accounted;
  for (const PlannedTensor& tensor : plan.tensors) {
    for (const std::string& part : tensor.parts) HT_CHECK(accounted.insert(part).second);
  }
  for (const DroppedTensor& drop : plan.dropped) HT_CHECK(accounted.insert(drop.tensor).second);
  HT_CHECK(accounted.size() == source.tensors->tensors().size());
  return layout;
}

Plan plan_quantization(const Checkpoint& source, const QuantizeOptions& options) {
  return lay_out(source, options, thread_budget().threads).plan;
}

}  // namespace halftone
