#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/attention/rules/arithmetic.h"

// Expressions of a rule: a list of nodes, each of which speaks only of earlier ones. Equal nodes are one node, and what
// is constant is folded, so that rules that say the same look the same.
namespace inlay::ops::rules {

using Term = std::uint16_t;  // index of a node

struct Node {
  Op op = Op::constant;
  Term a = 0, b = 0, c = 0;
  float value = 0;  // of constants

  friend bool operator==(const Node&, const Node&) = default;
};

constexpr bool is_leaf(Op op) { return op < first_operation; }
constexpr bool is_truth(Op op) { return op >= first_truth || op == Op::truth; }
constexpr int arity(Op op) {
  if (is_leaf(op)) return 0;
  if (op == Op::select) return 3;
  if (op >= Op::negate && op <= Op::log) return 1;
  return op == Op::negation ? 1 : 2;
}

class Expressions {
 public:
  static constexpr std::size_t most_nodes = 512;

  // The node, found or made; UserError where there would be too many.
  Term make(Op op, Term a = 0, Term b = 0, Term c = 0);
  Term number(float value);
  Term truth(bool value);

  // The named masks and score modifications, and what composes masks.
  Term causal() { return make(Op::less_equal, make(Op::key), make(Op::query)); }
  Term window(Term size) { return make(Op::less, make(Op::subtract, make(Op::query), make(Op::key)), size); }
  Term document() { return truth(true); }  // documents are always apart
  Term prefix() { return make(Op::less, make(Op::key), make(Op::prefix_length)); }
  Term both(Term a, Term b) { return make(Op::both, a, b); }
  Term either(Term a, Term b) { return make(Op::either, a, b); }
  Term negation(Term a) { return make(Op::negation, a); }
  Term softcap(Term score, Term cap);
  Term alibi(Term score, Term slope);
  Term alibi_slope();  // that of the paper, from the head and the number of heads

  // d root / d score, as a term of its own. Where the function bends or jumps, that of one side.
  Term derivative(Term root);

  // The nodes that the root needs, ascending.
  std::vector<Term> needed(Term root) const;
  bool uses(Term root, Op leaf) const;

  const Node& operator[](Term term) const { return nodes_[term]; }
  std::span<const Node> nodes() const { return nodes_; }

 private:
  Term keep(const Node& node);
  Term simplified(Op op, Term a, Term b, Term c);
  bool is(Term term, float value) const { return nodes_[term] == Node{.value = value}; }
  bool is(Term term, bool value) const { return nodes_[term] == Node{.op = Op::truth, .value = value ? 1.0f : 0.0f}; }
  Term derivative_of(const Node& node, Term at, std::span<const Term> slopes);

  std::vector<Node> nodes_;
};

// What is known of a pair: where it is, and its positions.
struct Pair {
  Place place;
  float query, key, score;
};
// The value of a root; truths are 0 and 1. The specification that everything faster is tested against.
float evaluate(const Expressions& expressions, Term root, const Pair& pair);

// Encloses the root's values over all queries and keys of the intervals.
Interval enclose(const Expressions& expressions, Term root, const Place& place, const Interval& query,
                 const Interval& key);

// The leaf's value; constants and score apart.
float leaf_of(Op op, const Place& place);

}  // namespace inlay::ops::rules
