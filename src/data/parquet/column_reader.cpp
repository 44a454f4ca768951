#include "data/parquet/column_reader.h"

#include <bit>
#include <utility>

#include "data/parquet/codec.h"
#include "data/parquet/thrift.h"

namespace inlay::data::parquet {

// A page's header.
struct ColumnReader::Page {
  enum Type : std::int64_t { data = 0, index = 1, dictionary = 2, data_v2 = 3 };

  std::int64_t type = -1, size = 0, compressed = 0, values = -1, encoding = 0;
  std::int64_t definition_encoding = 3, repetition_encoding = 3;  // of data
  std::int64_t definition_bytes = 0, repetition_bytes = 0;        // of data_v2
  bool is_compressed = true;

  static Page read(Cursor& cursor) {
    Page page;
    Thrift thrift(cursor);
    thrift.structure([&](const Thrift::Field& field) {
      switch (field.id) {
        case 1: page.type = thrift.integer(field); break;
        case 2: page.size = thrift.integer(field); break;
        case 3: page.compressed = thrift.integer(field); break;
        case 5: page.read_data(thrift, field); break;
        case 7: page.read_dictionary(thrift, field); break;
        case 8: page.read_data_v2(thrift, field); break;
        default: break;
      }
    });
    return page;
  }

 private:
  void read_data(Thrift& thrift, const Thrift::Field& field) {
    thrift.structure(field, [&](const Thrift::Field& of) {
      if (of.id == 1) values = thrift.integer(of);
      if (of.id == 2) encoding = thrift.integer(of);
      if (of.id == 3) definition_encoding = thrift.integer(of);
      if (of.id == 4) repetition_encoding = thrift.integer(of);
    });
  }
  void read_dictionary(Thrift& thrift, const Thrift::Field& field) {
    thrift.structure(field, [&](const Thrift::Field& of) {
      if (of.id == 1) values = thrift.integer(of);
    });
  }
  void read_data_v2(Thrift& thrift, const Thrift::Field& field) {
    thrift.structure(field, [&](const Thrift::Field& of) {
      if (of.id == 1) values = thrift.integer(of);
      if (of.id == 4) encoding = thrift.integer(of);
      if (of.id == 5) definition_bytes = thrift.integer(of);
      if (of.id == 6) repetition_bytes = thrift.integer(of);
      if (of.id == 7) is_compressed = thrift.boolean(of);
    });
  }
};

namespace {

int bits_for(int level) { return static_cast<int>(std::bit_width(static_cast<unsigned>(level))); }

}  // namespace

ColumnReader::ColumnReader(Bytes file, const ColumnChunk& chunk, const Node& leaf, const std::string& file_name)
    : leaf_(leaf),
      where_(fmt::format("{}: column {}", file_name, leaf.path)),
      pages_(file.subspan(chunk.offset, chunk.bytes), where_),
      codec_(chunk.codec),
      left_(chunk.values) {
  advance();
}

io::Value ColumnReader::take() {
  io::Value value;
  if (current_->definition == leaf_.definition) {
    value = values().next();
    if (leaf_.type.meaning == Meaning::nothing) value = {};
  }
  advance();
  return value;
}

ValueReader& ColumnReader::values() {
  if (!values_) {
    values_ = read_values(encoded_->encoding, encoded_->cursor, encoded_->count, leaf_.type,
                          dictionary_ ? &*dictionary_ : nullptr);
  }
  return *values_;
}

void ColumnReader::take_list(const Node& list, TokenArray& array) {
  if (done()) fail("has fewer rows than the others");
  if (repetition() != 0) fail("its levels are broken");
  const Node& repeated = list.shape == Shape::list ? list.children[0] : list;
  array.present = list.shape != Shape::list || definition() >= list.definition;
  if (definition() < repeated.definition) return advance();
  std::size_t waiting = 0;  // values of this page that are still to be read
  const auto read_waiting = [&] {
    if (waiting > 0) values().integers(array, std::exchange(waiting, 0));
  };
  do {
    if (definition() == leaf_.definition) {
      ++waiting;
    } else {
      read_waiting();
      if (!array.missing) array.missing = array.values.size();
      array.values.push_back(0);
    }
    if (page_left_ == 0) read_waiting();
    advance();
  } while (!done() && repetition() == leaf_.repeated);
  read_waiting();
}

void ColumnReader::advance() {
  while (page_left_ == 0) {
    if (left_ == 0) {
      current_.reset();
      return;
    }
    next_page();
  }
  --page_left_;
  const auto repetition = static_cast<int>(repetitions_->next()), definition = static_cast<int>(definitions_->next());
  if (repetition > leaf_.repeated || definition > leaf_.definition) fail("its levels are broken");
  current_ = {repetition, definition};
}

void ColumnReader::next_page() {
  constexpr std::int64_t most_bytes = std::int64_t{1} << 30;
  const Page page = Page::read(pages_);
  if (page.size < 0 || page.size > most_bytes || page.compressed < 0) fail("has a page of an impossible size");
  const Bytes bytes = pages_.take(static_cast<std::size_t>(page.compressed));
  const auto size = static_cast<std::size_t>(page.size);
  if (page.type == Page::dictionary) {
    if (page.values < 0 || dictionary_) fail("its dictionary is broken");
    dictionary_ = read_dictionary(Cursor(decompressed(bytes, size), where_), page.values, leaf_.type);
  } else if (page.type == Page::data || page.type == Page::data_v2) {
    if (page.values < 0 || page.values > left_) fail("has more values than it says");
    read_page(page, bytes);
    left_ -= page.values;
    page_left_ = page.values;
  }
}

void ColumnReader::read_page(const Page& page, Bytes bytes) {
  const auto size = static_cast<std::size_t>(page.size);
  Cursor rest(bytes, where_);
  if (page.type == Page::data_v2) {
    // Levels come first, never compressed; their bytes count in both sizes.
    if (page.repetition_bytes < 0 || page.definition_bytes < 0) fail("its levels are broken");
    const Bytes repetition = rest.take(static_cast<std::size_t>(page.repetition_bytes));
    const Bytes definition = rest.take(static_cast<std::size_t>(page.definition_bytes));
    if (repetition.size() + definition.size() > size) fail("its levels are broken");
    repetitions_.emplace(Cursor(repetition, where_), bits_for(leaf_.repeated));
    definitions_.emplace(Cursor(definition, where_), bits_for(leaf_.definition));
    if (page.is_compressed) {
      rest = Cursor(decompressed(rest.take(rest.left()), size - repetition.size() - definition.size()), where_);
    }
  } else {
    rest = Cursor(decompressed(bytes, size), where_);
    const auto levels = [&](int level, std::int64_t encoding) {
      if (level == 0) return RunReader(rest, 0);
      constexpr std::int64_t runs = 3;
      if (encoding != runs) fail("its levels are encoded in a way that is no longer used");
      const auto length = rest.number<std::uint32_t>();
      return RunReader(Cursor(rest.take(length), where_), bits_for(level));
    };
    repetitions_.emplace(levels(leaf_.repeated, page.repetition_encoding));
    definitions_.emplace(levels(leaf_.definition, page.definition_encoding));
  }
  constexpr std::int64_t most_values = std::int64_t{1} << 28;
  if (page.values > most_values) fail("has a page of an impossible size");
  encoded_.emplace(Encoded{static_cast<int>(page.encoding), rest, page.values});
  values_.reset();
}

Bytes ColumnReader::decompressed(Bytes bytes, std::size_t size) {
  constexpr int none = 0;
  if (codec_ == none && bytes.size() == size) return bytes;
  if (size > buffer_size_) {
    buffer_ = std::make_unique_for_overwrite<std::byte[]>(size);
    buffer_size_ = size;
  }
  const std::span<std::byte> to(buffer_.get(), size);
  decompress(codec_, bytes, to, where_);
  return to;
}

}  // namespace inlay::data::parquet
