#include "numeric/packing.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "numeric/testing_golden.h"

namespace halftone {
namespace {

using Json = nlohmann::json;
using Codes = std::vector<std::uint8_t>;

Json cases() {
  std::ifstream in(shared_folder() / "golden" / "int_packing.json");
  return Json::parse(in).at("cases");
}

std::vector<std::uint32_t> words_of(const Json& row) {
  std::vector<std::uint32_t> words;
  for (const Json& word : row)
    words.push_back(static_cast<std::uint32_t>(std::stoul(word.get<std::string>(), nullptr, 16)));
  return words;
}

std::vector<std::byte> bytes_of(const std::vector<std::uint32_t>& words) {
  std::vector<std::byte> bytes(words.size() * 4);
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> bytes_of(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

Codes codes_of(const Json& row, int offset = 0) {
  Codes codes;
  for (const Json& code : row) codes.push_back(static_cast<std::uint8_t>(code.get<int>() + offset));
  return codes;
}

void expect_dense(const Codes& codes, int bits, const std::vector<std::byte>& packed, const std::string& where) {
  std::vector<std::byte> got((codes.size() * static_cast<std::size_t>(bits) + 7) / 8);
  pack_bits(codes, bits, got);
  ASSERT_LE(got.size(), packed.size());
  EXPECT_TRUE(std::equal(got.begin(), got.end(), packed.begin())) << where;
  Codes back(codes.size());
  unpack_bits(std::span(packed).first(got.size()), bits, back);
  EXPECT_EQ(back, codes) << where;
}

TEST(GoldenPacking, CompressedTensors) {
  NEEDS_SHARED();
  const Json all = cases();
  for (int bits = 2; bits <= 8; ++bits) {
    const Json& c = all.at("compressed_tensors_int" + std::to_string(bits));
    for (std::size_t row = 0; row < c.at("signed").size(); ++row) {
      const Codes codes = codes_of(c.at("signed")[row], 1 << (bits - 1));
      expect_dense(codes, bits, bytes_of(words_of(c.at("weight_packed_dense_0.18+")[row])),
                   "dense int" + std::to_string(bits));
      const std::vector<std::uint32_t> padded = words_of(c.at("weight_packed_padded_0.17-")[row]);
      std::vector<std::uint32_t> words(padded.size(), 0xFFFFFFFFU);
      pack_padded32(codes, bits, words);
      EXPECT_EQ(words, padded) << bits;
      Codes back(codes.size());
      unpack_padded32(padded, bits, back);
      EXPECT_EQ(back, codes) << bits;
    }
  }
}

TEST(GoldenPacking, Gptq) {
  NEEDS_SHARED();
  const Json all = cases();
  for (const int bits : {2, 3, 4, 8}) {
    const Json& c = all.at("gptq_int" + std::to_string(bits));
    std::vector<std::uint32_t> column;
    for (const Json& row : c.at("qweight_first_col")) column.push_back(words_of(row)[0]);
    expect_dense(codes_of(c.at("codes_in_by_out_first_col")), bits, bytes_of(column), "qweight");
    for (std::size_t row = 0; row < c.at("zeros").size(); ++row) {
      expect_dense(codes_of(c.at("zeros")[row], -1), bits, bytes_of(words_of(c.at("qzeros_v1")[row])), "qzeros v1");
      expect_dense(codes_of(c.at("zeros")[row]), bits, bytes_of(words_of(c.at("qzeros_v2")[row])), "qzeros v2");
    }
  }
}

TEST(GoldenPacking, Awq) {
  NEEDS_SHARED();
  const Json c = cases().at("awq_gemm_int4");
  for (std::size_t row = 0; row < c.at("codes_in_by_out").size(); ++row) {
    const Codes codes = codes_of(c.at("codes_in_by_out")[row]);
    Codes ordered(codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i)
      ordered[i] = codes[i / 8 * 8 + static_cast<std::size_t>(awq_order[i % 8])];
    expect_dense(ordered, 4, bytes_of(words_of(c.at("qweight")[row])), "awq");
  }
}

TEST(GoldenPacking, NibblesAndSixBits) {
  NEEDS_SHARED();
  const Json all = cases();
  const Json& n = all.at("nibbles");
  const Codes codes = codes_of(n.at("codes"));
  for (const auto& [key, value] : n.items()) {
    Codes ordered = codes;
    if (key.starts_with("even_high")) {
      for (std::size_t i = 0; i < codes.size(); ++i) ordered[i] = codes[i ^ 1U];
    } else if (key.starts_with("halves")) {
      for (std::size_t i = 0; i < codes.size(); ++i) ordered[i] = codes[i / 2 + (i % 2) * (codes.size() / 2)];
    } else if (!key.starts_with("even_low")) {
      continue;
    }
    expect_dense(ordered, 4, bytes_of(value.get<std::string>()), key);
  }
  const Json& six = all.at("six_bit");
  expect_dense(codes_of(six.at("codes")), 6, bytes_of(six.at("four_codes_in_three_bytes_lsb_first").get<std::string>()),
               "six");
}

// Every width, every length around the bounds of bytes and words; bits above the width are not stored.
TEST(Packing, RoundTripsAtEveryLength) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (std::size_t n = 0; n < 70; ++n) {
      Codes codes(n), masked(n);
      for (std::size_t i = 0; i < n; ++i) {
        codes[i] = static_cast<std::uint8_t>(i * 37 + n * 11);
        masked[i] = static_cast<std::uint8_t>(codes[i] & ((1U << bits) - 1));
      }
      std::vector<std::byte> packed((n * static_cast<std::size_t>(bits) + 7) / 8, std::byte{0xFF});
      pack_bits(codes, bits, packed);
      Codes back(n);
      unpack_bits(packed, bits, back);
      ASSERT_EQ(back, masked);
      for (std::size_t i = 0; i < n; ++i) {  // bit by bit, from the definition
        for (int b = 0; b < bits; ++b) {
          const std::size_t at = i * static_cast<std::size_t>(bits) + static_cast<std::size_t>(b);
          ASSERT_EQ(std::to_integer<unsigned>(packed[at / 8]) >> (at % 8) & 1U, (masked[i] >> b & 1U))
              << bits << ' ' << n;
        }
      }
      const std::size_t each = 32 / static_cast<std::size_t>(bits);
      std::vector<std::uint32_t> words((n + each - 1) / each);
      pack_padded32(codes, bits, words);
      unpack_padded32(words, bits, back);
      ASSERT_EQ(back, masked);
    }
  }
}

}  // namespace
}  // namespace halftone
