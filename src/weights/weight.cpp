#include "weights/weight.h"

#include <algorithm>

#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace inlay::weights {

using backend::ScratchScope;

void for_each_piece(const Parameter& parameter, const Part& part,
                    const std::function<void(std::int64_t begin, std::int64_t end)>& body, std::int64_t align) {
  constexpr std::int64_t piece_elements = std::int64_t{8} << 20;
  const std::int64_t columns = parameter.size() / parameter.rows();
  const std::int64_t step = std::max(align, piece_elements / columns / align * align);
  for (std::int64_t begin = 0; begin < part.rows; begin += step) body(begin, std::min(begin + step, part.rows));
}

ConstView staged_rows(Exec& exec, const ConstView* source, const Shape& shape) {
  Arena& arena = exec.arena();
  if (source == nullptr) return arena.scratch("file piece", DType::f32, shape);
  if (!exec.on_cuda()) return *source;
  View staged = arena.scratch("file piece", source->dtype(), shape);
  exec.upload(staged, source->data());
  return staged;
}

void Weight::lookup(Exec& exec, View out, ConstView tokens) {
  ops::embedding_forward(exec, out, tokens, parameter_->value);
}

Weight::AdapterNumbers Weight::read_adapter(Exec&, std::size_t) {
  INLAY_ASSERT(false, "{} has no adapter", parameter_->name);
  return {};
}

void Weight::read_rows(Exec& exec, View rows, std::int64_t row) {
  ops::cast(exec, rows, parameter_->value.slice_rows(row, row + rows.dim(0)));
}

void Weight::load(Exec& device, const Part& part, PartSource* source) { load_value(device, *parameter_, part, source); }

void load_value(Exec& device, Parameter& parameter, const Part& part, PartSource* source) {
  Exec& exec = parameter.home(device);
  Arena& arena = exec.arena();
  for_each_piece(parameter, part, [&](std::int64_t begin, std::int64_t end) {
    const ScratchScope scope(arena);
    Shape shape = parameter.shape;
    shape[0] = end - begin;
    const ConstView rows = source != nullptr ? source->rows(begin, end) : ConstView();
    const ConstView from = staged_rows(exec, source != nullptr ? &rows : nullptr, shape);
    // Of what is cut, the rows that this process keeps the state of; the others where it has the whole.
    const std::int64_t row = part.row + begin, first = parameter.first_row();
    const std::int64_t mine = std::max(row, first),
                       mine_end = std::max(mine, std::min(part.row + end, parameter.end_row()));
    const bool all = parameter.cut != nullptr && !parameter.holds_value;
    if (all) ops::cast(exec, parameter.value.slice_rows(row, part.row + end), from);
    if (mine == mine_end || (all && parameter.low.absent())) return;
    const View value = parameter.my_value().slice_rows(mine - first, mine_end - first);
    const ConstView kept = from.slice_rows(mine - row, mine_end - row);
    if (parameter.low.absent()) return ops::cast(exec, value, kept);
    View master = arena.scratch("master piece", DType::f32, value.shape());
    ops::cast(exec, master, kept);
    ops::split_master(exec, value, parameter.low.slice_rows(mine - first, mine_end - first), master);
  });
}

}  // namespace inlay::weights
