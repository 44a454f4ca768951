#include "data/parquet/token_reader.h"

namespace inlay::data::parquet {
namespace {

constexpr std::array<std::string_view, 3> names = {"input_ids", "labels", "attention_mask"};

const Node* column_of(const Metadata& metadata, std::string_view name) {
  for (const Node& node : metadata.root.children) {
    if (node.name == name) return &node;
  }
  return nullptr;
}

bool is_integer_list(const Node& node, const Node& leaf) {
  if (!is_integer(leaf.type) || leaf.repeated != 1) return false;
  if (node.shape == Shape::leaf) return node.repetition == Repetition::repeated;
  return node.shape == Shape::list && &element_of(node) == &leaf;
}

}  // namespace

bool TokenReader::fits(const Metadata& metadata) {
  bool any = false;
  for (const std::string_view name : names) {
    const Node* node = column_of(metadata, name);
    if (node == nullptr) continue;
    if (!is_integer_list(*node, *metadata.leaves[node->leaf])) return false;
    any = true;
  }
  return any;
}

TokenReader::TokenReader(Bytes file, Metadata metadata, std::string name)
    : file_(file), metadata_(std::move(metadata)), name_(std::move(name)) {
  for (std::size_t i = 0; i < names.size(); ++i) columns_[i].list = column_of(metadata_, names[i]);
}

void TokenReader::begin_group() {
  const RowGroup& group = metadata_.groups[next_group_++];
  for (Column& column : columns_) {
    if (column.list == nullptr) continue;
    const std::size_t leaf = column.list->leaf;
    column.reader = std::make_unique<ColumnReader>(file_, group.columns[leaf], *metadata_.leaves[leaf], name_);
  }
  group_left_ = group.rows;
}

TokenArrays TokenReader::next() {
  while (group_left_ == 0) begin_group();
  --group_left_;
  ++read_;
  TokenArrays arrays;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (columns_[i].list != nullptr) columns_[i].reader->take_list(*columns_[i].list, *arrays.find(names[i]));
  }
  return arrays;
}

}  // namespace inlay::data::parquet
