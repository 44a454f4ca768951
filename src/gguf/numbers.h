#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

// How ggml stores the numbers of a tensor: plainly, or in blocks of 32 with a scale each.
namespace inlay::gguf {

// The numbers are the format's own.
enum class NumberType : std::uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30, mxfp4 = 39 };

inline constexpr std::int64_t block = 32;  // numbers, of the types that have blocks

std::string_view name_of(NumberType type);
bool has_blocks(NumberType type);
// Of so many numbers, whole blocks where the type has them.
std::uint64_t bytes_of(NumberType type, std::int64_t count);

// The bits that ggml's own quantiser gives, block for block. to has bytes_of() the values.
void encode(NumberType type, std::span<std::byte> to, std::span<const float> values);

// Blocks of a Hugging Face checkpoint's MXFP4 (io/mxfp4.h) in ggml's order; nothing is lost.
void repack_mxfp4(std::span<std::byte> to, std::span<const std::uint8_t> blocks, std::span<const std::uint8_t> scales);

}  // namespace inlay::gguf
