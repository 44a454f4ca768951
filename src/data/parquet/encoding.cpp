#include "data/parquet/encoding.h"

#include <bit>

#include "data/parquet/leaf_value.h"

namespace inlay::data::parquet {
namespace {

// `bits` bits (at most 64) of packed numbers, from bit `at` on.
std::uint64_t unpack(Bytes from, std::uint64_t at, int bits) {
  std::uint64_t value = 0;
  for (int done = 0; done < bits;) {
    const std::uint64_t place = at + static_cast<std::uint64_t>(done);
    const auto shift = static_cast<int>(place % 8);
    value |= static_cast<std::uint64_t>(std::to_integer<std::uint64_t>(from[place / 8]) >> shift) << done;
    done += 8 - shift;
  }
  return bits == 64 ? value : value & ((std::uint64_t{1} << bits) - 1);
}

// Integers as differences, in blocks that each name their smallest one and pack what is above it.
class DeltaReader {
 public:
  explicit DeltaReader(Cursor cursor) : cursor_(cursor) {
    const std::uint64_t block = cursor_.varint(), pieces = cursor_.varint();
    total_ = cursor_.varint();
    value_ = static_cast<std::uint64_t>(cursor_.zigzag());
    if (block == 0 || block > 1 << 20 || pieces == 0 || block % pieces != 0 || block / pieces % 8 != 0) {
      cursor_.fail("its differences are broken");
    }
    pieces_ = pieces;
    per_piece_ = block / pieces;
    piece_ = pieces;
  }

  std::uint64_t total() const { return total_; }
  // Behind the last value, once that has been read.
  const Cursor& rest() const { return cursor_; }

  std::int64_t next() {
    if (given_ == total_) cursor_.fail("ends too early");
    if (given_++ == 0) return static_cast<std::int64_t>(value_);
    if (left_ == 0) begin_piece();
    const std::uint64_t above = unpack(packed_, (per_piece_ - left_) * static_cast<std::uint64_t>(bits_), bits_);
    --left_;
    value_ += smallest_ + above;  // wraps around as the writer's did
    return static_cast<std::int64_t>(value_);
  }

 private:
  void begin_piece() {
    if (piece_ == pieces_) {
      smallest_ = static_cast<std::uint64_t>(cursor_.zigzag());
      widths_ = cursor_.take(pieces_);
      piece_ = 0;
    }
    bits_ = std::to_integer<int>(widths_[piece_++]);
    if (bits_ > 64) cursor_.fail("its differences are broken");
    packed_ = cursor_.take(per_piece_ / 8 * static_cast<std::uint64_t>(bits_));
    left_ = per_piece_;
  }

  Cursor cursor_;
  std::uint64_t total_ = 0, given_ = 0, value_ = 0, smallest_ = 0;
  std::uint64_t pieces_ = 0, per_piece_ = 0, piece_ = 0, left_ = 0;
  int bits_ = 0;
  Bytes widths_, packed_;
};

// A value of a type that is_integer(), as it lies in the file.
std::int64_t raw_integer(Cursor& cursor, const LeafType& type) {
  return type.physical == Physical::int32 ? cursor.number<std::int32_t>() : cursor.number<std::int64_t>();
}

// What is above the largest int64 is far outside any vocabulary: that one says so as well.
void add_integer(TokenArray& array, std::int64_t raw, const LeafType& type) {
  if (type.meaning == Meaning::unsigned_integer) {
    raw = type.physical == Physical::int32 ? static_cast<std::int64_t>(static_cast<std::uint32_t>(raw))
                                           : (raw < 0 ? INT64_MAX : raw);
  }
  array.add(raw);
}

class PlainValues final : public ValueReader {
 public:
  PlainValues(Cursor cursor, const LeafType& type) : cursor_(cursor), type_(type) {}
  io::Value next() override { return of_plain(cursor_, type_); }
  void integers(TokenArray& array, std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) add_integer(array, raw_integer(cursor_, type_), type_);
  }

 private:
  Cursor cursor_;
  LeafType type_;
};

// Of a type that is never an integer.
class OtherValues : public ValueReader {
 public:
  void integers(TokenArray&, std::size_t) final { INLAY_ASSERT(false, "a column of other values read as integers"); }
};

class PlainBooleans final : public OtherValues {
 public:
  explicit PlainBooleans(Cursor cursor) : cursor_(cursor) {}
  io::Value next() override {
    if (bit_ % 8 == 0) byte_ = cursor_.byte();
    return io::Value::boolean((byte_ >> (bit_++ % 8) & 1) != 0);
  }

 private:
  Cursor cursor_;
  std::uint8_t byte_ = 0;
  std::uint64_t bit_ = 0;
};

class RunBooleans final : public OtherValues {
 public:
  explicit RunBooleans(Cursor cursor) : runs_(behind_length(cursor), 1) {}
  io::Value next() override { return io::Value::boolean(runs_.next() != 0); }

 private:
  static Cursor behind_length(Cursor cursor) {
    const auto length = cursor.number<std::uint32_t>();
    return {cursor.take(length), cursor.where()};
  }
  RunReader runs_;
};

class DictionaryValues final : public ValueReader {
 public:
  DictionaryValues(Cursor cursor, const LeafType& type, const Dictionary& dictionary)
      : cursor_(cursor), type_(type), dictionary_(dictionary), places_(behind_bits(cursor), bits_of(cursor)) {}
  io::Value next() override {
    return is_integer(type_) ? of_integer(at_next_place(dictionary_.integers), type_)
                             : at_next_place(dictionary_.values);
  }
  void integers(TokenArray& array, std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) add_integer(array, at_next_place(dictionary_.integers), type_);
  }

 private:
  template <class T>
  const T& at_next_place(const std::vector<T>& values) {
    const std::uint32_t place = places_.next();
    if (place >= values.size()) cursor_.fail("names a value that its dictionary does not have");
    return values[place];
  }
  // A page in which every value is null may have no byte at all.
  static int bits_of(Cursor cursor) { return cursor.left() == 0 ? 0 : cursor.byte(); }
  static Cursor behind_bits(Cursor cursor) {
    if (cursor.left() > 0) cursor.byte();
    return cursor;
  }
  Cursor cursor_;
  LeafType type_;
  const Dictionary& dictionary_;
  RunReader places_;
};

class DeltaIntegers final : public ValueReader {
 public:
  DeltaIntegers(Cursor cursor, const LeafType& type) : deltas_(cursor), type_(type) {}
  io::Value next() override { return of_integer(raw(), type_); }
  void integers(TokenArray& array, std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) add_integer(array, raw(), type_);
  }

 private:
  std::int64_t raw() {
    const std::int64_t value = deltas_.next();
    return type_.physical == Physical::int32 ? static_cast<std::int32_t>(value) : value;
  }

  DeltaReader deltas_;
  LeafType type_;
};

// All of them, and where the bytes behind them begin.
std::vector<std::uint32_t> read_lengths(Cursor& cursor, std::int64_t most) {
  DeltaReader deltas(cursor);
  if (deltas.total() > static_cast<std::uint64_t>(most)) cursor.fail("has more lengths than values");
  std::vector<std::uint32_t> lengths;
  for (std::uint64_t i = 0; i < deltas.total(); ++i) {
    const std::int64_t length = deltas.next();
    if (length < 0 || length > INT32_MAX) cursor.fail("has a value of an impossible length");
    lengths.push_back(static_cast<std::uint32_t>(length));
  }
  cursor = deltas.rest();
  return lengths;
}

// Lengths, then bytes; with `shared`, before both how much of the value before each one begins with.
class DeltaBytes final : public OtherValues {
 public:
  DeltaBytes(Cursor cursor, std::int64_t count, const LeafType& type, bool shared) : cursor_(cursor), type_(type) {
    if (shared) shared_ = read_lengths(cursor_, count);
    lengths_ = read_lengths(cursor_, count);
    if (shared && shared_.size() != lengths_.size()) cursor_.fail("its lengths are broken");
  }
  io::Value next() override {
    if (at_ == lengths_.size()) cursor_.fail("ends too early");
    const std::string_view more = cursor_.text(lengths_[at_]);
    if (shared_.empty()) {
      ++at_;
      return make(more);
    }
    if (shared_[at_] > last_.size()) cursor_.fail("its lengths are broken");
    last_.resize(shared_[at_++]);
    last_ += more;
    return make(last_);
  }

 private:
  io::Value make(std::string_view bytes) const {
    if (type_.physical == Physical::fixed_bytes && bytes.size() != type_.width) cursor_.fail("its lengths are broken");
    return of_bytes(bytes, type_);
  }

  Cursor cursor_;
  LeafType type_;
  std::vector<std::uint32_t> shared_, lengths_;
  std::size_t at_ = 0;
  std::string last_;
};

// The first bytes of all values, then the second ones, and so on.
class SplitValues final : public ValueReader {
 public:
  SplitValues(Cursor cursor, const LeafType& type) : cursor_(cursor), type_(type), width_(width_of(type)) {
    if (cursor.left() % width_ != 0) cursor.fail("its values are broken");
    count_ = cursor.left() / width_;
    bytes_ = cursor.take(cursor.left());
    value_.resize(width_);
  }
  io::Value next() override {
    Cursor value = joined();
    return of_plain(value, type_);
  }
  void integers(TokenArray& array, std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      Cursor value = joined();
      add_integer(array, raw_integer(value, type_), type_);
    }
  }

 private:
  Cursor joined() {
    if (at_ == count_) cursor_.fail("ends too early");
    for (std::size_t i = 0; i < width_; ++i) value_[i] = bytes_[i * count_ + at_];
    ++at_;
    return Cursor(value_, cursor_.where());
  }
  static std::size_t width_of(const LeafType& type) {
    if (type.physical == Physical::fixed_bytes) return type.width;
    return type.physical == Physical::int64 || type.physical == Physical::real64 ? 8 : 4;
  }
  Cursor cursor_;
  LeafType type_;
  std::size_t width_, count_ = 0, at_ = 0;
  Bytes bytes_;
  std::vector<std::byte> value_;
};

}  // namespace

RunReader::RunReader(Cursor cursor, int bits) : cursor_(cursor), bits_(bits) {
  if (bits > 32) cursor.fail("its runs are broken");
}

void RunReader::begin_run() {
  const std::uint64_t header = cursor_.varint(), count = header >> 1;
  packed_ = (header & 1) != 0;
  if (packed_) {
    if (count > cursor_.left()) cursor_.fail("ends too early");
    group_ = cursor_.take(count * static_cast<std::uint64_t>(bits_));
    left_ = count * 8;
    bit_ = 0;
    return;
  }
  left_ = count;
  const Bytes value = cursor_.take(static_cast<std::size_t>((bits_ + 7) / 8));
  value_ = static_cast<std::uint32_t>(unpack(value, 0, bits_));
}

std::uint32_t RunReader::next() {
  if (bits_ == 0) return 0;
  while (left_ == 0) begin_run();
  --left_;
  if (!packed_) return value_;
  const auto value = static_cast<std::uint32_t>(unpack(group_, bit_, bits_));
  bit_ += static_cast<std::uint64_t>(bits_);
  return value;
}

std::unique_ptr<ValueReader> read_values(int encoding, Cursor cursor, std::int64_t count, const LeafType& type,
                                         const Dictionary* dictionary) {
  enum {
    plain = 0,
    plain_dictionary = 2,
    runs = 3,
    delta = 5,
    delta_lengths = 6,
    delta_bytes = 7,
    places = 8,
    split = 9
  };
  const bool integers = type.physical == Physical::int32 || type.physical == Physical::int64;
  const bool reals = type.physical == Physical::real32 || type.physical == Physical::real64;
  const bool bytes = type.physical == Physical::bytes, fixed = type.physical == Physical::fixed_bytes;
  const bool boolean = type.physical == Physical::boolean;
  if (encoding == plain && boolean) return std::make_unique<PlainBooleans>(cursor);
  if (encoding == plain) return std::make_unique<PlainValues>(cursor, type);
  if (encoding == runs && boolean) return std::make_unique<RunBooleans>(cursor);
  if (encoding == delta && integers) return std::make_unique<DeltaIntegers>(cursor, type);
  if (encoding == delta_lengths && bytes) return std::make_unique<DeltaBytes>(cursor, count, type, false);
  if (encoding == delta_bytes && (bytes || fixed)) return std::make_unique<DeltaBytes>(cursor, count, type, true);
  if (encoding == split && (integers || reals || fixed)) return std::make_unique<SplitValues>(cursor, type);
  if (encoding == plain_dictionary || encoding == places) {
    if (dictionary == nullptr) cursor.fail("names values of a dictionary, but has no dictionary");
    return std::make_unique<DictionaryValues>(cursor, type, *dictionary);
  }
  cursor.fail(fmt::format("its encoding, number {}, is not supported", encoding));
}

Dictionary read_dictionary(Cursor cursor, std::int64_t count, const LeafType& type) {
  Dictionary dictionary;
  if (is_integer(type)) {
    for (std::int64_t i = 0; i < count; ++i) dictionary.integers.push_back(raw_integer(cursor, type));
    return dictionary;
  }
  const auto reader = read_values(0, cursor, count, type, nullptr);
  for (std::int64_t i = 0; i < count; ++i) dictionary.values.push_back(reader->next());
  return dictionary;
}

}  // namespace inlay::data::parquet
