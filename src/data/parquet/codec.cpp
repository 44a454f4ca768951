#include "data/parquet/codec.h"

#include <lz4.h>
#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <limits>

namespace inlay::data::parquet {
namespace {

const char* chars(Bytes bytes) { return reinterpret_cast<const char*>(bytes.data()); }

bool snappy_into(Bytes from, std::span<std::byte> to) {
  std::size_t size = 0;
  return snappy::GetUncompressedLength(chars(from), from.size(), &size) && size == to.size() &&
         snappy::RawUncompress(chars(from), from.size(), reinterpret_cast<char*>(to.data()));
}

bool gzip_into(Bytes from, std::span<std::byte> to) {
  constexpr std::size_t most = std::numeric_limits<uInt>::max();
  if (from.size() > most || to.size() > most) return false;
  z_stream stream{};
  constexpr int gzip_or_zlib = 15 + 32;
  if (inflateInit2(&stream, gzip_or_zlib) != Z_OK) return false;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(from.data()));  // zlib does not write there
  stream.avail_in = static_cast<uInt>(from.size());
  stream.next_out = reinterpret_cast<Bytef*>(to.data());
  stream.avail_out = static_cast<uInt>(to.size());
  const int status = inflate(&stream, Z_FINISH);
  const bool whole = status == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  return whole;
}

bool zstd_into(Bytes from, std::span<std::byte> to) {
  const std::size_t size = ZSTD_decompress(to.data(), to.size(), from.data(), from.size());
  return ZSTD_isError(size) == 0 && size == to.size();
}

bool lz4_into(Bytes from, std::span<std::byte> to) {
  constexpr std::size_t most = std::numeric_limits<int>::max();
  if (from.size() > most || to.size() > most) return false;
  const int size = LZ4_decompress_safe(chars(from), reinterpret_cast<char*>(to.data()), static_cast<int>(from.size()),
                                       static_cast<int>(to.size()));
  return size >= 0 && static_cast<std::size_t>(size) == to.size();
}

}  // namespace

void decompress(int codec, Bytes from, std::span<std::byte> to, const std::string& where) {
  static constexpr std::array<std::string_view, 8> names = {"none",   "snappy", "gzip", "lzo",
                                                            "brotli", "lz4",    "zstd", "lz4_raw"};
  if (codec < 0 || codec >= static_cast<int>(names.size())) user_error("{}: its compression is unknown", where);
  if (to.empty()) return;
  bool whole = false;
  switch (codec) {
    case 0:
      whole = from.size() == to.size();
      if (whole) std::ranges::copy(from, to.begin());
      break;
    case 1: whole = snappy_into(from, to); break;
    case 2: whole = gzip_into(from, to); break;
    case 6: whole = zstd_into(from, to); break;
    case 7: whole = lz4_into(from, to); break;
    default:
      user_error("{}: is compressed with {}; snappy, gzip, zstd and lz4_raw can be read", where,
                 names[static_cast<std::size_t>(codec)]);
  }
  if (!whole) user_error("{}: its {} data is broken", where, names[static_cast<std::size_t>(codec)]);
}

}  // namespace inlay::data::parquet
