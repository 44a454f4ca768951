#include <cstddef>
#include <cstdint>

#include "core/error.h"
#include "data/parquet/row_reader.h"

// A Parquet file that somebody else wrote. It may say that it has more rows than anybody could read.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace inlay::data::parquet;
  try {
    RowReader reader({reinterpret_cast<const std::byte*>(bytes), size}, "fuzz");
    for (int i = 0; i < 200 && reader.rows_read() < reader.rows(); ++i) reader.next();
  } catch (const inlay::UserError&) {
  }
  return 0;
}
