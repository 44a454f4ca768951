#include <cstddef>
#include <cstdint>

#include "core/error.h"
#include "data/parquet/row_reader.h"
#include "data/parquet/token_reader.h"

// A Parquet file that somebody else wrote. It may say that it has more rows than anybody could read.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace inlay::data::parquet;
  try {
    const Bytes file(reinterpret_cast<const std::byte*>(bytes), size);
    Metadata metadata = read_metadata(file, "fuzz");
    if (TokenReader::fits(metadata)) {
      TokenReader reader(file, read_metadata(file, "fuzz"), "fuzz");
      for (int i = 0; i < 200 && reader.rows_read() < reader.rows(); ++i) reader.next();
    }
    RowReader reader(file, std::move(metadata), "fuzz");
    for (int i = 0; i < 200 && reader.rows_read() < reader.rows(); ++i) reader.next();
  } catch (const inlay::UserError&) {
  }
  return 0;
}
