#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/parquet/cursor.h"

namespace inlay::data::parquet {

// How a value lies in the file; numbered as in the file.
enum class Physical : std::uint8_t { boolean, int32, int64, int96, real32, real64, bytes, fixed_bytes };

// What it means.
enum class Meaning : std::uint8_t { text, boolean, integer, unsigned_integer, real, half, decimal, time96, nothing };

struct LeafType {
  Physical physical = Physical::bytes;
  Meaning meaning = Meaning::text;
  std::size_t width = 0;  // of fixed_bytes
  int scale = 0;          // of a decimal: digits behind the point
};

enum class Repetition : std::uint8_t { required, optional, repeated };

// What becomes of a node's children.
enum class Shape : std::uint8_t { leaf, record, list, map };

// A node of the schema. Levels count from the root: an entry of a column says by its definition level how many of the
// optional and repeated nodes above it are there, and by its repetition level which of the repeated ones goes on.
struct Node {
  std::string name;
  std::string path;  // "messages.list.element.role"
  Repetition repetition = Repetition::required;
  Shape shape = Shape::record;
  int definition = 0, repeated = 0;  // levels with which this node is there
  LeafType type;                     // of a leaf
  std::size_t leaf = 0;              // the first leaf at or below it
  std::size_t leaves = 0;
  std::vector<Node> children;
};

// Whole numbers, and not decimals.
inline bool is_integer(const LeafType& type) {
  return type.meaning == Meaning::integer || type.meaning == Meaning::unsigned_integer;
}

// What a list's elements are. Writers differ in what stands between a list and them: mostly a group with one child, the
// element; but a group that is the element itself has several, or is named for it.
const Node& element_of(const Node& list);

struct ColumnChunk {
  int codec = 0;
  std::int64_t values = 0;            // with those that are null
  std::size_t offset = 0, bytes = 0;  // of its pages
};

struct RowGroup {
  std::int64_t rows = 0;
  std::vector<ColumnChunk> columns;  // one a leaf
};

struct Metadata {
  Node root;
  std::vector<const Node*> leaves;  // of root
  std::vector<RowGroup> groups;
  std::int64_t rows = 0;
};

// The footer of a file. What is no Parquet file, broken, encrypted or spread over several files is a UserError that
// begins with the file's name.
Metadata read_metadata(Bytes file, const std::string& name);

}  // namespace inlay::data::parquet
