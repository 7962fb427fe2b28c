#include "checkpoint/hf_directory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/testing.h"
#include "checkpoint/hf_writer.h"
#include "checkpoint/testing_files.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

void write_weights(const fs::path& folder, std::uint64_t shard_bytes = 1000) {
  std::vector<TensorInfo> infos(2);
  for (std::size_t i = 0; i < 2; ++i) {
    infos[i].name = i == 0 ? "a" : "b";
    infos[i].dtype = DType::u8;
    infos[i].shape = {4};
    infos[i].bytes = 4;
  }
  HfWriterOptions options;
  options.max_shard_bytes = shard_bytes;
  HfWriter writer(folder, infos, options);
  writer.finish();
}

TEST(HfDirectory, ReadsConfigSidecarsAndWeights) {
  for (const std::uint64_t shard_bytes : {4U, 1000U}) {
    TempFolder folder;
    write_weights(folder.path(), shard_bytes);
    put_file(folder.path() / "config.json", "{\"a\": 1}\n");
    std::map<std::string, std::string> sidecars;
    for (const char* name :
         {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
          "chat_template.jinja", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json",
          "preprocessor_config.json", "LICENSE", "LICENSE.txt", "README.md"}) {
      sidecars[name] = std::string("bytes of ") + name + std::string("\0\xff\r\n", 4);
      put_file(folder.path() / name, sidecars[name]);
    }
    for (const char* name : {"training_args.bin", "other.txt", ".gitattributes", "pytorch_model.bin"}) {
      put_file(folder.path() / name, "x");
    }
    fs::create_directories(folder.path() / "original");
    EXPECT_TRUE(looks_like_hf_directory(folder.path()));
    const HfDirectory read = open_hf_directory(folder.path());
    EXPECT_EQ(read.config, "{\"a\": 1}\n");
    EXPECT_EQ(read.sidecars, sidecars);
    EXPECT_EQ(read.tensors->tensors().size(), 2U);
    EXPECT_EQ(read.files.size(), sidecars.size() + 1 + (shard_bytes == 4 ? 3 : 1));
    for (const fs::path& file : read.files) EXPECT_TRUE(fs::exists(file)) << file;
    EXPECT_TRUE(read.notes.empty()) << read.notes.front();
  }
}

TEST(HfDirectory, NotesWhatItLeavesOut) {
  TempFolder folder;
  write_weights(folder.path());
  put_file(folder.path() / "model.safetensors.index.json", "{}");
  put_file(folder.path() / "consolidated.safetensors", "x");
  put_file(folder.path() / "tokenizer.json", "");
  fs::resize_file(folder.path() / "tokenizer.json", kMaxSidecarBytes + 1);  // sparse
  const HfDirectory read = open_hf_directory(folder.path());
  EXPECT_TRUE(read.sidecars.empty());
  std::string notes;
  for (const std::string& note : read.notes) notes += note + "\n";
  for (const char* part :
       {"tokenizer.json", "consolidated.safetensors", "model.safetensors.index.json", "config.json"}) {
    EXPECT_NE(notes.find(part), std::string::npos) << notes;
  }
}

TEST(HfDirectory, SaysWhatIsThereInstead) {
  const struct {
    std::vector<std::string> files;
    std::initializer_list<std::string_view> parts;
    ErrorKind kind;
  } cases[] = {
      {{}, {"no weights"}, ErrorKind::bad_input},
      {{"config.json"}, {"no weights"}, ErrorKind::bad_input},
      {{"pytorch_model.bin"}, {"pytorch_model.bin", "convert them to safetensors"}, ErrorKind::unsupported},
      {{"pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"},
       {"pytorch_model-00001-of-00002.bin", "convert"},
       ErrorKind::unsupported},
      {{"consolidated.00.pth"}, {"consolidated.00.pth", "convert"}, ErrorKind::unsupported},
      {{"model.pt"}, {"model.pt", "convert"}, ErrorKind::unsupported},
      {{"x.gguf"}, {"x.gguf", "path"}, ErrorKind::unsupported},
      {{"tf_model.h5"}, {"tf_model.h5", "convert"}, ErrorKind::unsupported},
      {{"consolidated.safetensors", "pytorch_model.bin"}, {"consolidated.safetensors", "path"}, ErrorKind::bad_input},
      {{"model-00001-of-00002.safetensors"},
       {"model.safetensors.index.json is missing", "model-00001-of-00002"},
       ErrorKind::bad_input},
  };
  for (const auto& one : cases) {
    TempFolder folder;
    for (const std::string& name : one.files) put_file(folder.path() / name, "x");
    expect_cheap_refusal([&] { open_hf_directory(folder.path()); }, one.parts, one.kind);
  }
  TempFolder folder;
  expect_cheap_refusal([&] { open_hf_directory(folder.path() / "nowhere"); }, {"nowhere", "no such directory"});
  put_file(folder.path() / "file", "x");
  expect_cheap_refusal([&] { open_hf_directory(folder.path() / "file"); }, {"no such directory"});
  EXPECT_FALSE(looks_like_hf_directory(folder.path()));
  EXPECT_FALSE(looks_like_hf_directory(folder.path() / "file"));
}

TEST(HfDirectory, LfsPointersAndLinksToNowhere) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
  for (const char* name : {"tokenizer.json", "config.json", "tokenizer.model", "model.safetensors"}) {
    TempFolder folder;
    write_weights(folder.path());
    put_file(folder.path() / name, pointer);
    expect_cheap_refusal([&] { open_hf_directory(folder.path()); }, {name, "Git LFS pointer"});
  }
  TempFolder folder;
  fs::create_symlink("../../blobs/0", folder.path() / "model.safetensors");
  expect_cheap_refusal([&] { open_hf_directory(folder.path()); }, {"model.safetensors", "no such file"});
}

TEST(HfDirectory, SingleFileTakesItsNeighbours) {
  TempFolder folder;
  write_weights(folder.path());
  put_file(folder.path() / "config.json", "{}");
  put_file(folder.path() / "tokenizer.json", "t");
  const HfDirectory read = open_safetensors_with_neighbours(folder.path() / "model.safetensors");
  EXPECT_EQ(read.config, "{}");
  EXPECT_EQ(read.sidecars.size(), 1U);
  EXPECT_EQ(read.files.size(), 3U);
  EXPECT_EQ(read.tensors->tensors().size(), 2U);
  expect_cheap_refusal([&] { open_safetensors_with_neighbours(folder.path() / "none.safetensors"); }, {"no such file"});
}

}  // namespace
}  // namespace halftone
