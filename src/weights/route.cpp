#include "weights/route.h"

#include <algorithm>

namespace inlay::weights {

std::string_view name_of(Route route) {
  switch (route) {
    case Route::direct: return "direct";
    case Route::dense: return "dense";
    case Route::factored: return "factored";
  }
  return "";
}

std::optional<Route> parse_route(std::string_view text) {
  for (const Route route : {Route::direct, Route::dense, Route::factored}) {
    if (name_of(route) == text) return route;
  }
  return std::nullopt;
}

double route_cost(Route route, const RouteShape& shape) {
  const auto n = static_cast<double>(shape.out), m = static_cast<double>(shape.in);
  const auto r = static_cast<double>(shape.rank), full = std::min(n, m);
  const double tokens = static_cast<double>(shape.tokens) * static_cast<double>(shape.calls);
  const double through_factors = 2 * tokens * r * (n + m);  // x·V, dy·U, then dU, dV
  const double rebuild = 2 * r * n * m;                     // two products of rank r
  switch (route) {
    case Route::direct: return 2 * tokens * n * m + through_factors + rebuild;
    case Route::dense: return 3 * tokens * n * m + 2 * r * n * m + rebuild;
    // Both passes go through all directions; the gradients multiply by V and U once more.
    case Route::factored: return 2 * tokens * full * (n + m) + through_factors;
  }
  return 0;
}

Route cheapest_route(const RouteShape& shape) {
  return std::min({Route::direct, Route::dense, Route::factored},
                  [&](Route a, Route b) { return route_cost(a, shape) < route_cost(b, shape); });
}

}  // namespace inlay::weights
