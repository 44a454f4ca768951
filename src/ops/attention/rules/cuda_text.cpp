#include "ops/attention/rules/cuda_text.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace inlay::ops::rules {

namespace {

// How an expression is written. Masks round as the intervals that enclose them do, operation by operation; scores may
// be fused and use the faster functions.
enum class Style { mask, score, interval };

std::string constant(float value) {
  if (std::isnan(value)) return "__int_as_float(0x7fc00000)";
  if (std::isinf(value)) return value > 0 ? "infinity()" : "-infinity()";
  return fmt::format("{:a}f", value);
}

std::string leaf(const Node& node, Style style) {
  switch (node.op) {
    case Op::constant: return constant(node.value);
    case Op::truth: return style == Style::interval ? constant(node.value) : node.value != 0.0f ? "true" : "false";
    case Op::query: return "q";
    case Op::key: return "k";
    case Op::score: return "s";
    case Op::head: return "at.head";
    case Op::document: return "at.document";
    case Op::length: return "at.length";
    case Op::prefix_length: return "at.prefix_length";
    case Op::heads: return "at.heads";
    case Op::bias: return "at.bias";
    default: break;
  }
  INLAY_ASSERT(false, "operation {} is no leaf", static_cast<int>(node.op));
  return {};
}

bool is_power_of_two(float value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5f && exponent > -100 && exponent < 100;
}

// A bound of the magnitude of what is always a whole number; infinity where that is not known.
double whole_bound(const Expressions& expressions, Term term) {
  constexpr double positions = 0x1p24, unknown = HUGE_VAL;
  const Node& node = expressions[term];
  const auto bound = [&](Term part) { return whole_bound(expressions, part); };
  switch (node.op) {
    case Op::constant: return std::floor(node.value) == node.value ? std::fabs(node.value) : unknown;
    case Op::query:
    case Op::key:
    case Op::head:
    case Op::heads:
    case Op::document:
    case Op::length:
    case Op::prefix_length: return positions;
    case Op::add:
    case Op::subtract: return bound(node.a) + bound(node.b);
    case Op::multiply: return bound(node.a) * bound(node.b);
    case Op::minimum:
    case Op::maximum: return std::max(bound(node.a), bound(node.b));
    case Op::negate:
    case Op::absolute: return bound(node.a);
    default: return unknown;
  }
}

// a / b rounded as a division is, by a multiplication or a few where that gives the same. The compiler's own division
// has a branch for every pair.
std::string exact_quotient(const Expressions& expressions, const Node& node) {
  const Node& by = expressions[node.b];
  if (by.op == Op::constant) {
    const std::string inverse = constant(1.0f / by.value);
    if (is_power_of_two(by.value)) return fmt::format("__fmul_rn(n{}, {})", node.a, inverse);
    const double divisor = whole_bound(expressions, node.b);
    if (divisor > 0 && divisor <= 0x1p24 && whole_bound(expressions, node.a) <= 0x1p60) {
      return fmt::format("quotient(n{}, n{}, {})", node.a, node.b, inverse);
    }
  }
  return fmt::format("__fdiv_rn(n{}, n{})", node.a, node.b);
}

std::string fast_quotient(const Expressions& expressions, const Node& node) {
  const Node& by = expressions[node.b];
  if (by.op == Op::constant && std::isnormal(1.0f / by.value)) {
    return fmt::format("n{} * {}", node.a, constant(1.0f / by.value));
  }
  return fmt::format("flash::fast_divide(n{}, n{})", node.a, node.b);
}

std::string operation(const Expressions& expressions, const Node& node, Style style) {
  const std::string a = fmt::format("n{}", node.a), b = fmt::format("n{}", node.b), c = fmt::format("n{}", node.c);
  const bool exact = style == Style::mask;
  const auto infix = [&](std::string_view sign) { return fmt::format("{} {} {}", a, sign, b); };
  const auto call = [&](std::string_view name) { return fmt::format("{}({})", name, a); };
  const auto call2 = [&](std::string_view name) { return fmt::format("{}({}, {})", name, a, b); };
  switch (node.op) {
    case Op::add: return exact ? call2("__fadd_rn") : infix("+");
    case Op::subtract: return exact ? call2("__fsub_rn") : infix("-");
    case Op::multiply: return exact ? call2("__fmul_rn") : infix("*");
    case Op::divide: return exact ? exact_quotient(expressions, node) : fast_quotient(expressions, node);
    // Whole quotients must not be missed by a unit in the last place, in scores neither.
    case Op::floor_divide: return fmt::format("floorf({})", exact_quotient(expressions, node));
    case Op::modulo:
      return fmt::format("__fsub_rn({}, __fmul_rn({}, floorf({})))", a, b, exact_quotient(expressions, node));
    case Op::minimum: return call2("smaller");
    case Op::maximum: return call2("larger");
    case Op::negate: return "-" + a;
    case Op::absolute: return call("fabsf");
    case Op::floor: return call("floorf");
    case Op::tanh: return call(exact ? "tanhf" : "flash::fast_tanh");
    case Op::exp: return call(exact ? "expf" : "flash::fast_exp");
    case Op::log: return call(exact ? "logf" : "__logf");
    case Op::select: return fmt::format("{} ? {} : {}", a, b, c);
    case Op::less: return infix("<");
    case Op::less_equal: return infix("<=");
    case Op::equal: return infix("==");
    case Op::both: return infix("&");  // no branches
    case Op::either: return infix("|");
    case Op::negation: return "!" + a;
    default: break;
  }
  INLAY_ASSERT(false, "operation {} has no text", static_cast<int>(node.op));
  return {};
}

std::string interval_operation(const Node& node) {
  const int count = arity(node.op);
  return fmt::format("apply(static_cast<Op>({}), n{}, {}, {})", static_cast<int>(node.op), node.a,
                     count > 1 ? fmt::format("n{}", node.b) : "point(0.0f)",
                     count > 2 ? fmt::format("n{}", node.c) : "point(0.0f)");
}

// One line for each node that the roots need and that is not written yet.
void write_lines(std::string& text, std::vector<bool>& written, const Expressions& expressions, Term root,
                 Style style) {
  for (const Term term : expressions.needed(root)) {
    if (written[term]) continue;
    written[term] = true;
    const Node& node = expressions[term];
    if (style == Style::interval) {
      const bool given = node.op == Op::query || node.op == Op::key;
      const std::string value = !is_leaf(node.op) ? interval_operation(node)
                                : given           ? leaf(node, style)
                                                  : fmt::format("point({})", leaf(node, style));
      text += fmt::format("    const Interval n{} = {};\n", term, value);
    } else {
      text += fmt::format("    const {} n{} = {};\n", is_truth(node.op) ? "bool" : "float", term,
                          is_leaf(node.op) ? leaf(node, style) : operation(expressions, node, style));
    }
  }
}

std::string body(const Expressions& expressions, Term root, Style style) {
  std::string text;
  std::vector<bool> written(expressions.nodes().size());
  write_lines(text, written, expressions, root, style);
  return text + fmt::format("    return n{};\n", root);
}

std::string score_with_slope(const AttentionRule& rule) {
  std::string text;
  std::vector<bool> written(rule.expressions().nodes().size());
  write_lines(text, written, rule.expressions(), rule.score(), Style::score);
  write_lines(text, written, rule.expressions(), rule.slope(), Style::score);
  return text + fmt::format("    slope = n{};\n    return n{};\n", rule.slope(), rule.score());
}

// Options: template arguments behind the head's size.
std::string kernel(std::string_view name, std::string_view function, int head_size, std::string_view options = "") {
  return fmt::format(
      "extern \"C\" __global__ void __launch_bounds__(inlay::ops::flash::threads, 1)\n"
      "    {}(const __grid_constant__ inlay::ops::flash::Task task) {{\n"
      "  inlay::ops::flash::{}<inlay::ops::rules::Rule, {}{}>(task);\n"
      "}}\n",
      name, function, head_size, options);
}

}  // namespace

bool gradients_apart(int head_size) { return head_size > 128; }

std::string cuda_program(const AttentionRule& rule, Pass pass, int head_size) {
  const Expressions& expressions = rule.expressions();
  const std::string file = pass == Pass::forward ? "flash_forward" : "flash_backward";
  std::string text = fmt::format(
      "#include \"ops/attention/rules/{}.cuh\"\n\n"
      "namespace inlay::ops::rules {{\n\n"
      "struct Rule {{\n"
      "  static constexpr bool scored = {};\n"
      "  static __device__ __forceinline__ bool visible(const Place& at, float q, float k) {{\n{}  }}\n"
      "  static __device__ __forceinline__ Interval visible(const Place& at, const Interval& q, const Interval& k) "
      "{{\n{}  }}\n"
      "  static __device__ __forceinline__ float score(const Place& at, float q, float k, float s) {{\n{}  }}\n"
      "  static __device__ __forceinline__ float score(const Place& at, float q, float k, float s, float& slope) "
      "{{\n{}  }}\n"
      "}};\n\n"
      "}}  // namespace inlay::ops::rules\n\n",
      file, rule.changes_scores(), body(expressions, rule.mask(), Style::mask),
      body(expressions, rule.mask(), Style::interval), body(expressions, rule.score(), Style::score),
      score_with_slope(rule));
  if (pass == Pass::forward) return text + kernel("attention_forward", "forward", head_size);
  text += kernel("attention_query_gradients", "query_gradients", head_size) + "\n";
  if (!gradients_apart(head_size)) {
    return text + kernel("attention_key_gradients", "key_gradients", head_size, ", true, true");
  }
  return text + kernel("attention_key_gradients", "key_gradients", head_size, ", true, false") + "\n" +
         kernel("attention_value_gradients", "key_gradients", head_size, ", false, true");
}

}  // namespace inlay::ops::rules
