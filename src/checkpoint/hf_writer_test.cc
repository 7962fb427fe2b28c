#include "checkpoint/hf_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/random.h"
#include "base/testing.h"
#include "checkpoint/hf_directory.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/testing_files.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

std::vector<TensorInfo> some_tensors() {
  std::vector<TensorInfo> infos;
  const std::pair<DType, Shape> kinds[] = {{DType::bf16, {7, 16}}, {DType::u8, {3}},     {DType::f32, {}},
                                           {DType::i64, {2, 2}},   {DType::f16, {0, 8}}, {DType::f4, {5, 4}},
                                           {DType::bf16, {64, 9}}, {DType::i32, {33}}};
  for (const auto& [dtype, shape] : kinds) {
    TensorInfo info;
    info.name = fmt::format("z{}.w\"eight", 9 - infos.size());
    info.dtype = dtype;
    info.shape = shape;
    info.bytes = static_cast<std::uint64_t>(info.elements() * dtype_bits(dtype) / 8);
    infos.push_back(info);
  }
  return infos;
}

std::vector<std::byte> content(const TensorInfo& info) {
  CounterRng rng(std::hash<std::string>{}(info.name));
  std::vector<std::byte> bytes(info.bytes);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.next_bits());
  return bytes;
}

std::map<std::string, std::string> folder_content(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_text_file(entry.path());
  }
  return files;
}

void write_all(HfWriter& writer) {
  for (const TensorInfo& info : writer.layout().tensors) writer.write(info.name, 0, content(info));
}

TEST(HfWriter, GroupsStayInOneShardWidestFirst) {
  const auto tensor = [](const char* name, DType dtype, std::int64_t count) {
    TensorInfo info;
    info.name = name;
    info.dtype = dtype;
    info.shape = {count};
    info.bytes = static_cast<std::uint64_t>(count * dtype_bits(dtype) / 8);
    return info;
  };
  HfWriterOptions options;
  options.max_shard_bytes = 100;
  const std::vector<TensorInfo> tensors = {tensor("a", DType::u8, 61), tensor("a.scale", DType::f32, 2),
                                           tensor("b", DType::u8, 29), tensor("b.scale", DType::f32, 2)};
  const std::vector<std::size_t> groups = {0, 0, 1, 1};
  const HfLayout layout = hf_layout(tensors, options, groups);
  ASSERT_EQ(layout.shards.size(), 2U);  // without the groups b would go with a
  EXPECT_EQ(layout.places[2].shard, 1U);
  EXPECT_EQ(layout.places[3].shard, 1U);
  EXPECT_LT(layout.places[1].offset, layout.places[0].offset);
  EXPECT_EQ(hf_layout(tensors, options).places[2].shard, 0U);
}

TEST(HfWriter, WhatIsWrittenIsReadBackForAnyShardSize) {
  for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{200}, std::uint64_t{230},
                                    std::uint64_t{1300}, std::uint64_t{5'000'000'000}}) {
    SCOPED_TRACE(limit);
    TempFolder folder;
    HfWriterOptions options;
    options.max_shard_bytes = limit;
    HfWriter writer(folder.path() / "out", some_tensors(), options);
    EXPECT_FALSE(writer.resumed());
    write_all(writer);
    writer.sync();
    writer.finish();
    const HfLayout& layout = writer.layout();
    const auto files = folder_content(folder.path() / "out");
    EXPECT_EQ(files.size(), layout.shards.size() + (layout.index_json.empty() ? 0 : 1));
    std::uint64_t bytes = 0;
    for (const auto& [name, text] : files) bytes += text.size();
    EXPECT_EQ(bytes, layout.disk_bytes);

    const HfDirectory read = open_hf_directory(folder.path() / "out");
    ASSERT_EQ(read.tensors->tensors().size(), layout.tensors.size());
    std::vector<std::byte> scratch;
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
      const TensorInfo& info = read.tensors->at(layout.tensors[i].name);
      const auto element_bytes = static_cast<std::uint64_t>(std::max(8, dtype_bits(info.dtype)) / 8);
      EXPECT_EQ(layout.places[i].offset % element_bytes, 0U) << info.name;  // aligned
      EXPECT_EQ(info.dtype, layout.tensors[i].dtype);
      EXPECT_EQ(info.shape, layout.tensors[i].shape);
      EXPECT_EQ(info.file, layout.tensors[i].file);
      const auto want = content(info);
      const auto got = read.tensors->rows(info, 0, info.rows(), scratch);
      ASSERT_EQ(got.size(), want.size());
      if (want.empty()) continue;
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size()), 0) << info.name;
      EXPECT_EQ(files.at(info.file).compare(layout.places[i].offset, want.size(),
                                            reinterpret_cast<const char*>(want.data()), want.size()),
                0);
    }
    for (const HfShard& shard : layout.shards) {
      std::uint64_t data = 0, count = 0;
      for (const TensorInfo& info : layout.tensors) {
        if (info.file == shard.name && info.bytes > 0) data += info.bytes, ++count;
      }
      EXPECT_TRUE(data <= limit || count == 1) << shard.name;
      EXPECT_EQ(shard.header.size() % 8, 0U);
    }
    if (layout.shards.size() == 1) {
      EXPECT_EQ(layout.shards[0].name, "model.safetensors");
    } else {
      EXPECT_EQ(layout.shards[0].name, fmt::format("model-00001-of-{:05}.safetensors", layout.shards.size()));
      const auto index = nlohmann::ordered_json::parse(files.at("model.safetensors.index.json"));
      EXPECT_EQ(index["metadata"]["total_size"], layout.total_size);
      std::string before;
      for (const auto& [tensor, file] : index["weight_map"].items()) {
        EXPECT_LT(before, tensor);
        before = tensor;
      }
      EXPECT_EQ(files.at("model.safetensors.index.json").substr(0, 17), "{\n  \"metadata\": {");
    }
  }
}

// Stopped after any write and taken up again, with the last pieces repeated: the bytes are those of a straight run.
TEST(HfWriter, ResumedEqualsStraight) {
  HfWriterOptions options;
  options.max_shard_bytes = 300;
  TempFolder straight;
  {
    HfWriter writer(straight.path(), some_tensors(), options);
    write_all(writer);
    writer.finish();
  }
  const auto want = folder_content(straight.path());
  struct Piece {
    std::size_t tensor;
    std::uint64_t offset, size;
  };
  std::vector<Piece> pieces;
  const auto infos = some_tensors();
  for (std::size_t t = infos.size(); t-- > 0;) {
    for (std::uint64_t at = 0; at < infos[t].bytes; at += 101)
      pieces.push_back({t, at, std::min<std::uint64_t>(101, infos[t].bytes - at)});
  }
  for (std::size_t stop = 0; stop <= pieces.size(); ++stop) {
    TempFolder folder;
    const auto run = [&](std::size_t from, std::size_t to, bool resumed, bool finish) {
      HfWriter writer(folder.path(), infos, options);
      EXPECT_EQ(writer.resumed(), resumed);
      for (std::size_t i = from; i < to; ++i) {
        const auto bytes = content(infos[pieces[i].tensor]);
        writer.write(pieces[i].tensor, pieces[i].offset, std::span(bytes).subspan(pieces[i].offset, pieces[i].size));
      }
      if (finish) writer.finish();
    };
    run(0, stop, false, false);
    run(stop - std::min<std::size_t>(stop, 2), pieces.size(), true, true);
    EXPECT_EQ(folder_content(folder.path()), want) << stop;
  }
}

// Stopped while the files were being made: a missing file, an empty one, a part of the header, zeros.
TEST(HfWriter, HalfMadeFilesAreMadeAgain) {
  HfWriterOptions options;
  options.max_shard_bytes = 300;
  const HfLayout layout = hf_layout(some_tensors(), options);
  ASSERT_GE(layout.shards.size(), 3U);
  for (std::size_t shard = 0; shard < layout.shards.size(); ++shard) {
    const HfShard& file = layout.shards[shard];
    std::string zeros(file.bytes, '\0');
    for (const std::string& half :
         {std::string(), file.header.substr(0, 5), file.header.substr(0, file.header.size() - 1), zeros,
          file.header.substr(0, 12) + zeros.substr(12)}) {
      TempFolder folder;
      put_file(folder.path() / file.name, half);
      HfWriter writer(folder.path(), layout);
      EXPECT_FALSE(writer.resumed());
      EXPECT_EQ(read_text_file(folder.path() / file.name),
                file.header + std::string(file.bytes - file.header.size(), '\0'));
    }
  }
}

TEST(HfWriter, FilesOfAnotherOutputAreRefusedAndKept) {
  const HfLayout layout = hf_layout(some_tensors());
  const HfShard& file = layout.shards[0];
  std::string whole = file.header + std::string(file.bytes - file.header.size(), 'd');
  std::string other = whole;
  other[20] ^= 1;
  const std::pair<std::string, std::string> foreign[] = {{"model.safetensors", other},
                                                         {"model.safetensors", whole + "x"},
                                                         {"model.safetensors", whole.substr(0, whole.size() - 1)},
                                                         {"model.safetensors", "something else"},
                                                         {"model-00001-of-00002.safetensors", "x"},
                                                         {"model.safetensors.index.json", "{}"}};
  for (const auto& [name, text] : foreign) {
    TempFolder folder;
    put_file(folder.path() / name, text);
    ErrorKind kind{};
    const std::string message = error_of([&] { HfWriter writer(folder.path(), layout); }, &kind);
    EXPECT_EQ(kind, ErrorKind::bad_input) << message;
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_EQ(folder_content(folder.path()), (std::map<std::string, std::string>{{name, text}}));
  }
}

// C30: more than any disk holds is refused at the start with both numbers, and nothing is left behind.
TEST(HfWriter, FullDiskIsFoundAtTheStart) {
  for (const std::uint64_t limit : {std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    TempFolder folder;
    TensorInfo info;
    info.name = "w";
    info.dtype = DType::u8;
    info.shape = {std::int64_t{1} << 28, std::int64_t{1} << 28};
    info.bytes = std::uint64_t{1} << 56;
    TensorInfo second = info;
    second.name = "v";
    HfWriterOptions options;
    options.max_shard_bytes = limit;
    const HfLayout layout = hf_layout({info, second}, options);
    ErrorKind kind{};
    const std::string message = error_of([&] { HfWriter writer(folder.path(), layout); }, &kind);
    EXPECT_EQ(kind, ErrorKind::resources);
    EXPECT_NE(message.find(std::to_string(layout.disk_bytes)), std::string::npos) << message;
    EXPECT_NE(message.find("free"), std::string::npos) << message;
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
}

TEST(HfWriter, DiskIsReserved) {
  TempFolder folder;
  TensorInfo info;
  info.name = "w";
  info.dtype = DType::u8;
  info.shape = {1 << 20};
  info.bytes = 1 << 20;
  HfWriter writer(folder.path(), std::vector{info});
  EXPECT_EQ(fs::file_size(folder.path() / "model.safetensors"), writer.layout().disk_bytes);
}

TEST(HfWriter, ThreadsWriteAtOnce) {
  TempFolder folder;
  HfWriterOptions options;
  options.max_shard_bytes = 1300;
  HfWriter writer(folder.path(), some_tensors(), options);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < writer.layout().tensors.size(); ++i) {
        const TensorInfo& info = writer.layout().tensors[i];
        const auto bytes = content(info);
        for (std::uint64_t at = t * 16; at < info.bytes; at += 64) {
          writer.write(i, at, std::span(bytes).subspan(at, std::min<std::uint64_t>(16, info.bytes - at)));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  writer.finish();
  TempFolder straight;
  HfWriter other(straight.path(), some_tensors(), options);
  write_all(other);
  other.finish();
  EXPECT_EQ(folder_content(folder.path()), folder_content(straight.path()));
}

TEST(HfWriter, PromisesAndNames) {
  TempFolder folder;
  HfWriter writer(folder.path(), some_tensors());
  const std::vector<std::byte> bytes(4);
  const TensorInfo& info = writer.layout().tensors[1];  // 3 bytes
  EXPECT_THROW(writer.write("nobody", 0, bytes), CheckFailed);
  EXPECT_THROW(writer.write(info.name, 0, bytes), CheckFailed);
  EXPECT_THROW(writer.write(info.name, 4, std::span(bytes).first(0)), CheckFailed);
  EXPECT_THROW(writer.write(info.name, ~std::uint64_t{0}, bytes), CheckFailed);
  writer.finish();
  EXPECT_THROW(writer.write(info.name, 0, std::span(bytes).first(1)), CheckFailed);

  auto twice = some_tensors();
  twice.push_back(twice.front());
  for (const std::uint64_t limit : {std::uint64_t{1}, std::uint64_t{5'000'000'000}}) {
    HfWriterOptions options;
    options.max_shard_bytes = limit;
    EXPECT_NE(error_of([&] { hf_layout(twice, options); }), "");
  }
  const HfLayout nothing = hf_layout({});
  EXPECT_EQ(nothing.shards.size(), 1U);
  EXPECT_EQ(nothing.total_size, 0U);
}

}  // namespace
}  // namespace halftone
