#include "pipeline/open.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/gguf.h"
#include "checkpoint/hf_directory.h"
#include "model/model.h"
#include "pipeline/import_gguf.h"
#include "pipeline/stored.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json parse_json(const std::string& text, const fs::path& folder, std::string_view name) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail(ErrorKind::bad_input, "{}: not valid JSON: {}", (folder / name).string(), error.what());
  }
}

// The template that transformers would take: chat_template.jinja, else tokenizer_config.json's "chat_template", a string
// or a list of named ones.
std::optional<std::string> find_chat_template(const std::map<std::string, std::string>& sidecars,
                                              std::vector<std::string>& notes) {
  if (const auto file = sidecars.find("chat_template.jinja"); file != sidecars.end()) return file->second;
  for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {
    const auto file = sidecars.find(name);
    if (file == sidecars.end()) continue;
    const Json config = Json::parse(file->second, nullptr, false);
    if (!config.is_object()) {
      notes.push_back(fmt::format("{}: not a JSON object, so no chat template is read from it", name));
      continue;
    }
    const auto value = config.find("chat_template");
    if (value == config.end() || value->is_null()) continue;
    if (value->is_string()) return value->get<std::string>();
    const auto text_of = [](const Json& item) -> const Json* {
      if (!item.is_object() || !item.contains("name") || !item.contains("template")) return nullptr;
      return item["template"].is_string() ? &item["template"] : nullptr;
    };
    if (value->is_array()) {
      for (const Json& item : *value) {
        if (const Json* text = text_of(item); text != nullptr && item["name"] == "default") return text->get<std::string>();
      }
    }
    notes.push_back(fmt::format("{}: 'chat_template' is neither a text nor a list with one named 'default'", name));
  }
  return std::nullopt;
}

void say_tied(Json& config, bool tied) {
  if (!config.is_object()) return;
  config["tie_word_embeddings"] = tied;
  const auto text = config.find("text_config");
  if (text != config.end() && text->is_object() && text->contains("tie_word_embeddings")) {
    (*text)["tie_word_embeddings"] = tied;
  }
}

bool says_tied(const Json& config) {
  const auto flag = [](const Json& object) {
    const auto found = object.find("tie_word_embeddings");
    return found != object.end() && found->is_boolean() && found->get<bool>();
  };
  const auto text = config.find("text_config");
  return flag(config) || (text != config.end() && text->is_object() && flag(*text));
}

// What the tensors say goes before what the config says: a head that is not stored is the embedding, one that is stored
// and differs from the embedding is a head of its own.
void settle_head(Checkpoint& checkpoint) {
  ModelConfig& model = *checkpoint.model;
  const ModuleNames names = find_module_names(*checkpoint.weights);
  if (names.head.empty()) {
    if (!model.tied_head) {
      checkpoint.notes.push_back("no head is stored: the token embedding is the head (tie_word_embeddings)");
    }
    model.tied_head = true;
    // Not every reader takes the default of the model's class.
    if (!says_tied(checkpoint.config)) say_tied(checkpoint.config, true);
    return;
  }
  if (!model.tied_head) return;
  const TensorInfo* head = checkpoint.tensors->find(names.head + ".weight");
  const TensorInfo* table = checkpoint.tensors->find(names.stem + "embed_tokens.weight");
  const bool plain = head != nullptr && table != nullptr && head->shape.size() == 2;
  if (plain && same_bytes(*checkpoint.tensors, *head, *table)) return;
  model.tied_head = false;
  say_tied(checkpoint.config, false);
  checkpoint.notes.push_back(fmt::format(
      "{}.weight is stored and differs from {}embed_tokens.weight although the config ties them: the stored head is used",
      names.head, names.stem));
}

void bind_model(Checkpoint& checkpoint) {
  if (!checkpoint.model_refusal.empty()) return;
  if (checkpoint.config.is_null()) {
    checkpoint.model_refusal = fmt::format("{}: there is no config.json, so the architecture is not known",
                                           checkpoint.path.string());
    checkpoint.model_refusal_kind = ErrorKind::bad_input;
    return;
  }
  try {
    checkpoint.model = model_config_from_json(checkpoint.config);
    settle_head(checkpoint);
    if (const auto file = checkpoint.sidecars.find("generation_config.json"); file != checkpoint.sidecars.end()) {
      const Json generation = Json::parse(file->second, nullptr, false);
      for (const std::int32_t id : token_ids(generation, "eos_token_id")) {
        std::vector<std::int32_t>& ids = checkpoint.model->eos_ids;
        if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
      }
    }
  } catch (const Error& error) {
    checkpoint.model.reset();
    checkpoint.model_refusal = error.what();
    checkpoint.model_refusal_kind = error.kind();
  }
}

void open_gguf(const fs::path& path, Checkpoint& out) {
  out.container = "gguf";
  out.files = {path};
  GgufImport import = import_gguf(std::make_shared<const GgufFile>(path));
  out.tensors = std::move(import.tensors);
  out.config = std::move(import.config);
  out.model_refusal = std::move(import.refusal);
  out.model_refusal_kind = import.refusal_kind;
  out.gguf_vocabulary = std::move(import.vocabulary);
  out.chat_template = std::move(import.chat_template);
  out.notes = std::move(import.notes);

  if (out.gguf_vocabulary) {
    try {
      TokenizerFiles files = tokenizer_files(*out.gguf_vocabulary, out.chat_template.value_or(""));
      if (!files.tokenizer_json.empty()) out.sidecars["tokenizer.json"] = std::move(files.tokenizer_json);
      if (!files.tokenizer_config_json.empty()) {
        out.sidecars["tokenizer_config.json"] = std::move(files.tokenizer_config_json);
      }
    } catch (const Error& error) {
      out.notes.push_back(fmt::format("no tokenizer files can be made from the metadata: {}", error.what()));
    }
  }
  if (out.chat_template) out.sidecars["chat_template.jinja"] = *out.chat_template;
  Json generation = Json::object();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (out.config.contains(key) && !out.config[key].is_null()) generation[key] = out.config[key];
  }
  if (!generation.empty()) out.sidecars["generation_config.json"] = generation.dump(2) + "\n";
}

void open_hugging_face(const fs::path& path, bool is_file, Checkpoint& out) {
  out.container = "safetensors";
  HfDirectory directory = is_file ? open_safetensors_with_neighbours(path) : open_hf_directory(path);
  out.files = std::move(directory.files);
  out.sidecars = std::move(directory.sidecars);
  out.notes = std::move(directory.notes);
  out.tensors = std::move(directory.tensors);
  if (!directory.config.empty()) {
    const fs::path folder = is_file ? path.parent_path() : path;
    out.config = parse_json(directory.config, folder, "config.json");
    if (!out.config.is_object()) {
      fail(ErrorKind::bad_input, "{}: must be a JSON object", (folder / "config.json").string());
    }
  }
  out.chat_template = find_chat_template(out.sidecars, out.notes);
}

bool begins_with(const fs::path& path, std::string_view magic) {
  std::error_code error;
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) < magic.size() || error) return false;
  const MappedFile file(path);
  return std::memcmp(file.bytes().data(), magic.data(), magic.size()) == 0;
}

}  // namespace

Checkpoint open_checkpoint(const fs::path& path) {
  Checkpoint out;
  out.path = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    fail(ErrorKind::bad_input, "{}: no such file or directory (expected a model directory, a .safetensors or a .gguf)",
         path.string());
  }
  if (fs::is_directory(status)) {
    open_hugging_face(path, false, out);
  } else if (path.extension() == ".gguf" || begins_with(path, "GGUF")) {
    open_gguf(path, out);
  } else if (path.extension() == ".safetensors") {
    open_hugging_face(path, true, out);
  } else {
    fail(ErrorKind::bad_input, "{}: not a checkpoint (expected a model directory, a .safetensors or a .gguf)",
         path.string());
  }
  out.weights = stored_weights(out.tensors, out.config, &out.notes);
  bind_model(out);
  return out;
}

std::unique_ptr<Tokenizer> open_tokenizer(const Checkpoint& checkpoint) {
  if (checkpoint.gguf_vocabulary) return make_tokenizer(*checkpoint.gguf_vocabulary);
  const auto text = [&](const char* name) -> std::string_view {
    const auto found = checkpoint.sidecars.find(name);
    return found == checkpoint.sidecars.end() ? std::string_view() : std::string_view(found->second);
  };
  if (text("tokenizer.json").empty()) {
    fail(ErrorKind::bad_input, "{}: no tokenizer ({})", checkpoint.path.string(),
         checkpoint.container == "gguf" ? "the metadata holds no vocabulary that can be read"
                                        : "a tokenizer.json must lie beside the weights");
  }
  return make_tokenizer(text("tokenizer.json"), text("tokenizer_config.json"), text("generation_config.json"));
}

const ModelConfig& runnable_config(const Checkpoint& checkpoint) {
  if (!checkpoint.model) {
    fail(checkpoint.model_refusal_kind, "{}: cannot be run: {}", checkpoint.path.string(), checkpoint.model_refusal);
  }
  return *checkpoint.model;
}

}  // namespace halftone
