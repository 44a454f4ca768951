#include "data/parquet/thrift.h"

namespace inlay::data::parquet {
namespace {

enum : std::uint8_t {
  yes = 1,
  no = 2,
  i8 = 3,
  i16 = 4,
  i32 = 5,
  i64 = 6,
  real = 7,
  binary = 8,
  list_of,
  set_of,
  map_of,
  record
};

}  // namespace

void Thrift::expect(const Field& field, std::uint8_t type) {
  if (field.type != type) cursor_.fail(fmt::format("has a field {} of an unexpected type", field.id));
  read_ = true;
}

std::int64_t Thrift::integer(const Field& field) {
  if (field.type == i8) {
    read_ = true;
    return static_cast<std::int8_t>(cursor_.byte());
  }
  const bool fits = field.type >= i16 && field.type <= i64;
  expect(field, fits ? field.type : std::uint8_t{i64});
  return cursor_.zigzag();
}

bool Thrift::boolean(const Field& field) {
  expect(field, field.type == no ? no : yes);
  return field.type == yes;
}

std::string Thrift::text(const Field& field) {
  expect(field, binary);
  return std::string(cursor_.text(cursor_.varint()));
}

void Thrift::skip(const Field& field) {
  const auto nothing = [](const Field&) {};
  switch (field.type) {
    case yes:
    case no: return;
    case i8: cursor_.byte(); return;
    case i16:
    case i32:
    case i64: cursor_.varint(); return;
    case real: cursor_.take(8); return;
    case binary: cursor_.take(cursor_.varint()); return;
    case list_of:
    case set_of: list({field.id, list_of}, nothing); return;
    case map_of: {
      const Level level(*this);
      const std::uint64_t count = cursor_.varint();
      if (count == 0) return;
      const std::uint8_t types = cursor_.byte();
      if (count > cursor_.left()) cursor_.fail("has a map that is longer than the file");
      for (std::uint64_t i = 0; i < count; ++i) {
        skip({0, element_type(types >> 4)});
        skip({0, element_type(types & 0x0F)});
      }
      return;
    }
    case record: structure(nothing); return;
    default: cursor_.fail(fmt::format("has a field {} of an unknown type", field.id));
  }
}

}  // namespace inlay::data::parquet
