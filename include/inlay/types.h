#pragma once

#include <cstdint>
#include <stdexcept>

#define INLAY_API __attribute__((visibility("default")))

namespace inlay {

enum class Device : std::uint8_t { cpu, cuda };

// e4m3 and e5m2 are codes of fp8: operands of products, with scales beside them.
enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean, e4m3, e5m2 };

// What the user can mend: a wrong key, a broken file, a device that is too small. The program ends with exit code 2.
class INLAY_API UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace inlay
