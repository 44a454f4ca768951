#include "ops/attention/cpu_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace inlay::ops::cpu {

namespace {

using backend::cpu::select;
using rules::Node;
using rules::Op;
using rules::Term;

constexpr std::int64_t strip_keys = 4, row_vectors = block_size / lanes, node_vectors = strip_keys * row_vectors;

f32v truth(i32v mask) { return select(mask, splat(1), f32v{}); }

f32v floor(f32v x) {
  f32v result;
  for (std::int64_t i = 0; i < lanes; ++i) result[i] = std::floor(x[i]);
  return result;
}

f32v log_of_any(f32v x) {
  const f32v none = splat(std::numeric_limits<float>::quiet_NaN());
  const f32v small = select(x >= f32v{}, splat(-std::numeric_limits<float>::infinity()), none);
  const f32v large = select(x <= splat(std::numeric_limits<float>::max()), log(x), x);
  return select(x >= splat(std::numeric_limits<float>::min()), large, small);
}

// to = op(a, b, c), vector by vector, as rules::apply does it to one number.
template <class Function>
void each(f32v* to, const Function& function) {
  for (std::int64_t i = 0; i < node_vectors; ++i) to[i] = function(i);
}

void apply(Op op, f32v* to, const f32v* a, const f32v* b, const f32v* c) {
  const f32v zero = {};
  switch (op) {
    case Op::add: return each(to, [&](auto i) { return a[i] + b[i]; });
    case Op::subtract: return each(to, [&](auto i) { return a[i] - b[i]; });
    case Op::multiply:
    case Op::both: return each(to, [&](auto i) { return a[i] * b[i]; });
    case Op::divide: return each(to, [&](auto i) { return a[i] / b[i]; });
    case Op::floor_divide: return each(to, [&](auto i) { return floor(a[i] / b[i]); });
    case Op::modulo: return each(to, [&](auto i) { return a[i] - b[i] * floor(a[i] / b[i]); });
    case Op::minimum: return each(to, [&](auto i) { return backend::cpu::minimum(a[i], b[i]); });
    case Op::maximum:
    case Op::either: return each(to, [&](auto i) { return backend::cpu::maximum(a[i], b[i]); });
    case Op::negate: return each(to, [&](auto i) { return -a[i]; });
    case Op::absolute: return each(to, [&](auto i) { return (f32v)((u32v)a[i] & 0x7fffffffu); });
    case Op::floor: return each(to, [&](auto i) { return floor(a[i]); });
    case Op::tanh: return each(to, [&](auto i) { return backend::cpu::tanh(a[i]); });
    case Op::exp: return each(to, [&](auto i) { return backend::cpu::exp(a[i]); });
    case Op::log: return each(to, [&](auto i) { return log_of_any(a[i]); });
    case Op::select: return each(to, [&](auto i) { return select(a[i] != zero, b[i], c[i]); });
    case Op::less: return each(to, [&](auto i) { return truth(a[i] < b[i]); });
    case Op::less_equal: return each(to, [&](auto i) { return truth(a[i] <= b[i]); });
    case Op::equal: return each(to, [&](auto i) { return truth(a[i] == b[i]); });
    case Op::negation: return each(to, [&](auto i) { return 1.0f - a[i]; });
    default: INLAY_ASSERT(false, "operation {} is a leaf", static_cast<int>(op));
  }
}

}  // namespace

// The values of all nodes over the strip at hand; those of leaves that do not change stay from strip to strip.
struct TileRule::Strip {
  f32v* of(Term term) const { return vectors + static_cast<std::int64_t>(term) * node_vectors; }
  void fill(Term term, float value) const { std::fill_n(of(term), node_vectors, splat(value)); }

  f32v* vectors;
};

std::int64_t TileRule::strip_vectors(const AttentionRule& rule) {
  return std::ssize(rule.expressions().nodes()) * node_vectors;
}

TileRule::TileRule(const AttentionRule& rule) : rule_(rule) {
  for (const bool partial : {false, true}) {
    for (const bool slopes : {false, true}) {
      std::vector<Term>& terms = terms_[partial][slopes];
      const auto add = [&](Term root) {
        const std::vector<Term> more = rule.expressions().needed(root);
        terms.insert(terms.end(), more.begin(), more.end());
      };
      if (partial) add(rule.mask());
      if (rule.changes_scores()) add(rule.score());
      if (slopes) add(rule.slope());
      std::sort(terms.begin(), terms.end());
      terms.erase(std::unique(terms.begin(), terms.end()), terms.end());
    }
  }
}

void TileRule::run(const Strip& strip, const std::vector<Term>& terms) const {
  for (const Term term : terms) {
    const Node& node = rule_.expressions()[term];
    if (rules::is_leaf(node.op)) continue;
    cpu::apply(node.op, strip.of(term), strip.of(node.a), strip.of(node.b), strip.of(node.c));
  }
}

void TileRule::apply(float* scores, float* slopes, f32v* memory, const TilePlace& at, float scale, bool partial) const {
  const rules::Expressions& expressions = rule_.expressions();
  const std::vector<Term>& terms = terms_for(partial, slopes != nullptr);
  const Strip strip{memory};
  const f32v count = __builtin_convertvector(backend::cpu::lane_numbers, f32v);
  const auto query = [&](std::int64_t vector) {
    return count + static_cast<float>(at.query + vector % row_vectors * lanes);
  };
  for (const Term term : terms) {
    const Node& node = expressions[term];
    if (node.op == Op::constant || node.op == Op::truth) {
      strip.fill(term, node.value);
    } else if (node.op == Op::query) {
      each(strip.of(term), query);
    } else if (rules::is_leaf(node.op) && node.op != Op::key && node.op != Op::score) {
      strip.fill(term, leaf_of(node.op, at.place));
    }
  }
  const f32v end = splat(at.place.length), never = splat(2 * far_below);
  for (std::int64_t first = 0; first < at.keys; first += strip_keys) {
    const auto key = [&](std::int64_t vector) {
      return splat(static_cast<float>(at.key + first + vector / row_vectors));
    };
    const auto score = [&](std::int64_t vector) {
      return scores + (first + vector / row_vectors) * block_size + vector % row_vectors * lanes;
    };
    for (const Term term : terms) {
      if (expressions[term].op == Op::key) each(strip.of(term), key);
      if (expressions[term].op == Op::score) {
        each(strip.of(term), [&](auto i) { return backend::cpu::load(score(i)) * scale; });
      }
    }
    run(strip, terms);
    for (std::int64_t i = 0; i < node_vectors; ++i) {
      if (i % row_vectors * lanes >= at.queries) continue;
      const f32v value = rule_.changes_scores() ? strip.of(rule_.score())[i] : backend::cpu::load(score(i)) * scale;
      i32v seen = i32v{} == i32v{};
      if (partial) seen = (strip.of(rule_.mask())[i] != f32v{}) & (query(i) < end) & (key(i) < end);
      if (slopes != nullptr) {
        backend::cpu::store(slopes + (score(i) - scores), select(seen, strip.of(rule_.slope())[i], f32v{}));
      }
      backend::cpu::store(score(i), select(seen & ~(value < never), value, never));  // what is no number stays so
    }
  }
}

}  // namespace inlay::ops::cpu
