#pragma once

#ifndef __CUDACC_RTC__  // this text is also compiled at run time, where there are no headers
#include <cmath>
#endif

#ifdef __CUDACC__
#define INLAY_BOTH __host__ __device__ inline
#else
#define INLAY_BOTH inline
#endif

// What the operations of a rule's expressions do, to numbers and to intervals of numbers. Everything is fp32: integers
// are exact up to 2^24, and because rounding is monotone, an operation on intervals that rounds like the one on numbers
// encloses it.
namespace inlay::ops::rules {

enum class Op : unsigned char {
  // leaves
  constant,
  truth,  // a constant that is true or false
  query,
  key,
  head,
  score,
  document,
  length,
  prefix_length,
  heads,
  bias,
  // numbers
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  minimum,
  maximum,
  negate,
  absolute,
  floor,
  tanh,
  exp,
  log,
  select,  // a ? b : c
  // truths
  less,
  less_equal,
  equal,
  both,
  either,
  negation,
};

constexpr Op first_operation = Op::add, first_truth = Op::less;

// What holds for all pairs of one head of one document.
struct Place {
  float head, document, length, prefix_length, heads, bias;
};

// Truths are 0 and 1.
INLAY_BOTH float apply(Op op, float a, float b, float c) {
  switch (op) {
    case Op::add: return a + b;
    case Op::subtract: return a - b;
    case Op::multiply: return a * b;
    case Op::divide: return a / b;
    case Op::floor_divide: return floorf(a / b);
    case Op::modulo: return a - b * floorf(a / b);
    case Op::minimum: return a < b ? a : b;
    case Op::maximum: return a > b ? a : b;
    case Op::negate: return -a;
    case Op::absolute: return fabsf(a);
    case Op::floor: return floorf(a);
    case Op::tanh: return tanhf(a);
    case Op::exp: return expf(a);
    case Op::log: return logf(a);
    case Op::select: return a != 0.0f ? b : c;
    case Op::less: return a < b ? 1.0f : 0.0f;
    case Op::less_equal: return a <= b ? 1.0f : 0.0f;
    case Op::equal: return a == b ? 1.0f : 0.0f;
    case Op::both: return a * b;
    case Op::either: return a > b ? a : b;
    case Op::negation: return 1.0f - a;
    default: return 0.0f;
  }
}

// a / b rounded as a division rounds it, from inverse = 1 / b (rounded), for whole numbers a up to 2^60 and b up to
// 2^24.
INLAY_BOTH float quotient(float a, float b, float inverse) {
  float result = a * inverse;
  result = fmaf(fmaf(-b, result, a), inverse, result);
  return fmaf(fmaf(-b, result, a), inverse, result);
}

// All numbers from low to high. The whole line also stands for "may be no number at all", so nothing but a comparison
// makes anything narrower of it.
struct Interval {
  float low, high;
};

INLAY_BOTH float infinity() {
#ifdef __CUDA_ARCH__
  return __int_as_float(0x7f800000);
#else
  return HUGE_VALF;
#endif
}
INLAY_BOTH Interval whole_line() { return {-infinity(), infinity()}; }
INLAY_BOTH bool is_whole(const Interval& x) { return !(x.low > -infinity()) && !(x.high < infinity()); }
INLAY_BOTH Interval point(float x) { return {x, x}; }

INLAY_BOTH float smaller(float a, float b) { return a < b ? a : b; }
INLAY_BOTH float larger(float a, float b) { return a > b ? a : b; }

// Bounds that are no numbers say nothing.
INLAY_BOTH Interval checked(float low, float high) { return low <= high ? Interval{low, high} : whole_line(); }

// Of the four values at the corners; a NaN among them (0 · ∞, ∞ / ∞) leaves nothing known.
INLAY_BOTH Interval around(float a, float b, float c, float d) {
  if (a != a || b != b || c != c || d != d) return whole_line();
  return {smaller(smaller(a, b), smaller(c, d)), larger(larger(a, b), larger(c, d))};
}

// Functions that implementations round differently: some units in the last place to either side.
INLAY_BOTH Interval loosened(float low, float high) {
  return checked(low - fabsf(low) * 1e-5f - 1e-35f, high + fabsf(high) * 1e-5f + 1e-35f);
}

INLAY_BOTH bool holds_zero(const Interval& x) { return x.low <= 0.0f && x.high >= 0.0f; }

// a − b · floor(a / b): exact within one period of one positive integer b; else between 0 and b, as far as rounding
// allows.
INLAY_BOTH Interval modulo(const Interval& a, const Interval& b) {
  if (b.low <= 0.0f || b.high == infinity()) return whole_line();
  const float reach = larger(fabsf(a.low), fabsf(a.high)), period = floorf(a.low / b.low);
  if (b.low == b.high && floorf(b.low) == b.low && reach < 16777216.0f && floorf(a.high / b.low) == period) {
    return checked(a.low - b.low * period, a.high - b.low * period);
  }
  const float slack = reach * 1e-6f;
  return checked(-slack, b.high + slack);
}

INLAY_BOTH Interval quotients(const Interval& a, const Interval& b) {
  if (holds_zero(b)) return whole_line();
  return around(a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high);
}

INLAY_BOTH Interval exponentials(const Interval& a) {
  constexpr float largest = 88.0f;  // above, implementations say a large number or infinity
  const float low = a.low > largest ? 1e38f : expf(a.low);
  const Interval loose = loosened(low, a.high > largest ? 1e38f : expf(a.high));
  return {loose.low, a.high > largest ? infinity() : loose.high};
}

INLAY_BOTH Interval logarithms(const Interval& a) {
  if (a.low < 0.0f) return whole_line();
  constexpr float smallest = 2e-38f;  // below, implementations differ
  const Interval loose = loosened(logf(larger(a.low, smallest)), logf(larger(a.high, smallest)));
  return {a.low < smallest ? -infinity() : loose.low, loose.high};
}

// A comparison with what may be no number is never sure to hold.
INLAY_BOTH Interval truths(const Interval& a, const Interval& b, bool sure, bool possible) {
  return {sure && !is_whole(a) && !is_whole(b) ? 1.0f : 0.0f, possible ? 1.0f : 0.0f};
}

// Encloses apply(op, …) of all numbers in the intervals.
INLAY_BOTH Interval apply(Op op, const Interval& a, const Interval& b, const Interval& c) {
  switch (op) {
    case Op::less: return truths(a, b, a.high < b.low, a.low < b.high);
    case Op::less_equal: return truths(a, b, a.high <= b.low, a.low <= b.high);
    case Op::equal:
      return truths(a, b, a.low == a.high && b.low == b.high && a.low == b.low, a.low <= b.high && b.low <= a.high);
    case Op::both: return {a.low * b.low, a.high * b.high};
    case Op::either: return {larger(a.low, b.low), larger(a.high, b.high)};
    case Op::negation: return {1.0f - a.high, 1.0f - a.low};
    case Op::select:
      if (a.low > 0.0f) return b;
      if (a.high == 0.0f) return c;
      return is_whole(b) || is_whole(c) ? whole_line() : Interval{smaller(b.low, c.low), larger(b.high, c.high)};
    default: break;
  }
  const bool binary = op <= Op::maximum;
  if (is_whole(a) || (binary && is_whole(b))) return whole_line();
  switch (op) {
    case Op::add: return checked(a.low + b.low, a.high + b.high);
    case Op::subtract: return checked(a.low - b.high, a.high - b.low);
    case Op::multiply: return around(a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high);
    case Op::divide: return quotients(a, b);
    case Op::floor_divide: {
      const Interval x = quotients(a, b);
      return checked(floorf(x.low), floorf(x.high));
    }
    case Op::modulo: return modulo(a, b);
    case Op::minimum: return {smaller(a.low, b.low), smaller(a.high, b.high)};
    case Op::maximum: return {larger(a.low, b.low), larger(a.high, b.high)};
    case Op::negate: return {-a.high, -a.low};
    case Op::absolute:
      return {holds_zero(a) ? 0.0f : smaller(fabsf(a.low), fabsf(a.high)), larger(fabsf(a.low), fabsf(a.high))};
    case Op::floor: return {floorf(a.low), floorf(a.high)};
    case Op::tanh: return loosened(tanhf(a.low), tanhf(a.high));
    case Op::exp: return exponentials(a);
    case Op::log: return logarithms(a);
    default: return whole_line();
  }
}

}  // namespace inlay::ops::rules
