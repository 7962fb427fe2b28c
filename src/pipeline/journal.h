// What an unfinished output folder remembers: which job it belongs to and which tensors are complete. A line is written
// only after the bytes it speaks of are on the disk; a torn last line is ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace halftone {

class Journal {
 public:
  static constexpr std::string_view kFileName = ".halftone-journal.jsonl";

  // Opens the journal of `folder`, or starts one. `job` describes the job; where an existing journal tells of another
  // job, Error(usage) names the first field that differs. Error(resources) if another process holds it.
  Journal(const std::filesystem::path& folder, const nlohmann::ordered_json& job);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  const std::map<std::string, nlohmann::ordered_json>& finished() const { return finished_; }
  void forget(const std::string& name) { finished_.erase(name); }
  void append(const std::vector<nlohmann::ordered_json>& lines);  // synced

 private:
  std::filesystem::path path_;
  int lock_ = -1;
  std::unique_ptr<OutputFile> file_;
  std::map<std::string, nlohmann::ordered_json> finished_;
};

}  // namespace halftone
