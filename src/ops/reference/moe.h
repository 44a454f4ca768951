#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

// A mixture of experts as short as it can be said, for one token or one element. S is float, double or
// std::complex<double> (derivatives by complex step); what is compared looks at real parts.
namespace inlay::ops::reference {

template <class S>
double real_of(const S& x) {
  return std::real(std::complex<double>(x));
}

// The k largest logits, larger ones first, equal ones by index.
template <class S>
std::vector<int> chosen_experts(const std::vector<S>& logits, int k) {
  std::vector<int> order(logits.size());
  for (std::size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int>(e);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return real_of(logits[static_cast<std::size_t>(a)]) > real_of(logits[static_cast<std::size_t>(b)]);
  });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

template <class S>
std::vector<S> softmax(const std::vector<S>& x) {
  using std::exp;
  double top = real_of(x.front());
  for (const S& value : x) top = std::max(top, real_of(value));
  std::vector<S> result;
  S total(0);
  for (const S& value : x) {
    result.push_back(exp(value - S(top)));
    total += result.back();
  }
  for (S& value : result) value /= total;
  return result;
}

// How much each chosen expert counts: a softmax over the chosen logits, or over all of them.
template <class S>
std::vector<S> route_weights(const std::vector<S>& logits, const std::vector<int>& experts, bool over_chosen) {
  std::vector<S> result;
  const std::vector<S> all = softmax(logits);
  for (const int e : experts) {
    result.push_back(over_chosen ? logits[static_cast<std::size_t>(e)] : all[static_cast<std::size_t>(e)]);
  }
  return over_chosen ? softmax(result) : result;
}

// E · Σ_e f_e P_e over rows of logits, with f and P divided by the number of rows.
template <class S>
S balance_loss(const std::vector<std::vector<S>>& rows, int k) {
  const std::size_t experts = rows.front().size();
  std::vector<double> assigned(experts);
  std::vector<S> probability(experts, S(0));
  for (const auto& logits : rows) {
    for (const int e : chosen_experts(logits, k)) assigned[static_cast<std::size_t>(e)] += 1;
    const std::vector<S> p = softmax(logits);
    for (std::size_t e = 0; e < experts; ++e) probability[e] += p[e];
  }
  S sum(0);
  for (std::size_t e = 0; e < experts; ++e) sum += S(assigned[e]) * probability[e];
  const auto count = static_cast<double>(rows.size());
  return sum * S(static_cast<double>(experts) / (count * count));
}

// (u + 1) · g · sigmoid(1.702 g) with g at most `limit` and u within ±limit.
template <class S>
S clamped_glu(const S& gate, const S& up, double limit = 7.0) {
  using std::exp;
  const S g = real_of(gate) > limit ? S(limit) : gate;
  const S u = real_of(up) > limit ? S(limit) : real_of(up) < -limit ? S(-limit) : up;
  return (u + S(1)) * g / (S(1) + exp(S(-1.702) * g));
}

}  // namespace inlay::ops::reference
