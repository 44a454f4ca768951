#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"

namespace inlay::data::parquet {

using Bytes = std::span<const std::byte>;

// Reads forward through bytes that somebody else wrote. Whatever would lie behind their end is a UserError that begins
// with `where`, which must outlive the cursor.
class Cursor {
 public:
  Cursor(Bytes bytes, const std::string& where) : bytes_(bytes), where_(&where) {}

  std::size_t left() const { return bytes_.size(); }
  const std::string& where() const { return *where_; }

  Bytes take(std::size_t count) {
    if (count > bytes_.size()) fail("ends too early");
    const Bytes taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  std::string_view text(std::size_t count) {
    const Bytes taken = take(count);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  // A number as it lies in memory; Parquet's are little-endian, and so is every machine this runs on.
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::uint8_t byte() { return number<std::uint8_t>(); }

  // Seven bits a byte, the lowest first.
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint64_t next = byte();
      value |= (next & 0x7F) << shift;
      if (next < 0x80) return value;
    }
    fail("has a number of more than 64 bits");
  }
  // Signed ones with the sign in the lowest bit.
  std::int64_t zigzag() {
    const std::uint64_t value = varint();
    return static_cast<std::int64_t>(value >> 1 ^ (~(value & 1) + 1));
  }

  [[noreturn]] void fail(std::string_view message) const { user_error("{}: {}", *where_, message); }

 private:
  Bytes bytes_;
  const std::string* where_;
};

}  // namespace inlay::data::parquet
