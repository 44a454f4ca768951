#include "data/parquet/leaf_value.h"

#include <cmath>

#include "core/dtype.h"
#include "core/utf8.h"

namespace inlay::data::parquet {
namespace {

// Days since the beginning of the Julian calendar, and nanoseconds in the day: nanoseconds since 1970.
io::Value of_time96(Bytes bytes) {
  std::int64_t nanoseconds = 0;
  std::int32_t day = 0;
  std::memcpy(&nanoseconds, bytes.data(), sizeof(nanoseconds));
  std::memcpy(&day, bytes.data() + sizeof(nanoseconds), sizeof(day));
  constexpr io::Integer first_day = 2440588, per_day = 86'400'000'000'000;
  return io::Value::integer((io::Integer{day} - first_day) * per_day + nanoseconds);
}

// Two's complement, the highest byte first.
double big_endian(std::string_view bytes) {
  double value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    value = value * 256 + (i == 0 ? static_cast<double>(static_cast<signed char>(byte)) : static_cast<double>(byte));
  }
  return value;
}

io::Value of_decimal(double unscaled, const LeafType& type) {
  return io::Value::real(unscaled / std::pow(10.0, type.scale));
}

}  // namespace

io::Value of_integer(std::int64_t value, const LeafType& type) {
  switch (type.meaning) {
    case Meaning::decimal: return of_decimal(static_cast<double>(value), type);
    case Meaning::unsigned_integer:
      return type.physical == Physical::int32
                 ? io::Value::integer(static_cast<std::uint32_t>(value))
                 : io::Value::integer(static_cast<io::Integer>(static_cast<std::uint64_t>(value)));
    default: return io::Value::integer(value);
  }
}

io::Value of_bytes(std::string_view bytes, const LeafType& type) {
  if (type.meaning == Meaning::decimal) return of_decimal(big_endian(bytes), type);
  if (type.meaning == Meaning::half) {
    f16 value;
    std::memcpy(&value.bits, bytes.data(), sizeof(value.bits));
    return io::Value::real(static_cast<float>(value));
  }
  return io::Value(repaired_utf8(bytes));
}

io::Value of_plain(Cursor& cursor, const LeafType& type) {
  switch (type.physical) {
    case Physical::int32: return of_integer(cursor.number<std::int32_t>(), type);
    case Physical::int64: return of_integer(cursor.number<std::int64_t>(), type);
    case Physical::int96: return of_time96(cursor.take(12));
    case Physical::real32: return io::Value::real(cursor.number<float>());
    case Physical::real64: return io::Value::real(cursor.number<double>());
    case Physical::bytes: return of_bytes(cursor.text(cursor.number<std::uint32_t>()), type);
    case Physical::fixed_bytes: return of_bytes(cursor.text(type.width), type);
    default: cursor.fail("has an encoding that its type does not allow");
  }
}

}  // namespace inlay::data::parquet
