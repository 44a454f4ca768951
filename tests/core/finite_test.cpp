#include "core/finite.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace inlay::testing {
namespace {

struct Numbers {
  DType dtype;
  std::uint32_t largest, infinity, nan, negative;  // bits; the last: minus infinity
};

constexpr Numbers formats[] = {{DType::f32, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0xFF800000},
                               {DType::bf16, 0x7F7F, 0x7F80, 0x7F81, 0xFF80},
                               {DType::f16, 0x7BFF, 0x7C00, 0x7C01, 0xFC00}};

std::vector<std::byte> of(const Numbers& format, std::size_t count, std::uint32_t bits) {
  const std::size_t size = size_of(format.dtype);
  std::vector<std::byte> bytes(count * size);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(bytes.data() + i * size, &bits, size);
  return bytes;
}

// Wherever it stands, in whole words and in what is left over; its neighbours are as large as numbers get, of both
// signs.
TEST(CoreFinite, OneNumberThatIsNotIsFoundAnywhere) {
  for (const Numbers& format : formats) {
    const std::size_t size = size_of(format.dtype);
    const std::uint32_t sign = std::uint32_t{1} << (8 * size - 1);
    for (std::size_t count = 1; count <= 11; ++count) {
      for (const std::uint32_t other : {0u, format.largest, format.largest | sign}) {
        EXPECT_TRUE(all_finite(of(format, count, other), format.dtype)) << name_of(format.dtype) << " " << count;
        for (const std::uint32_t bad : {format.infinity, format.nan, format.negative}) {
          for (std::size_t place = 0; place < count; ++place) {
            std::vector<std::byte> bytes = of(format, count, other);
            std::memcpy(bytes.data() + place * size, &bad, size);
            EXPECT_FALSE(all_finite(bytes, format.dtype)) << name_of(format.dtype) << " " << place << " of " << count;
          }
        }
      }
    }
  }
}

TEST(CoreFinite, NothingAndWholeNumbersAreFinite) {
  EXPECT_TRUE(all_finite({}, DType::f32));
  EXPECT_TRUE(all_finite(of(formats[0], 4, 0xFFFFFFFF), DType::u8));
}

}  // namespace
}  // namespace inlay::testing
