#include "data/parquet/row_reader.h"

#include <utility>

namespace inlay::data::parquet {

RowReader::RowReader(Bytes file, std::string name)
    : name_(std::move(name)), file_(file), metadata_(read_metadata(file, name_)) {}

void RowReader::begin_group() {
  const RowGroup& group = metadata_.groups[next_group_++];
  columns_.clear();
  for (std::size_t i = 0; i < group.columns.size(); ++i) {
    columns_.push_back(std::make_unique<ColumnReader>(file_, group.columns[i], *metadata_.leaves[i], name_));
  }
  group_left_ = group.rows;
}

jinja::Value RowReader::next() {
  while (group_left_ == 0) begin_group();
  --group_left_;
  for (const auto& column : columns_) {
    if (column->done()) column->fail("has fewer rows than the others");
    if (column->repetition() != 0) column->fail("its levels are broken");
  }
  jinja::Value row = instance(metadata_.root);
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

jinja::Value RowReader::read(const Node& node) {
  if (node.repetition == Repetition::repeated) return jinja::make_list(nullptr, repetitions(node));
  if (node.repetition == Repetition::optional && first(node).definition() < node.definition) {
    pass(node);
    return {};
  }
  return instance(node);
}

jinja::Value RowReader::instance(const Node& node) {
  switch (node.shape) {
    case Shape::leaf: first(node); return columns_[node.leaf]->take();
    case Shape::list: return list(node);
    case Shape::map: return map(node);
    default: break;
  }
  jinja::Dict dict;
  for (const Node& child : node.children) dict.set(nullptr, jinja::make_string(nullptr, child.name), read(child));
  return jinja::make_dict(nullptr, std::move(dict));
}

std::vector<jinja::Value> RowReader::repetitions(const Node& node) {
  std::vector<jinja::Value> items;
  if (first(node).definition() < node.definition) {
    pass(node);
    return items;
  }
  do items.push_back(instance(node));
  while (!columns_[node.leaf]->done() && columns_[node.leaf]->repetition() == node.repeated);
  return items;
}

jinja::Value RowReader::list(const Node& node) {
  const Node& middle = node.children[0];
  std::vector<jinja::Value> items = repetitions(middle);
  if (&element_of(node) != &middle) {
    for (jinja::Value& item : items) {
      jinja::Value element = item.dict()->entries()[0].second;
      item = std::move(element);
    }
  }
  return jinja::make_list(nullptr, std::move(items));
}

jinja::Value RowReader::map(const Node& node) {
  jinja::Dict dict;
  for (const jinja::Value& pair : repetitions(node.children[0])) {
    const auto& entries = pair.dict()->entries();
    // Two of one name make one entry.
    if (entries.size() == 2) dict.set(nullptr, entries[0].second, entries[1].second);
  }
  return jinja::make_dict(nullptr, std::move(dict));
}

}  // namespace inlay::data::parquet
