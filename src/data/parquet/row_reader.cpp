#include "data/parquet/row_reader.h"

#include <unordered_map>
#include <utility>

namespace inlay::data::parquet {

RowReader::RowReader(Bytes file, Metadata metadata, std::string name)
    : name_(std::move(name)), file_(file), metadata_(std::move(metadata)) {}

void RowReader::begin_group() {
  const RowGroup& group = metadata_.groups[next_group_++];
  columns_.clear();
  for (std::size_t i = 0; i < group.columns.size(); ++i) {
    columns_.push_back(std::make_unique<ColumnReader>(file_, group.columns[i], *metadata_.leaves[i], name_));
  }
  group_left_ = group.rows;
}

io::Value RowReader::next() {
  while (group_left_ == 0) begin_group();
  --group_left_;
  for (const auto& column : columns_) {
    if (column->done()) column->fail("has fewer rows than the others");
    if (column->repetition() != 0) column->fail("its levels are broken");
  }
  io::Value row = instance(metadata_.root);
  ++read_;
  return row;
}

const ColumnReader& RowReader::first(const Node& node) const {
  const ColumnReader& column = *columns_[node.leaf];
  if (column.done()) column.fail("has fewer rows than the others");
  return column;
}

void RowReader::pass(const Node& node) {
  for (std::size_t i = node.leaf; i < node.leaf + node.leaves; ++i) {
    ColumnReader& column = *columns_[i];
    // A column that holds a value where the one beside it says that there is none to hold would put rows out of step.
    if (column.done() || column.definition() >= node.definition) column.fail("its levels are broken");
    column.take();
  }
}

io::Value RowReader::read(const Node& node) {
  if (node.repetition == Repetition::repeated) return io::Value(repetitions(node));
  if (node.repetition == Repetition::optional && first(node).definition() < node.definition) {
    pass(node);
    return {};
  }
  return instance(node);
}

io::Value RowReader::instance(const Node& node) {
  switch (node.shape) {
    case Shape::leaf: first(node); return columns_[node.leaf]->take();
    case Shape::list: return list(node);
    case Shape::map: return map(node);
    default: break;
  }
  io::Value::Map members;
  members.reserve(node.children.size());
  for (const Node& child : node.children) members.push_back({child.name, read(child)});
  return io::Value(std::move(members));
}

std::vector<io::Value> RowReader::repetitions(const Node& node) {
  std::vector<io::Value> items;
  if (first(node).definition() < node.definition) {
    pass(node);
    return items;
  }
  do items.push_back(instance(node));
  while (!columns_[node.leaf]->done() && columns_[node.leaf]->repetition() == node.repeated);
  return items;
}

io::Value RowReader::list(const Node& node) {
  const Node& middle = node.children[0];
  std::vector<io::Value> items = repetitions(middle);
  if (&element_of(node) != &middle) {
    for (io::Value& item : items) {
      io::Value element = std::move(item.map()->front().value);
      item = std::move(element);
    }
  }
  return io::Value(std::move(items));
}

io::Value RowReader::map(const Node& node) {
  io::Value::Map members;
  std::unordered_map<std::string, std::size_t> places;
  for (io::Value& pair : repetitions(node.children[0])) {
    io::Value::Map& parts = *pair.map();
    if (parts.size() != 2) continue;
    // Keys are texts, as in JSON. Two of one name make one entry.
    const std::string* text = parts[0].value.text();
    const std::string key = text != nullptr ? *text : io::shown(parts[0].value);
    const auto [place, is_new] = places.try_emplace(key, members.size());
    if (is_new) members.push_back({key, {}});
    members[place->second].value = std::move(parts[1].value);
  }
  return io::Value(std::move(members));
}

}  // namespace inlay::data::parquet
