#include <zstd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/byte_source.h"
#include "fuzz_file.h"
#include "support/gzip.h"

namespace {

using namespace inlay;

// What a file holds, read so many bytes at a time; nothing where it is refused. A few bytes may stand for very many.
std::optional<std::string> read(const std::filesystem::path& path, std::size_t at_once, std::size_t most) {
  std::string text;
  std::vector<char> piece(at_once);
  try {
    const auto source = data::open_source(path);
    while (text.size() < most) {
      const std::size_t got = source->read(piece);
      if (got == 0) return text;
      INLAY_ASSERT(got <= at_once, "{} bytes in a place for {}", got, at_once);
      text.append(piece.data(), got);
    }
  } catch (const UserError&) {
    return std::nullopt;
  }
  return text.substr(0, most);
}

std::string zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 1));
  return out;
}

}  // namespace

// Compressed files, of somebody else's and of our own: whatever the size of the pieces, the same bytes come out, and
// what was compressed, also in two parts, comes out as it was.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  const char* const name = (bytes[0] & 1) != 0 ? "text.gz" : "text.zst";
  const std::string_view given(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  constexpr std::size_t most = std::size_t{1} << 20;
  {
    const fuzz::File file(given, name);
    const auto whole = read(file.path(), most, most), pieces = read(file.path(), 1 + bytes[0], most);
    if (whole && pieces) INLAY_ASSERT(*whole == *pieces, "pieces of {}", 1 + bytes[0]);
  }
  const std::size_t half = given.size() / 2;
  const auto compressed = [&](std::string_view text) { return (bytes[0] & 1) != 0 ? testing::gzip(text) : zstd(text); };
  const fuzz::File file(compressed(given.substr(0, half)) + compressed(given.substr(half)), name);
  INLAY_ASSERT(read(file.path(), 1 + bytes[0], most) == given.substr(0, most), "it was compressed and is another");
  return 0;
}
