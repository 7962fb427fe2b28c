#include <algorithm>
#include <map>

#include "base/error.h"
#include "cli/common.h"
#include "quantize/roles.h"

namespace halftone::cli {

void add_inspect(CLI::App& app, Common& common) {
  struct Options {
    std::string model;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("inspect", "Architecture, roles, formats, bits per weight; reads headers only");
  command->add_option("MODEL", options->model, "A checkpoint")->required();
  add_common(*command, common);
  command->callback([options, &common] {
    const Checkpoint checkpoint = open_checkpoint(options->model);
    struct Group {
      std::int64_t matrices = 0, weights = 0;
      std::uint64_t bytes = 0;
    };
    std::map<std::pair<std::string, std::string>, Group> groups;  // role, format
    std::uint64_t bytes = 0;
    std::int64_t parameters = 0;
    Json tensors = Json::array();
    for (const TensorInfo& info : checkpoint.tensors->tensors()) {
      bytes += info.bytes;
      const std::string role(role_name(role_of(info.name, info.shape.size())));
      const std::string format(info.ggml ? ggml_info(*info.ggml).name : dtype_name(info.dtype));
      tensors.push_back({{"name", info.name}, {"role", role}, {"format", format}, {"shape", info.shape}, {"bytes", info.bytes}, {"file", info.file}});
      Group& group = groups[{role, format}];
      ++group.matrices;
      group.weights += info.elements();
      group.bytes += info.bytes;
    }
    // Logical weights: what the matrices of the model are, whatever their stored form.
    std::map<std::string, std::int64_t> schemes;
    for (const TensorInfo& info : checkpoint.tensors->tensors()) {
      static constexpr std::string_view kSuffixes[] = {".weight", ".weight_packed", ".weight_blocks"};
      bool is_matrix = false;
      for (const std::string_view suffix : kSuffixes) {
        if (!info.name.ends_with(suffix)) continue;
        const std::string module = info.name.substr(0, info.name.size() - suffix.size());
        if (const auto weight = checkpoint.weights->find(module)) {
          std::string scheme = to_string(weight->scheme);
          if (weight->activations) scheme += " x " + to_string(*weight->activations);
          schemes[scheme] += weight->rows * weight->cols;
          parameters += weight->rows * weight->cols;
          is_matrix = true;
        }
      }
      if (!is_matrix && info.shape.size() == 1 && (info.name.ends_with(".weight") || info.name.ends_with(".bias"))) {
        parameters += info.elements();
      }
    }
    const double bits = parameters > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters) : 0;
    if (common.json) {
      Json json{{"path", checkpoint.path.string()}, {"container", checkpoint.container}, {"parameters", parameters},
                {"weight_bytes", bytes}, {"bits_per_weight", bits}, {"runnable", checkpoint.model.has_value()}};
      if (checkpoint.model) {
        const ModelConfig& c = *checkpoint.model;
        json["architecture"] = {{"name", c.architecture}, {"layers", c.layers.size()}, {"hidden", c.hidden}, {"ffn", c.ffn},
                                {"heads", c.heads}, {"kv_heads", c.kv_heads}, {"head_dim", c.head_dim},
                                {"vocabulary", c.vocabulary}, {"context", c.context}, {"tied_head", c.tied_head}};
      } else {
        json["refusal"] = checkpoint.model_refusal;
      }
      json["schemes"] = schemes;
      json["tensors"] = tensors;
      json["notes"] = checkpoint.notes;
      return print_json(json);
    }
    std::string text = fmt::format("{} ({}, {} file{})\n", checkpoint.path.string(), checkpoint.container, checkpoint.files.size(),
                                   checkpoint.files.size() == 1 ? "" : "s");
    if (checkpoint.model) {
      const ModelConfig& c = *checkpoint.model;
      text += fmt::format("{}: {} layers, hidden {}, ffn {}, {} heads ({} kv) of {}, vocabulary {}, context {}{}\n", c.architecture,
                          c.layers.size(), c.hidden, c.ffn, c.heads, c.kv_heads, c.head_dim, c.vocabulary, c.context,
                          c.tied_head ? ", tied head" : "");
    } else {
      text += "cannot be run: " + checkpoint.model_refusal + "\n";
    }
    text += fmt::format("{:.1f} M parameters, {}, {:.3f} bits per weight\n\n", static_cast<double>(parameters) / 1e6,
                        format_bytes(static_cast<double>(bytes)), bits);
    std::vector<std::vector<std::string>> rows{{"role", "format", "tensors", "elements", "size"}};
    for (const auto& [key, group] : groups) {
      rows.push_back({key.first, key.second, std::to_string(group.matrices), std::to_string(group.weights),
                      format_bytes(static_cast<double>(group.bytes))});
    }
    text += format_table(rows);
    std::vector<std::vector<std::string>> scheme_rows{{"scheme of matrices", "weights"}};
    for (const auto& [scheme, weights] : schemes) scheme_rows.push_back({scheme, std::to_string(weights)});
    text += "\n" + format_table(scheme_rows);
    for (const std::string& note : checkpoint.notes) text += "note: " + note + "\n";
    if (common.verbose) {
      std::vector<std::vector<std::string>> all{{"tensor", "role", "format", "shape", "bytes"}};
      for (const Json& tensor : tensors) {
        all.push_back({tensor["name"], tensor["role"], tensor["format"], shape_string(tensor["shape"].get<Shape>()), tensor["bytes"].dump()});
      }
      text += "\n" + format_table(all);
    }
    print(text);
  });
}

}  // namespace halftone::cli
