#include "pipeline/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/testing.h"
#include "pipeline/testing_checkpoint.h"

namespace halftone {
namespace {

using testing::HasSubstr;

ValueReader reader_of(const Checkpoint& checkpoint) { return {checkpoint.tensors, checkpoint.weights}; }

Checkpoint one_matrix(const std::filesystem::path& folder, const std::vector<float>& values, std::int64_t cols = 4) {
  CheckpointBuilder builder;
  builder.add_bf16("a.weight", {static_cast<std::int64_t>(values.size()) / cols, cols}, values);
  builder.write(folder);
  return plain_checkpoint(folder);
}

TEST(Verify, ErrorsAreSumsOverRows) {
  ErrorSums sums;
  const std::vector<float> x = {3, 4}, y = {3, 3};
  sums.add(row_error(x, y));
  EXPECT_DOUBLE_EQ(sums.signal, 25);
  EXPECT_DOUBLE_EQ(sums.noise, 1);
  EXPECT_DOUBLE_EQ(sums.max_error, 1);
  EXPECT_NEAR(sums.sqnr_db(), 13.979, 1e-3);
  EXPECT_EQ(ErrorSums{}.sqnr_db(), std::numeric_limits<double>::infinity());
}

TEST(Verify, FindsWhatChangedWorstFirst) {
  const TempFolder folder;
  CheckpointBuilder source, output;
  source.add_bf16("a.weight", {2, 2}, {1, 2, 3, 4});
  source.add_bf16("b.weight", {2, 2}, {1, 2, 3, 4});
  source.add_bf16("c.weight", {2, 2}, {1, 2, 3, 4});
  output.add_bf16("a.weight", {2, 2}, {1, 2, 3, 4});
  output.add_bf16("b.weight", {2, 2}, {1, 2, 3, 4.5});
  output.add_bf16("c.weight", {2, 2}, {1, 2, 3, 6});
  source.write(folder.path() / "s");
  output.write(folder.path() / "o");
  ThreadPool pool(2);
  const VerifyResult result =
      verify_values(reader_of(plain_checkpoint(folder.path() / "s")), reader_of(plain_checkpoint(folder.path() / "o")),
                    {"a.weight", "b.weight", "c.weight"}, pool, no_progress(), {});
  ASSERT_EQ(result.errors.size(), 2U);
  EXPECT_EQ(result.errors[0].name, "c.weight");
  EXPECT_DOUBLE_EQ(result.errors[0].max_error, 2.0);
  EXPECT_EQ(result.tensors, 3);
  EXPECT_EQ(result.worst(1).size(), 1U);
}

TEST(Verify, RefusesHolesAndValuesThatAreNotFinite) {
  const TempFolder folder;
  ThreadPool pool(2);
  const Checkpoint source = one_matrix(folder.path() / "s", {1, 2, 3, 4, 5, 6, 7, 8});
  const auto message = [&](const Checkpoint& output, const VerifyOptions& options = {}) -> std::string {
    try {
      verify_values(reader_of(source), reader_of(output), {"a.weight"}, pool, no_progress(), options);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message(one_matrix(folder.path() / "n", {1, 2, 3, 4, 5, NAN, 7, 8})), HasSubstr("value 5"));
  EXPECT_THAT(message(one_matrix(folder.path() / "t", {1, 2, 3, 4, 5, 6, 7, 8}, 2)), HasSubstr("shape"));
  CheckpointBuilder other;
  other.add_bf16("b.weight", {1, 1}, {1});
  other.write(folder.path() / "m");
  const Checkpoint missing = plain_checkpoint(folder.path() / "m");
  EXPECT_THAT(message(missing), HasSubstr("missing"));
  VerifyOptions options;
  options.missing = {"a.weight"};
  EXPECT_EQ(message(missing, options), "no error");
}

TEST(Verify, DoesNotDependOnChunksOrThreads) {
  const TempFolder folder;
  const Checkpoint a = one_matrix(folder.path() / "a", bf16_values(4000 * 64, 1), 64);
  const Checkpoint b = one_matrix(folder.path() / "b", bf16_values(4000 * 64, 2), 64);
  double expected = 0;
  for (const int threads : {1, 3}) {
    for (const std::uint64_t chunk : {std::uint64_t{1}, std::uint64_t{64} << 20}) {
      ThreadPool pool(threads);
      VerifyOptions options;
      options.chunk_bytes = chunk;
      const VerifyResult result = verify_values(reader_of(a), reader_of(b), {"a.weight"}, pool, no_progress(), options);
      ASSERT_EQ(result.errors.size(), 1U);
      if (expected == 0) expected = result.errors[0].sqnr_db;
      EXPECT_EQ(result.errors[0].sqnr_db, expected);
    }
  }
}

}  // namespace
}  // namespace halftone
