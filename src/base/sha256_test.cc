#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace halftone {
namespace {

std::string hash(const std::string& text) {
  return sha256_hex(std::as_bytes(std::span(text.data(), text.size())));
}

// The examples of FIPS 180-4 and of NIST's test vectors.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Every length around the padding's bounds, fed in pieces of every size, equals the one-piece digest.
TEST(Sha256, PiecesEqualTheWhole) {
  for (std::size_t length = 50; length < 140; ++length) {
    std::string text(length, 'x');
    for (std::size_t i = 0; i < length; ++i) text[i] = static_cast<char>('a' + i % 26);
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    Sha256 whole;
    whole.update(bytes);
    const auto want = whole.finish();
    for (std::size_t piece = 1; piece < 70; piece += 7) {
      Sha256 parts;
      for (std::size_t at = 0; at < length; at += piece) parts.update(bytes.subspan(at, std::min(piece, length - at)));
      ASSERT_EQ(parts.finish(), want) << length << ' ' << piece;
    }
  }
}

}  // namespace
}  // namespace halftone
