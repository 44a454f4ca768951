#include "data/parquet/schema.h"

#include "data/parquet/thrift.h"

namespace inlay::data::parquet {
namespace {

// An element of the schema as it stands in the file: the tree in the order in which it is walked, parents first.
struct Element {
  std::optional<std::int64_t> physical;
  std::int64_t width = 0, repetition = 0, children = 0, converted = -1, logical = 0, scale = 0;
  bool is_signed = true;
  std::string name;
};

namespace converted {
enum { utf8, map, map_key_value, list, enumeration, decimal, uint8 = 11, uint64 = 14 };
}
namespace logical {
enum { map = 2, list = 3, decimal = 5, integer = 10, nothing = 11, half = 15 };
}

void read_logical(Thrift& thrift, const Thrift::Field& field, Element& element) {
  thrift.structure(field, [&](const Thrift::Field& kind) {
    element.logical = kind.id;
    if (kind.id == logical::decimal) {
      thrift.structure(kind, [&](const Thrift::Field& of) {
        if (of.id == 1) element.scale = thrift.integer(of);
      });
    } else if (kind.id == logical::integer) {
      thrift.structure(kind, [&](const Thrift::Field& of) {
        if (of.id == 2) element.is_signed = thrift.boolean(of);
      });
    }
  });
}

Element read_element(Thrift& thrift, const Thrift::Field& field) {
  Element element;
  thrift.structure(field, [&](const Thrift::Field& of) {
    switch (of.id) {
      case 1: element.physical = thrift.integer(of); break;
      case 2: element.width = thrift.integer(of); break;
      case 3: element.repetition = thrift.integer(of); break;
      case 4: element.name = thrift.text(of); break;
      case 5: element.children = thrift.integer(of); break;
      case 6: element.converted = thrift.integer(of); break;
      case 7: element.scale = thrift.integer(of); break;
      case 10: read_logical(thrift, of, element); break;
      default: break;
    }
  });
  return element;
}

struct Chunk {
  ColumnChunk column;
  std::int64_t data_offset = 0, dictionary_offset = 0, bytes = 0;
  bool elsewhere = false, encrypted = false;
};

Chunk read_chunk(Thrift& thrift, const Thrift::Field& field) {
  Chunk chunk;
  thrift.structure(field, [&](const Thrift::Field& of) {
    if (of.id == 1) chunk.elsewhere = !thrift.text(of).empty();
    if (of.id == 8) chunk.encrypted = true;
    if (of.id != 3) return;
    thrift.structure(of, [&](const Thrift::Field& about) {
      switch (about.id) {
        case 4: chunk.column.codec = static_cast<int>(thrift.integer(about)); break;
        case 5: chunk.column.values = thrift.integer(about); break;
        case 7: chunk.bytes = thrift.integer(about); break;
        case 9: chunk.data_offset = thrift.integer(about); break;
        case 11: chunk.dictionary_offset = thrift.integer(about); break;
        default: break;
      }
    });
  });
  return chunk;
}

struct Group {
  std::int64_t rows = 0;
  std::vector<Chunk> chunks;
};

struct Footer {
  std::vector<Element> schema;
  std::vector<Group> groups;
  std::int64_t rows = 0;
  bool encrypted = false;
};

Footer read_footer(Cursor cursor) {
  Footer footer;
  Thrift thrift(cursor);
  thrift.structure([&](const Thrift::Field& field) {
    switch (field.id) {
      case 2:
        thrift.list(field, [&](const Thrift::Field& of) { footer.schema.push_back(read_element(thrift, of)); });
        break;
      case 3: footer.rows = thrift.integer(field); break;
      case 4:
        thrift.list(field, [&](const Thrift::Field& of) {
          Group& group = footer.groups.emplace_back();
          thrift.structure(of, [&](const Thrift::Field& part) {
            if (part.id == 3) group.rows = thrift.integer(part);
            if (part.id != 1) return;
            thrift.list(part, [&](const Thrift::Field& chunk) { group.chunks.push_back(read_chunk(thrift, chunk)); });
          });
        });
        break;
      case 8: footer.encrypted = true; break;
      default: break;
    }
  });
  return footer;
}

// Turns the list of elements into the tree.
class Tree {
 public:
  Tree(const std::vector<Element>& elements, const std::string& name) : elements_(elements), name_(name) {}

  Node root() {
    Node node = next(nullptr);
    if (at_ != elements_.size() || node.shape != Shape::record) fail("", "its schema is broken");
    return node;
  }

 private:
  [[noreturn]] void fail(const std::string& path, std::string_view message) const {
    user_error("{}: {}{}{}", name_, path, path.empty() ? "" : ": ", message);
  }

  Node next(const Node* parent) {
    constexpr int deepest = 48;
    if (at_ == elements_.size() || depth_ == deepest) fail("", "its schema is broken");
    const Element& element = elements_[at_++];
    Node node;
    node.leaf = leaves_;
    if (parent != nullptr) {
      node.name = element.name;
      node.path = parent->path.empty() ? node.name : parent->path + "." + node.name;
      if (element.repetition < 0 || element.repetition > 2) fail(node.path, "its repetition is unknown");
      node.repetition = static_cast<Repetition>(element.repetition);
      node.definition = parent->definition + (node.repetition != Repetition::required ? 1 : 0);
      node.repeated = parent->repeated + (node.repetition == Repetition::repeated ? 1 : 0);
    }
    if (element.children == 0 && element.physical) {
      node.shape = Shape::leaf;
      node.type = leaf_type(element, node.path);
      ++leaves_;
    } else {
      if (element.children <= 0) fail(node.path, "has no columns");
      ++depth_;
      for (std::int64_t i = 0; i < element.children; ++i) node.children.push_back(next(&node));
      --depth_;
      shape(node, element);
    }
    node.leaves = leaves_ - node.leaf;
    return node;
  }

  // Lists and maps are groups around one repeated node.
  static void shape(Node& node, const Element& element) {
    if (node.children.size() != 1 || node.children[0].repetition != Repetition::repeated) return;
    const Node& middle = node.children[0];
    const bool pairs = middle.shape == Shape::record && middle.children.size() == 2;
    const bool map = element.logical == logical::map || element.converted == converted::map ||
                     element.converted == converted::map_key_value;
    if (map && pairs && middle.children[0].shape == Shape::leaf) {
      node.shape = Shape::map;
    } else if (element.logical == logical::list || element.converted == converted::list) {
      node.shape = Shape::list;
    }
  }

  LeafType leaf_type(const Element& element, const std::string& path) const {
    if (*element.physical < 0 || *element.physical > 7) fail(path, "its type is unknown");
    LeafType type;
    type.physical = static_cast<Physical>(*element.physical);
    if (type.physical == Physical::fixed_bytes) {
      if (element.width <= 0 || element.width > 1 << 20) fail(path, "its type is broken");
      type.width = static_cast<std::size_t>(element.width);
    }
    type.meaning = meaning(element, type);
    if (type.meaning == Meaning::decimal) {
      if (element.scale < 0 || element.scale > 64) fail(path, "its type is broken");
      type.scale = static_cast<int>(element.scale);
    }
    return type;
  }

  static Meaning meaning(const Element& element, const LeafType& type) {
    if (element.logical == logical::nothing) return Meaning::nothing;
    const bool decimal = element.logical == logical::decimal || element.converted == converted::decimal;
    const bool is_unsigned = (element.logical == logical::integer && !element.is_signed) ||
                             (element.converted >= converted::uint8 && element.converted <= converted::uint64);
    switch (type.physical) {
      case Physical::boolean: return Meaning::boolean;
      case Physical::real32:
      case Physical::real64: return Meaning::real;
      case Physical::int96: return Meaning::time96;
      case Physical::int32:
      case Physical::int64:
        if (decimal) return Meaning::decimal;
        return is_unsigned ? Meaning::unsigned_integer : Meaning::integer;
      default:
        if (decimal) return Meaning::decimal;
        return element.logical == logical::half && type.width == 2 ? Meaning::half : Meaning::text;
    }
  }

  const std::vector<Element>& elements_;
  const std::string& name_;
  std::size_t at_ = 0, leaves_ = 0;
  int depth_ = 0;
};

void collect_leaves(const Node& node, std::vector<const Node*>& leaves) {
  if (node.shape == Shape::leaf) leaves.push_back(&node);
  for (const Node& child : node.children) collect_leaves(child, leaves);
}

ColumnChunk locate(const Chunk& chunk, const Node& leaf, std::size_t file_bytes, const std::string& name) {
  const auto fail = [&](std::string_view message) { user_error("{}: {}: {}", name, leaf.path, message); };
  if (chunk.elsewhere) fail("its values are in another file, which is not supported");
  if (chunk.encrypted) fail("is encrypted");
  ColumnChunk column = chunk.column;
  // The dictionary, where there is one, comes first; some writers put 0 where there is none.
  const bool dictionary = chunk.dictionary_offset > 0 && chunk.dictionary_offset < chunk.data_offset;
  const std::int64_t begin = dictionary ? chunk.dictionary_offset : chunk.data_offset;
  const auto size = static_cast<std::int64_t>(file_bytes);
  if (column.values < 0 || begin < 0 || chunk.bytes < 0 || begin > size || chunk.bytes > size - begin) {
    fail("lies outside the file");
  }
  column.offset = static_cast<std::size_t>(begin);
  column.bytes = static_cast<std::size_t>(chunk.bytes);
  return column;
}

// The footer's bytes: thrift, its length in 4 bytes, and the magic number.
Bytes footer_of(Bytes file, const std::string& name) {
  constexpr std::size_t around = 8;
  const auto magic_at = [&](std::size_t offset) {
    return std::string_view(reinterpret_cast<const char*>(file.data()) + offset, 4);
  };
  if (file.size() >= 4 + around && magic_at(file.size() - 4) == "PARE") user_error("{}: is encrypted", name);
  if (file.size() < 4 + around || magic_at(0) != "PAR1" || magic_at(file.size() - 4) != "PAR1") {
    user_error("{}: is not a Parquet file, or was cut short", name);
  }
  const auto length = Cursor(file.subspan(file.size() - around), name).number<std::uint32_t>();
  if (length > file.size() - 4 - around) user_error("{}: is not a Parquet file, or was cut short", name);
  return file.subspan(file.size() - around - length, length);
}

}  // namespace

const Node& element_of(const Node& list) {
  const Node& middle = list.children[0];
  const bool is_element = middle.shape != Shape::record || middle.children.size() != 1 || middle.name == "array" ||
                          middle.name == list.name + "_tuple";
  return is_element ? middle : middle.children[0];
}

Metadata read_metadata(Bytes file, const std::string& name) {
  const Footer footer = read_footer(Cursor(footer_of(file, name), name));
  if (footer.encrypted) user_error("{}: is encrypted", name);
  Metadata metadata;
  metadata.root = Tree(footer.schema, name).root();
  collect_leaves(metadata.root, metadata.leaves);
  for (const Group& from : footer.groups) {
    if (from.chunks.size() != metadata.leaves.size() || from.rows < 0)
      user_error("{}: its row groups are broken", name);
    RowGroup& group = metadata.groups.emplace_back();
    group.rows = from.rows;
    for (std::size_t i = 0; i < from.chunks.size(); ++i) {
      group.columns.push_back(locate(from.chunks[i], *metadata.leaves[i], file.size(), name));
    }
    if (group.rows > footer.rows - metadata.rows) user_error("{}: its row groups are broken", name);
    metadata.rows += group.rows;
  }
  return metadata;
}

}  // namespace inlay::data::parquet
