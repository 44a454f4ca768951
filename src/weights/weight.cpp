#include "weights/weight.h"

#include <algorithm>

#include "ops/adamw.h"
#include "ops/elementwise.h"
#include "weights/products.h"

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
  if (!exec.on_cuda()) {                           // it is read where it lies
    alignas(64) static const std::byte nowhere{};  // of which a plan reads nothing
    return source != nullptr ? *source : ConstView(&nowhere, DType::f32, shape);
  }
  Arena& arena = exec.arena();
  if (source == nullptr) return arena.scratch("file piece", DType::f32, shape);
  View staged = arena.scratch("file piece", source->dtype(), shape);
  exec.upload(staged, source->data());
  return staged;
}

void Weight::backward(Exec& exec, View dx, Grad mode, ConstView dy, ConstView x, const ops::Call& call) {
  const auto operands = fp8();
  if (!operands || call.dy != nullptr || mode == Grad::skip || !trainable()) {
    return Linear::backward(exec, dx, mode, dy, x, call);
  }
  const ScratchScope scope(exec.arena());
  const ops::Fp8Forms gradient = ops::scratch_fp8(exec, "gradient", operands->settings, ops::Fp8Role::gradient,
                                                  ops::Fp8Use::both, dy.dim(0), dy.dim(1));
  ops::quantise_fp8(exec, gradient, dy);
  ops::Call with_forms = call;
  with_forms.dy = &gradient;
  Linear::backward(exec, dx, mode, dy, x, with_forms);
}

std::optional<ops::Fp8Operands> Weight::plain_fp8() const {
  if (parameter_->fp8 == nullptr) return std::nullopt;
  return ops::Fp8Operands{.settings = parameter_->fp8->settings()};
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
  if (parameter.fp8 != nullptr) parameter.fp8->forget();
  for_each_piece(parameter, part, [&](std::int64_t begin, std::int64_t end) {
    const ScratchScope scope(arena);
    Shape shape = parameter.shape;
    shape[0] = end - begin;
    const ConstView rows = source != nullptr ? source->rows(begin, end) : ConstView();
    const ConstView from = staged_rows(exec, source != nullptr ? &rows : nullptr, shape);
    const std::int64_t row = part.row + begin, first = parameter.first_row();
    // Masters are rounded in their own way, on every process alike: also rows whose lower halves another one keeps.
    const auto set = [&](View value, View low, ConstView values) {
      if (parameter.low.absent()) return ops::cast(exec, value, values);
      const ScratchScope rounding(arena);
      View master = arena.scratch("master piece", DType::f32, value.shape());
      ops::cast(exec, master, values);
      if (low.absent()) low = arena.scratch("low piece", DType::i16, value.shape());
      ops::split_master(exec, value, low, master);
    };
    if (parameter.cut == nullptr) {
      const View low = parameter.low.absent() ? View() : parameter.low.slice_rows(row, part.row + end);
      return set(parameter.value.slice_rows(row, part.row + end), low, from);
    }
    if (!parameter.holds_value) set(parameter.value.slice_rows(row, part.row + end), {}, from);
    const std::int64_t mine = std::max(row, first), mine_end = std::min(part.row + end, parameter.end_row());
    if (mine >= mine_end || (!parameter.holds_value && parameter.low.absent())) return;
    const View low = parameter.low.absent() ? View() : parameter.low.slice_rows(mine - first, mine_end - first);
    set(parameter.my_value().slice_rows(mine - first, mine_end - first), low,
        from.slice_rows(mine - row, mine_end - row));
  });
}

}  // namespace inlay::weights
