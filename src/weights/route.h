#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace inlay::weights {

// How the gradients of U and V (basis `weights`) are found; all are exact.
enum class Route : std::uint8_t {
  direct,    // through x·V and dy·U: cheapest where few directions train
  dense,     // through G = dyᵀx: cheapest where many do
  factored,  // forward and backward multiply by the factors, W is never rebuilt: cheapest for steps of few tokens
};
std::string_view name_of(Route route);
std::optional<Route> parse_route(std::string_view text);

struct RouteShape {
  std::int64_t out = 0, in = 0;  // of W
  std::int64_t rank = 0;         // directions that train
  std::int64_t tokens = 0;       // of a call
  std::int64_t calls = 1;        // a step: micro-batches times tiles
};

// Multiply-adds of an optimizer step on a target: forward, dx, the factors' gradients, and rebuilding W where the route
// wants that. Projection costs all routes the same.
double route_cost(Route route, const RouteShape& shape);
Route cheapest_route(const RouteShape& shape);

}  // namespace inlay::weights
