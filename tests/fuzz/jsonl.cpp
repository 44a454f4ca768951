#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "data/token_rows.h"

// Lines of tokenized documents. The quick reader may give up on a line, but where it does not, the full one must have
// read the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace inlay::data;
  const std::string_view line(reinterpret_cast<const char*>(bytes), size);
  TokenArrays quick, full;
  const bool quickly = read_token_line(line, quick);
  try {
    const inlay::io::Value value = inlay::io::read_value(line, "fuzz:1");
    full = token_arrays(Row(value, "fuzz:1"));
  } catch (const inlay::UserError&) {
    INLAY_ASSERT(!quickly, "read quickly, and refused fully");
    return 0;
  }
  const auto equal = [](const TokenArray& a, const TokenArray& b) {
    return a.present == b.present && (!a.present || a.values == b.values);
  };
  INLAY_ASSERT(!quickly || (equal(quick.input_ids, full.input_ids) && equal(quick.labels, full.labels) &&
                            equal(quick.attention_mask, full.attention_mask)),
               "two readings of one line");
  return 0;
}
