#include "core/dtype.h"

#include <cmath>

namespace inlay {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return "fp64";
    case DType::f32: return "fp32";
    case DType::f16: return "fp16";
    case DType::bf16: return "bf16";
    case DType::i64: return "int64";
    case DType::i32: return "int32";
    case DType::i16: return "int16";
    case DType::i8: return "int8";
    case DType::u8: return "uint8";
    case DType::boolean: return "bool";
    case DType::e4m3: return "e4m3";
    case DType::e5m2: return "e5m2";
  }
  return "?";
}

std::optional<DType> parse_floating_dtype(std::string_view text) {
  if (text == "fp32" || text == "f32" || text == "float32" || text == "float") return DType::f32;
  if (text == "bf16" || text == "bfloat16") return DType::bf16;
  if (text == "fp16" || text == "f16" || text == "float16" || text == "half") return DType::f16;
  return std::nullopt;
}

f16::f16(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) {
    bits = sign | 0x7e00u;
  } else if (magnitude >= 65520.0f) {
    bits = sign | 0x7c00u;  // rounds past the largest finite half
  } else if (magnitude < 0x1p-14f) {
    bits = sign | static_cast<std::uint16_t>(std::nearbyint(magnitude * 0x1p24f));  // subnormal: units of 2^-24
  } else {
    const std::uint32_t absolute = word & 0x7fffffffu;
    const std::uint32_t rounded = absolute + 0xfffu + ((absolute >> 13) & 1u);
    bits = sign | static_cast<std::uint16_t>((rounded - (112u << 23)) >> 13);
  }
}

f16::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

}  // namespace inlay
