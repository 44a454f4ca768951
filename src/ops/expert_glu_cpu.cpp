#include "ops/expert_glu.h"
#include "ops/rows.h"

namespace inlay::ops::cpu {

namespace {

using backend::cpu::each_lane;
using backend::cpu::i32v;
using backend::cpu::maximum;
using backend::cpu::minimum;
using backend::cpu::select;
using backend::cpu::sigmoid;

struct Pair {
  f32v gate, up;
};

// Where gate and up of one activation stand in a row: in halves, or alternating. n counts activations.
template <Glu kind>
struct Columns;

template <>
struct Columns<Glu::silu> {
  template <class T, class Size>
  static Pair load_at(const T* row, std::int64_t width, std::int64_t i, Size size) {
    return {load(row + i, size), load(row + width + i, size)};
  }
  template <class T, class Size>
  static void store_at(T* row, std::int64_t width, std::int64_t i, const Pair& pair, Size size) {
    store(row + i, pair.gate, size);
    store(row + width + i, pair.up, size);
  }
};

template <>
struct Columns<Glu::clamped> {
  using Order = i32v;
  static constexpr Order evens = each_lane<Order>([](std::int64_t i) { return 2 * i; });
  static constexpr Order odds = each_lane<Order>([](std::int64_t i) { return 2 * i + 1; });
  static constexpr Order first = each_lane<Order>([](std::int64_t i) { return i / 2 + i % 2 * lanes; });
  static constexpr Order second = each_lane<Order>([](std::int64_t i) { return lanes / 2 + i / 2 + i % 2 * lanes; });

  // How much of the first and of the second vector of alternating columns there is.
  static std::int64_t ahead(Whole) { return 2 * lanes; }
  static std::int64_t ahead(Part part) { return 2 * part.n; }

  template <class T, class Size>
  static Pair load_at(const T* row, std::int64_t, std::int64_t i, Size size) {
    const std::int64_t n = ahead(size);
    const T* from = row + 2 * i;
    const f32v low = n >= lanes ? load(from, Whole{}) : load(from, Part{n});
    const f32v high = n == 2 * lanes ? load(from + lanes, Whole{})
                      : n > lanes    ? load(from + lanes, Part{n - lanes})
                                     : f32v{};
    return {__builtin_shuffle(low, high, evens), __builtin_shuffle(low, high, odds)};
  }
  template <class T, class Size>
  static void store_at(T* row, std::int64_t, std::int64_t i, const Pair& pair, Size size) {
    const std::int64_t n = ahead(size);
    T* to = row + 2 * i;
    const f32v low = __builtin_shuffle(pair.gate, pair.up, first);
    const f32v high = __builtin_shuffle(pair.gate, pair.up, second);
    n >= lanes ? store(to, low, Whole{}) : store(to, low, Part{n});
    if (n == 2 * lanes) {
      store(to + lanes, high, Whole{});
    } else if (n > lanes) {
      store(to + lanes, high, Part{n - lanes});
    }
  }
};

// The activation and its derivatives by gate and up.
struct Activation {
  f32v value, by_gate, by_up;
};

template <Glu kind>
Activation activate(const Pair& in) {
  if constexpr (kind == Glu::silu) {
    const f32v s = sigmoid(in.gate), silu = in.gate * s;
    return {silu * in.up, in.up * (s + silu * (1.0f - s)), silu};
  } else {
    const f32v limit = splat(glu_limit);
    const f32v g = minimum(limit, in.gate);
    const f32v u = maximum(-limit, minimum(limit, in.up));
    const f32v s = sigmoid(g * glu_slope), gs = g * s;
    const i32v gate_moves = in.gate <= limit, up_moves = (in.up <= limit) & (in.up >= -limit);
    return {(u + 1.0f) * gs, select(gate_moves, (u + 1.0f) * (s + glu_slope * gs * (1.0f - s)), f32v{}),
            select(up_moves, gs, f32v{})};
  }
}

// The bias of a row's expert, or null.
template <class T>
class Biases {
 public:
  Biases(const ExpertRows& rows, ConstView shaped)
      : rows_(rows.bias ? rows.bias : shaped),
        experts_(rows.bias ? rows.experts.as<std::int32_t>() : nullptr),
        pairs_(rows.order.pairs.as<std::int32_t>()) {}
  const T* of(std::int64_t row) const { return experts_ == nullptr ? nullptr : rows_[experts_[pairs_[row]]]; }

 private:
  Rows<const T> rows_;
  const std::int32_t *experts_, *pairs_;
};

template <Glu kind, class T, class Size>
Pair with_bias(const T* row, const T* bias, std::int64_t width, std::int64_t i, Size size) {
  Pair pair = Columns<kind>::load_at(row, width, i, size);
  if (bias == nullptr) return pair;
  const Pair add = Columns<kind>::load_at(bias, width, i, size);
  return {pair.gate + add.gate, pair.up + add.up};
}

template <class T, Glu kind>
void forward(View act, ConstView gate_up, const ExpertRows& rows) {
  const std::int64_t width = act.cols();
  const Rows<T> act_rows(act);
  const Rows<const T> in_rows(gate_up);
  const Biases<T> biases(rows, gate_up);
  parallel_for(act.rows(), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      each_vector(0, width, [&](std::int64_t i, auto size) {
        const Pair pair = with_bias<kind>(in_rows[row], biases.of(row), width, i, size);
        store(act_rows[row] + i, activate<kind>(pair).value, size);
      });
    }
  });
}

// Every element is read before anything is written at its place: outputs may be the inputs.
template <class T, Glu kind>
void backward(const ExpertGluGrads& grads, ConstView dact, ConstView gate_up, ConstView weights,
              const ExpertRows& rows) {
  const std::int64_t width = dact.cols();
  const Rows<const T> in_rows(gate_up), dact_rows(dact);
  const Rows<T> out_rows(grads.dgate_up), act_rows(grads.act);
  const Biases<T> biases(rows, gate_up);
  const auto* pairs = rows.order.pairs.as<std::int32_t>();
  parallel_for(dact.rows(), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float weight = weights.as<float>()[pairs[row]];
      f32v sum = {};
      each_vector(0, width, [&](std::int64_t i, auto size) {
        const Pair pair = with_bias<kind>(in_rows[row], biases.of(row), width, i, size);
        const Activation a = activate<kind>(pair);
        const f32v upstream = load(dact_rows[row] + i, size);  // 0 behind the end, so the sum is right there too
        sum += a.value * upstream;
        const Pair gradient = {upstream * weight * a.by_gate, upstream * weight * a.by_up};
        Columns<kind>::store_at(out_rows[row], width, i, gradient, size);
        store(act_rows[row] + i, a.value * weight, size);
      });
      grads.dweights.as<float>()[pairs[row]] += backend::cpu::sum(sum);
    }
  });
}

// Calls body with the storage type and the kind as constants.
template <class Body>
void with_kind(DType dtype, Glu kind, const Body& body) {
  with_activation(dtype, [&](auto type) {
    if (kind == Glu::silu) return body(type, std::integral_constant<Glu, Glu::silu>{});
    body(type, std::integral_constant<Glu, Glu::clamped>{});
  });
}

}  // namespace

void expert_glu_forward(Exec&, View act, ConstView gate_up, const ExpertRows& rows) {
  with_kind(act.dtype(), rows.kind, [&](auto type, auto kind) { forward<decltype(type), kind>(act, gate_up, rows); });
}

void expert_glu_backward(Exec&, const ExpertGluGrads& grads, ConstView dact, ConstView gate_up, ConstView weights,
                         const ExpertRows& rows) {
  with_kind(dact.dtype(), rows.kind,
            [&](auto type, auto kind) { backward<decltype(type), kind>(grads, dact, gate_up, weights, rows); });
}

}  // namespace inlay::ops::cpu
