#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "core/utf8.h"
#include "data/tokenizer/tokenizer.h"

// A tokenizer.json, a zero byte, and a text. What the file is made of comes from tests/fuzz/tokenizer_file.dict.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace inlay;
  const std::string_view input(reinterpret_cast<const char*>(bytes), size);
  const std::size_t cut = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(std::min(cut + 1, input.size()));
  try {
    const data::Tokenizer tokenizer(io::Json::parse(input.substr(0, cut), "fuzz.json"));
    const std::vector<std::int32_t> ids = tokenizer.encode(text);
    INLAY_ASSERT(tokenizer.encode(text) == ids, "two encodings of one text");
    for (const std::int32_t id : ids) INLAY_ASSERT(id >= 0, "the token {}", id);
    for (const bool skip : {false, true}) {
      INLAY_ASSERT(is_utf8(tokenizer.decode(ids, skip)), "decoded text that is not UTF-8");
    }
  } catch (const UserError&) {
  }
  return 0;
}
