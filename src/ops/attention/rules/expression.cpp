#include "ops/attention/rules/expression.h"

#include <algorithm>

#include "core/error.h"

namespace inlay::ops::rules {

Term Expressions::keep(const Node& node) {
  const auto found = std::find(nodes_.begin(), nodes_.end(), node);
  if (found != nodes_.end()) return static_cast<Term>(found - nodes_.begin());
  if (nodes_.size() >= most_nodes) user_error("the expression has more than {} parts", most_nodes);
  nodes_.push_back(node);
  return static_cast<Term>(nodes_.size() - 1);
}

Term Expressions::number(float value) { return keep({.op = Op::constant, .value = value}); }
Term Expressions::truth(bool value) { return keep({.op = Op::truth, .value = value ? 1.0f : 0.0f}); }

// What needs no node of its own, or another one; `absent` where there is nothing to simplify.
namespace {
constexpr Term absent = 0xffff;
}

Term Expressions::simplified(Op op, Term a, Term b, Term c) {
  switch (op) {
    case Op::add:
      if (is(a, 0.0f)) return b;
      if (is(b, 0.0f)) return a;
      break;
    case Op::subtract:
      if (is(b, 0.0f)) return a;
      break;
    case Op::multiply:
      if (is(a, 0.0f) || is(b, 0.0f)) return number(0);
      if (is(a, 1.0f)) return b;
      if (is(b, 1.0f)) return a;
      break;
    case Op::divide:
      if (is(a, 0.0f)) return number(0);
      if (is(b, 1.0f)) return a;
      break;
    case Op::select:
      if (is(a, true) || b == c) return b;
      if (is(a, false)) return c;
      break;
    case Op::both:
      if (is(a, false) || is(b, false)) return truth(false);
      if (is(a, true) || a == b) return b;
      if (is(b, true)) return a;
      break;
    case Op::either:
      if (is(a, true) || is(b, true)) return truth(true);
      if (is(a, false) || a == b) return b;
      if (is(b, false)) return a;
      break;
    case Op::negation:
      if (nodes_[a].op == Op::negation) return nodes_[a].a;
      break;
    default: break;
  }
  return absent;
}

Term Expressions::make(Op op, Term a, Term b, Term c) {
  const int count = arity(op);
  if (count == 0) return keep({.op = op});
  const Term terms[3] = {a, count > 1 ? b : Term{0}, count > 2 ? c : Term{0}};
  const auto constant = [&](int i) {
    return i >= count || nodes_[terms[i]].op == Op::constant || nodes_[terms[i]].op == Op::truth;
  };
  if (constant(0) && constant(1) && constant(2)) {
    const float value = apply(op, nodes_[terms[0]].value, nodes_[terms[1]].value, nodes_[terms[2]].value);
    return is_truth(op) ? truth(value != 0.0f) : number(value);
  }
  const Term simple = simplified(op, terms[0], terms[1], terms[2]);
  return simple != absent ? simple : keep({.op = op, .a = terms[0], .b = terms[1], .c = terms[2]});
}

Term Expressions::softcap(Term score, Term cap) {
  return make(Op::multiply, cap, make(Op::tanh, make(Op::divide, score, cap)));
}

Term Expressions::alibi(Term score, Term slope) {
  const Term distance = make(Op::absolute, make(Op::subtract, make(Op::query), make(Op::key)));
  return make(Op::subtract, score, make(Op::multiply, slope, distance));
}

// With p the largest power of two up to the number of heads: 2^(−8 (h + 1) / p) for the first p heads, then
// 2^(−4 (2 (h − p) + 1) / p).
Term Expressions::alibi_slope() {
  const Term ln_2 = number(0.69314718f), head = make(Op::head);
  const auto power = [&](Term exponent) { return make(Op::exp, make(Op::multiply, exponent, ln_2)); };
  const Term bits =
      make(Op::floor, make(Op::add, make(Op::divide, make(Op::log, make(Op::heads)), ln_2), number(1e-3f)));
  const Term p = make(Op::floor, make(Op::add, power(bits), number(0.5f)));
  const auto over_p = [&](float factor, Term x) { return make(Op::divide, make(Op::multiply, number(factor), x), p); };
  const Term early = over_p(-8, make(Op::add, head, number(1)));
  const Term late = over_p(-4, make(Op::add, make(Op::multiply, number(2), make(Op::subtract, head, p)), number(1)));
  return power(make(Op::select, make(Op::less, head, p), early, late));
}

Term Expressions::derivative_of(const Node& node, Term at, std::span<const Term> slopes) {
  const auto slope = [&](Term term) { return slopes[term]; };
  const auto minus = [&](Term x, Term y) { return make(Op::subtract, x, y); };
  const auto times = [&](Term x, Term y) { return make(Op::multiply, x, y); };
  const auto over = [&](Term x, Term y) { return make(Op::divide, x, y); };
  switch (node.op) {
    case Op::score: return number(1);
    case Op::add: return make(Op::add, slope(node.a), slope(node.b));
    case Op::subtract: return minus(slope(node.a), slope(node.b));
    case Op::multiply: return make(Op::add, times(slope(node.a), node.b), times(node.a, slope(node.b)));
    case Op::divide: return over(minus(slope(node.a), times(at, slope(node.b))), node.b);
    case Op::modulo: return minus(slope(node.a), times(make(Op::floor_divide, node.a, node.b), slope(node.b)));
    case Op::minimum: return make(Op::select, make(Op::less, node.a, node.b), slope(node.a), slope(node.b));
    case Op::maximum: return make(Op::select, make(Op::less, node.b, node.a), slope(node.a), slope(node.b));
    case Op::negate: return minus(number(0), slope(node.a));
    case Op::absolute: {
      const Term down = minus(number(0), slope(node.a));
      return make(Op::select, make(Op::less, node.a, number(0)), down, slope(node.a));
    }
    case Op::tanh: return times(minus(number(1), times(at, at)), slope(node.a));
    case Op::exp: return times(at, slope(node.a));
    case Op::log: return over(slope(node.a), node.a);
    case Op::select: return make(Op::select, node.a, slope(node.b), slope(node.c));
    default: return number(0);  // what does not depend on the score, or only by jumps
  }
}

Term Expressions::derivative(Term root) {
  const Term zero = number(0);
  std::vector<Term> slopes(std::max<std::size_t>(root, zero) + std::size_t{1}, zero);
  for (Term term = 0; term <= root; ++term) {
    if (uses(term, Op::score)) slopes[term] = derivative_of(Node(nodes_[term]), term, slopes);
  }
  return slopes[root];
}

std::vector<Term> Expressions::needed(Term root) const {
  std::vector<bool> wanted(nodes_.size());
  wanted[root] = true;
  for (Term term = root;; --term) {
    const Node& node = nodes_[term];
    const int count = wanted[term] ? arity(node.op) : 0;
    if (count > 0) wanted[node.a] = true;
    if (count > 1) wanted[node.b] = true;
    if (count > 2) wanted[node.c] = true;
    if (term == 0) break;
  }
  std::vector<Term> result;
  for (Term term = 0; term <= root; ++term) {
    if (wanted[term]) result.push_back(term);
  }
  return result;
}

bool Expressions::uses(Term root, Op leaf) const {
  const std::vector<Term> terms = needed(root);
  return std::any_of(terms.begin(), terms.end(), [&](Term term) { return nodes_[term].op == leaf; });
}

float leaf_of(Op op, const Place& place) {
  switch (op) {
    case Op::head: return place.head;
    case Op::document: return place.document;
    case Op::length: return place.length;
    case Op::prefix_length: return place.prefix_length;
    case Op::heads: return place.heads;
    case Op::bias: return place.bias;
    default: INLAY_ASSERT(false, "operation {} is no leaf", static_cast<int>(op));
  }
  return 0;
}

float evaluate(const Expressions& expressions, Term root, const Pair& pair) {
  std::vector<float> values(root + std::size_t{1});
  for (const Term term : expressions.needed(root)) {
    const Node& node = expressions[term];
    switch (node.op) {
      case Op::constant:
      case Op::truth: values[term] = node.value; break;
      case Op::query: values[term] = pair.query; break;
      case Op::key: values[term] = pair.key; break;
      case Op::score: values[term] = pair.score; break;
      default:
        values[term] = is_leaf(node.op) ? leaf_of(node.op, pair.place)
                                        : apply(node.op, values[node.a], values[node.b], values[node.c]);
    }
  }
  return values[root];
}

Interval enclose(const Expressions& expressions, Term root, const Place& place, const Interval& query,
                 const Interval& key) {
  Interval values[Expressions::most_nodes];
  for (Term term = 0; term <= root; ++term) {
    const Node& node = expressions[term];
    switch (node.op) {
      case Op::constant:
      case Op::truth: values[term] = point(node.value); break;
      case Op::query: values[term] = query; break;
      case Op::key: values[term] = key; break;
      case Op::score: values[term] = whole_line(); break;
      default:
        values[term] = is_leaf(node.op) ? point(leaf_of(node.op, place))
                                        : apply(node.op, values[node.a], values[node.b], values[node.c]);
    }
  }
  return values[root];
}

}  // namespace inlay::ops::rules
