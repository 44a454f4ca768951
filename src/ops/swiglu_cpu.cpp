#include "ops/rows.h"
#include "ops/swiglu.h"

namespace inlay::ops::cpu {

namespace {

using backend::cpu::sigmoid;

template <class T>
void forward(View act, ConstView gate_up) {
  const std::int64_t width = act.cols();
  const Rows<T> act_rows(act);
  const Rows<const T> in_rows(gate_up);
  parallel_for(act.rows(), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T *gate = in_rows[row], *up = gate + width;
      T* out = act_rows[row];
      each_vector(0, width, [&](std::int64_t i, auto part) {
        const f32v g = load(gate + i, part);
        store(out + i, g * sigmoid(g) * load(up + i, part), part);
      });
    }
  });
}

// Every element is read before anything is written at its place: outputs may be the inputs.
template <class T, bool write_act>
void backward(View dgate_up, View act, ConstView dact, ConstView gate_up) {
  const std::int64_t width = dact.cols();
  const Rows<const T> in_rows(gate_up), dact_rows(dact);
  const Rows<T> out_rows(dgate_up), act_rows(write_act ? act : dgate_up);
  parallel_for(dact.rows(), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T *gate = in_rows[row], *up = gate + width, *d = dact_rows[row];
      T *dgate = out_rows[row], *dup = dgate + width, *out = act_rows[row];
      each_vector(0, width, [&](std::int64_t i, auto part) {
        const f32v g = load(gate + i, part), u = load(up + i, part), upstream = load(d + i, part);
        const f32v s = sigmoid(g), silu = g * s;
        store(dgate + i, upstream * u * (s + silu * (1.0f - s)), part);
        store(dup + i, upstream * silu, part);
        if constexpr (write_act) store(out + i, silu * u, part);
      });
    }
  });
}

}  // namespace

void swiglu_forward(Exec&, View act, ConstView gate_up) {
  with_activation(act.dtype(), [&](auto type) { forward<decltype(type)>(act, gate_up); });
}

void swiglu_backward(Exec&, View dgate_up, View act, ConstView dact, ConstView gate_up) {
  with_activation(dact.dtype(), [&](auto type) {
    using T = decltype(type);
    act ? backward<T, true>(dgate_up, act, dact, gate_up) : backward<T, false>(dgate_up, act, dact, gate_up);
  });
}

}  // namespace inlay::ops::cpu
