#include "pipeline/report_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "pipeline/json_text.h"

namespace halftone {
namespace {

using ReportJson = nlohmann::ordered_json;

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#5c6570;--paper:#fff;--line:#d9dee4;--card:#f5f7f9}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--dim:#9aa4af;--paper:#14171b;--line:#343a42;--card:#1d2126}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:60rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p,li{overflow-wrap:anywhere}.dim{color:var(--dim)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem;margin:1rem 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:.4rem;padding:.6rem .8rem}
.card b{display:block;font-size:1.25rem}.card span{color:var(--dim);font-size:.85rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .5rem;text-align:right;border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left}
.heat td{border:1px solid var(--paper);color:#111;text-align:center;min-width:2.6rem}.heat td.none{color:var(--dim);background:none}
.heat td:first-child{color:var(--ink);text-align:left}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border:1px solid var(--line);border-radius:.4rem;padding:.6rem .8rem;font-size:.85rem}
@media print{:root{--ink:#000;--dim:#444;--paper:#fff;--line:#bbb;--card:#fff}body{max-width:none;font-size:10pt;padding:0}
.heat td,.heat th{padding:.1rem .25rem;font-size:7pt;min-width:0}.heat td{-webkit-print-color-adjust:exact;print-color-adjust:exact}
tr,.card{break-inside:avoid}}
)css";

std::string page(std::string_view title, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<title>{}</title><style>{}</style></head>\n<body>\n{}</body></html>\n",
      escape_html(title), kStyle, body);
}

double number_of(const ReportJson& json, const char* key, double otherwise = 0) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : otherwise;
}

std::string card(std::string_view value, std::string_view label) {
  return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>\n", escape_html(value), escape_html(label));
}

std::string megabytes(double bytes) {
  return fmt::format("{:.1f} MB", bytes / 1e6);
}

std::string command_section(std::string_view command) {
  return command.empty() ? "" : fmt::format("<h2>Command</h2>\n<pre>{}</pre>\n", escape_html(command));
}

std::string quality_cards(const ReportJson& quality) {
  std::string out;
  if (!quality.contains("kl_mean")) return out;
  out += card(fmt::format("{:.4f}", number_of(quality, "perplexity_ratio")), "perplexity ratio");
  out += card(fmt::format("{:.5f}", number_of(quality, "kl_mean")), "mean KL, nats a token");
  out += card(fmt::format("{:.2f} %", 100 * number_of(quality, "top1_agreement")), "same top token");
  return out;
}

std::string layer_table(const ReportJson& quality) {
  const auto layers = quality.find("layers");
  if (layers == quality.end() || !layers->is_array() || layers->empty()) return "";
  std::string out =
      "<h2>Block outputs against the reference</h2>\n<div "
      "class=\"wide\"><table><tr><th>block</th><th>cosine</th><th>SQNR, dB</th></tr>\n";
  for (const ReportJson& layer : *layers) {
    out += fmt::format("<tr><td>{}</td><td>{:.6f}</td><td>{:.1f}</td></tr>\n", escape_html(text_of(layer, "name")),
                       number_of(layer, "output_cosine"), number_of(layer, "sqnr_db"));
  }
  return out + "</table></div>\n";
}

// One sentence: what one has, and whether it can be trusted. The words follow the mean KL.
std::string verdict(const ReportJson& quality) {
  if (!quality.is_object() || !quality.contains("kl_mean")) return "The loss was not measured.";
  const double kl = number_of(quality, "kl_mean"), loss = 100 * (number_of(quality, "perplexity_ratio", 1) - 1);
  const char* grade = kl < 0.005  ? "Hardly to be told from the original"
                      : kl < 0.02 ? "Close to the original"
                      : kl < 0.1  ? "A visible loss"
                                  : "A heavy loss";
  return fmt::format("{}: perplexity {:+.2f} %, mean KL {:.4f}.", grade, loss, kl);
}

// "model.layers.12.mlp.up_proj.weight" -> 12; -1 if there is no number between dots.
std::int64_t layer_of(std::string_view name) {
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    std::size_t end = dot + 1;
    std::int64_t value = 0;
    while (end < name.size() && name[end] >= '0' && name[end] <= '9' && end - dot < 8)
      value = 10 * value + (name[end++] - '0');
    if (end > dot + 1 && end < name.size() && name[end] == '.') return value;
  }
  return -1;
}

// Red (10 dB and below) over yellow to green (50 dB and above); light enough for black figures in both themes.
std::string heat_color(double db) {
  const double t = std::clamp((db - 10.0) / 40.0, 0.0, 1.0);
  return fmt::format("hsl({:.0f} 70% 72%)", 130 * t);
}

std::string heat_map(const ReportJson& tensors) {
  std::map<std::int64_t, std::map<std::string, double>> cells;  // the worst where several share a cell (experts)
  std::set<std::string> roles;
  for (const ReportJson& tensor : tensors) {
    const std::string name = text_of(tensor, "name"), role = text_of(tensor, "role");
    if (text_of(tensor, "action") != "quantized" || !tensor.contains("sqnr_db") || !tensor["sqnr_db"].is_number())
      continue;
    const std::int64_t layer = layer_of(name);
    const double db = tensor["sqnr_db"].get<double>();
    const auto [cell, fresh] = cells[layer].emplace(role, db);
    if (!fresh) cell->second = std::min(cell->second, db);
    roles.insert(role);
  }
  if (cells.empty()) return "";
  std::string out =
      "<h2>Signal to quantization noise, layers × roles (dB)</h2>\n<div class=\"wide\"><table "
      "class=\"heat\"><tr><th>layer</th>";
  for (const std::string& role : roles) out += fmt::format("<th>{}</th>", escape_html(role));
  out += "</tr>\n";
  for (const auto& [layer, row] : cells) {
    out += fmt::format("<tr><td>{}</td>", layer < 0 ? "–" : std::to_string(layer));
    for (const std::string& role : roles) {
      const auto found = row.find(role);
      out += found == row.end()
                 ? std::string("<td class=\"none\">·</td>")
                 : fmt::format("<td style=\"background:{}\">{:.1f}</td>", heat_color(found->second), found->second);
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string worst_tensors(const ReportJson& tensors) {
  std::vector<const ReportJson*> changed;
  for (const ReportJson& tensor : tensors) {
    if (tensor.contains("sqnr_db") && tensor["sqnr_db"].is_number()) changed.push_back(&tensor);
  }
  if (changed.empty()) return "";
  std::stable_sort(changed.begin(), changed.end(), [](const ReportJson* a, const ReportJson* b) {
    return (*a)["sqnr_db"].get<double>() < (*b)["sqnr_db"].get<double>();
  });
  changed.resize(std::min<std::size_t>(changed.size(), 12));
  std::string out =
      "<h2>Worst tensors</h2>\n<div class=\"wide\"><table><tr><th>tensor</th><th>format</th><th>SQNR, "
      "dB</th><th>largest error</th><th>clipped</th></tr>\n";
  for (const ReportJson* tensor : changed) {
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{:.1f}</td><td>{:.4g}</td><td>{:.0f}</td></tr>\n",
                       escape_html(text_of(*tensor, "name")), escape_html(text_of(*tensor, "scheme")),
                       number_of(*tensor, "sqnr_db"), number_of(*tensor, "max_error"), number_of(*tensor, "clipped"));
  }
  return out + "</table></div>\n";
}

// What calibrated methods were shown, and what they left of each layer's output; "" where nothing was calibrated.
std::string calibration_section(const ReportJson& report, const ReportJson& tensors) {
  const auto data = report.find("calibration");
  if (data == report.end() || !data->is_object()) return "";
  std::string out = fmt::format(
      "<h2>Calibration</h2>\n<p>{:.0f} tokens in {:.0f} sequences from {}; {:.0f} different ones, {:.1f} % of the vocabulary.</p>\n",
      number_of(*data, "tokens"), number_of(*data, "sequences"), escape_html(text_of(*data, "origin")),
      number_of(*data, "distinct_tokens"), 100 * number_of(*data, "vocabulary_share"));
  out += "<details><summary>what each matrix loses on them</summary><div class=\"wide\"><table><tr><th>tensor</th>"
         "<th>format</th><th>methods</th><th>output error, %</th></tr>\n";
  for (const ReportJson& tensor : tensors) {
    if (!tensor.contains("output_error")) continue;
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.3f}</td></tr>\n", escape_html(text_of(tensor, "name")),
                       escape_html(text_of(tensor, "scheme")), escape_html(text_of(tensor, "methods")),
                       100 * number_of(tensor, "output_error"));
  }
  out += "</table></div></details>\n";
  const auto smoothing = data->find("smoothing");
  if (smoothing == data->end() || !smoothing->is_array()) return out;
  out += "<details><summary>what smoothing did</summary><div class=\"wide\"><table><tr><th>input</th><th>found</th>"
         "<th>error, of the unsmoothed</th></tr>\n";
  for (const ReportJson& entry : *smoothing) {
    const double before = number_of(entry, "identity_loss");
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", escape_html(text_of(entry, "input")),
                       escape_html(text_of(entry, "how")),
                       before > 0 ? fmt::format("{:.1f} %", 100 * number_of(entry, "loss") / before) : "");
  }
  return out + "</table></div></details>\n";
}

// "kind: subject: statement" lines; what is said of many subjects is said once, the subjects fold away.
class ChangeList {
 public:
  void add(const std::string& kind, const std::string& subject, const std::string& statement) {
    const std::string key = kind + '\n' + statement;
    const auto [at, fresh] = index_.emplace(key, entries_.size());
    if (fresh) entries_.push_back({kind, statement, {}});
    entries_[at->second].subjects.push_back(subject);
  }

  std::string html() const {
    std::string out;
    for (const Entry& entry : entries_) {
      const std::string kind = entry.kind.empty() ? "" : escape_html(entry.kind) + ": ",
                        said = escape_html(entry.statement);
      if (entry.subjects.size() < kMany) {
        for (const std::string& subject : entry.subjects) {
          out += "<li>" + kind + (subject.empty() ? "" : escape_html(subject) + ": ") + said + "</li>\n";
        }
        continue;
      }
      out += fmt::format("<li>{}{} times: {}<details><summary>which</summary>", kind, entry.subjects.size(), said);
      for (const std::string& subject : entry.subjects) out += escape_html(subject) + "<br>\n";
      out += "</details></li>\n";
    }
    return out.empty() ? "<li>nothing</li>\n" : out;
  }

 private:
  static constexpr std::size_t kMany = 4;
  struct Entry {
    std::string kind, statement;
    std::vector<std::string> subjects;
  };
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t> index_;
};

// Everything that is not as one asked for it.
std::string changes(const ReportJson& report) {
  ChangeList list;
  for (const ReportJson& s : report.value("substitutions", ReportJson::array())) {
    list.add("substituted", text_of(s, "tensor"),
             fmt::format("{} → {}: {}", text_of(s, "asked"), text_of(s, "given"), text_of(s, "reason")));
  }
  for (const ReportJson& d : report.value("dropped", ReportJson::array()))
    list.add("dropped", text_of(d, "tensor"), text_of(d, "reason"));
  for (const ReportJson& note : report.value("notes", ReportJson::array())) {
    if (!note.is_string()) continue;
    const std::string text = note.get<std::string>();
    const std::size_t colon = text.find(": ");
    if (colon == std::string::npos)
      list.add("note", "", text);
    else
      list.add("note", text.substr(0, colon), text.substr(colon + 2));
  }
  const ReportJson totals = report.value("totals", ReportJson::object());
  for (const auto& [key, words] :
       {std::pair{"clipped", "values clipped"}, std::pair{"zero_blocks", "scale cells that are all zero"},
        std::pair{"underflow", "values that became zero"}, std::pair{"non_finite", "values that are not finite"}}) {
    if (const double count = number_of(totals, key); count > 0)
      list.add("", "", fmt::format("{:.0f} {}", count, words));
  }
  return "<h2>Substituted, dropped, clipped</h2>\n<ul>\n" + list.html() + "</ul>\n";
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string quantize_html(const ReportJson& report, std::string_view command) {
  const auto found = report.find("quality");
  const ReportJson quality = found != report.end() && found->is_object() ? *found : ReportJson::object();
  const auto source = report.find("source");
  const double before = source != report.end() ? number_of(*source, "tensor_bytes") : 0,
               after = number_of(report, "output_bytes");
  const auto recipe = report.find("recipe");
  std::string body = fmt::format("<h1>{}</h1>\n", escape_html(verdict(quality)));
  body += fmt::format("<p class=\"dim\">Recipe {}, stored as {}</p>\n",
                      escape_html(recipe != report.end() ? text_of(*recipe, "name") : ""),
                      escape_html(text_of(report, "storage")));
  body += "<div class=\"cards\">\n" +
          card(fmt::format("{:.3f}", number_of(report, "bits_per_weight")), "bits per weight") +
          card(megabytes(after), fmt::format("from {}", megabytes(before)));
  body += quality_cards(quality) + "</div>\n";
  if (const std::string text = text_of(quality, "text"); !text.empty()) {
    body += fmt::format("<p class=\"dim\">Measured on {:.0f} tokens; text: {}</p>\n", number_of(quality, "tokens"),
                        escape_html(text));
  }
  const ReportJson tensors = report.value("tensors", ReportJson::array());
  body +=
      changes(report) + heat_map(tensors) + worst_tensors(tensors) + calibration_section(report, tensors) +
      layer_table(quality) + command_section(command);
  return page("Halftone: quantization report", body);
}

std::string evaluation_html(const ReportJson& evaluation, std::string_view command) {
  const bool compared = evaluation.contains("kl_mean");
  std::string body = fmt::format(
      "<h1>{}</h1>\n", escape_html(compared ? verdict(evaluation)
                                            : fmt::format("Perplexity {:.4f}", number_of(evaluation, "perplexity"))));
  body += "<div class=\"cards\">\n" + card(fmt::format("{:.4f}", number_of(evaluation, "perplexity")), "perplexity") +
          card(fmt::format("{:.3f}", number_of(evaluation, "bits_per_weight")), "bits per weight") +
          card(megabytes(number_of(evaluation, "weight_bytes")), "weights") + quality_cards(evaluation) + "</div>\n";
  body += fmt::format("<p class=\"dim\">Measured on {:.0f} tokens; text: {}</p>\n", number_of(evaluation, "tokens"),
                      escape_html(text_of(evaluation, "text")));
  body += layer_table(evaluation) + command_section(command);
  return page("Halftone: evaluation", body);
}

}  // namespace halftone
