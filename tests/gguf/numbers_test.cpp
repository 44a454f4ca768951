#include "gguf/numbers.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include <nlohmann/json.hpp>

#include "io/mxfp4.h"
#include "support/paths.h"

namespace inlay::gguf {
namespace {

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

TEST(GgufNumbers, AreTheBitsOfItsOwnQuantiser) {
  const auto golden = nlohmann::json::parse(std::ifstream(testing::source_folder() / "tests/golden/gguf_numbers.json"));
  const std::vector<std::byte> raw = from_hex(golden.at("values"));
  std::vector<float> values(raw.size() / sizeof(float));
  std::memcpy(values.data(), raw.data(), raw.size());
  ASSERT_GE(values.size(), 10u * block);
  for (const NumberType type : {NumberType::f16, NumberType::bf16, NumberType::q8_0, NumberType::mxfp4}) {
    std::vector<std::byte> bytes(bytes_of(type, static_cast<std::int64_t>(values.size())), std::byte{0xa5});
    encode(type, bytes, values);
    EXPECT_EQ(bytes, from_hex(golden.at(std::string(name_of(type))))) << name_of(type);
  }
}

// A checkpoint's MXFP4 says the same numbers in ggml's order.
TEST(GgufNumbers, Mxfp4OfCheckpointsIsRepackedExactly) {
  std::vector<std::uint8_t> blocks(2 * block / 2), scales = {120, 131};
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::uint8_t>(37 * i + 11);
  std::vector<bf16> expected(2 * block);
  io::mxfp4_decode(expected, blocks, scales);
  std::vector<std::byte> bytes(bytes_of(NumberType::mxfp4, 2 * block));
  repack_mxfp4(bytes, blocks, scales);
  for (std::size_t b = 0; b < 2; ++b) {
    const auto* from = reinterpret_cast<const std::uint8_t*>(bytes.data()) + b * 17;
    EXPECT_EQ(from[0], scales[b]);
    for (std::size_t i = 0; i < block; ++i) {
      const std::uint8_t byte = from[1 + i % 16], code = i < 16 ? byte & 15 : byte >> 4;
      EXPECT_EQ(io::mxfp4_values[code] * io::mxfp4_scale(from[0]), static_cast<float>(expected[b * block + i])) << i;
    }
  }
}

}  // namespace
}  // namespace inlay::gguf
