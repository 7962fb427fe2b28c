#include "pipeline/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/error.h"

namespace halftone {

using Json = nlohmann::ordered_json;

Journal::Journal(const std::filesystem::path& folder, const Json& job) : path_(folder / kFileName) {
  lock_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ < 0) {
    fail(ErrorKind::resources, "{}: cannot open: {}", folder.string(), std::generic_category().message(errno));
  }
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    lock_ = -1;
    fail(ErrorKind::resources, "{}: another run is writing here; wait for it or stop it", folder.string());
  }
  std::string text;
  std::error_code ignored;
  if (std::filesystem::exists(path_, ignored)) text = read_text_file(path_);
  std::size_t valid = 0;
  bool has_job = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    const Json line = Json::parse(text.substr(at, end - at), nullptr, false);
    if (line.is_discarded() || !line.is_object()) break;
    if (!has_job) {
      for (const auto& [key, value] : job.items()) {
        const auto found = line.find(key);
        if (found == line.end() || *found != value) {
          const int lock = lock_;
          lock_ = -1;
          ::close(lock);
          fail(ErrorKind::usage,
               "{} holds the unfinished output of another job (the {} differs); finish that one, remove the folder, or "
               "use --force to start anew",
               folder.string(), key);
        }
      }
      has_job = true;
    } else {
      const auto name = line.find("name");
      if (name == line.end() || !name->is_string()) break;
      finished_[name->get<std::string>()] = line;
    }
    at = valid = end + 1;
  }
  if (!has_job) {
    write_text_file(path_, job.dump() + "\n");
    file_ = std::make_unique<OutputFile>(path_, true);
  } else {
    file_ = std::make_unique<OutputFile>(path_, true);
    if (valid < text.size()) file_->truncate(valid);
  }
}

Journal::~Journal() {
  if (lock_ >= 0) ::close(lock_);
}

void Journal::append(const std::vector<Json>& lines) {
  if (lines.empty()) return;
  std::string text;
  for (const Json& line : lines) text += line.dump() + "\n";
  file_->append(text);
  file_->sync();
  for (const Json& line : lines) finished_[line.at("name").get<std::string>()] = line;
}

}  // namespace halftone
