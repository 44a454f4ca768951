#pragma once

#include "data/parquet/cursor.h"

namespace inlay::data::parquet {

// Thrift's compact protocol, in which Parquet writes its headers. A struct is a sequence of numbered fields, any of
// which may be missing or unknown:
//
//   thrift.structure([&](const Thrift::Field& field) {
//     if (field.id == 1) rows = thrift.integer(field);
//   });
//
// What the function does not read is skipped. A field of another type than the one asked for is a UserError.
class Thrift {
 public:
  struct Field {
    int id;
    std::uint8_t type;
  };

  explicit Thrift(Cursor& cursor) : cursor_(cursor) {}

  template <class OnField>
  void structure(const OnField& on_field) {
    const Level level(*this);
    for (int id = 0;;) {
      const std::uint8_t header = cursor_.byte();
      if (header == 0) return;
      const int step = header >> 4;
      id = step != 0 ? id + step : static_cast<int>(static_cast<std::int16_t>(cursor_.zigzag()));
      each({id, static_cast<std::uint8_t>(header & 0x0F)}, on_field);
    }
  }
  template <class OnField>
  void structure(const Field& field, const OnField& on_field) {
    expect(field, 12);
    structure(on_field);
  }
  // Calls on_element with every element, as with a field.
  template <class OnElement>
  void list(const Field& field, const OnElement& on_element) {
    expect(field, 9);
    const Level level(*this);
    const std::uint8_t header = cursor_.byte();
    const std::uint64_t count = header >> 4 == 15 ? cursor_.varint() : header >> 4;
    if (count > cursor_.left()) cursor_.fail("has a list that is longer than the file");
    for (std::uint64_t i = 0; i < count; ++i) each({0, element_type(header & 0x0F)}, on_element);
  }

  std::int64_t integer(const Field& field);
  bool boolean(const Field& field);
  std::string text(const Field& field);

 private:
  // Structs in structs in structs: so deep and no deeper.
  struct Level {
    explicit Level(Thrift& of) : thrift(of) {
      if (++thrift.depth_ > 32) thrift.cursor_.fail("has a header that is nested too deeply");
    }
    ~Level() { --thrift.depth_; }
    Thrift& thrift;
  };

  template <class OnField>
  void each(const Field& field, const OnField& on_field) {
    read_ = false;
    on_field(field);
    if (!read_) skip(field);
    read_ = true;  // for the struct around it
  }
  // A boolean is in the type where it is a field, and a byte of its own, of the same meaning, where it is an element.
  std::uint8_t element_type(int type) {
    return type == 1 || type == 2 ? cursor_.byte() : static_cast<std::uint8_t>(type);
  }
  void expect(const Field& field, std::uint8_t type);
  void skip(const Field& field);

  Cursor& cursor_;
  int depth_ = 0;
  bool read_ = false;
};

}  // namespace inlay::data::parquet
