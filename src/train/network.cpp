#include "train/network.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/text.h"

namespace inlay::train {

namespace {

using backend::StepPart;
using backend::Work;

// What NCCL's rings reach by the word of those who write it or measured it, not what is printed on the box
// (docs/scaling.md names each). Delays are those that NCCL itself reckons with.
struct Link {
  std::string_view name, text;
  bool between_nodes;
  double rate;      // bytes/s
  bool of_process;  // or of the whole node
  double hop;       // seconds
};
constexpr Link links[] = {
    {"nvlink", "NVLink 4 (360 of 450 GB/s per GPU)", false, 360e9, true, 3.4e-6},
    {"pcie", "PCIe 5 x16 (28 of 63 GB/s per GPU)", false, 28e9, true, 5.7e-6},
    {"ib400", "InfiniBand NDR (46 of 50 GB/s per GPU)", true, 46e9, true, 14e-6},
    {"eth100", "100 Gb/s Ethernet (11 of 12.5 GB/s per node)", true, 11e9, false, 14e-6},
};
constexpr double ring_start = 8.4e-6;

const Link* find_link(std::string_view name) {
  const auto* found = std::ranges::find(links, name, &Link::name);
  return found == std::end(links) ? nullptr : found;
}

double gigabytes(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value) && value > 0 ? value : 0;
}

void use(const Link& link, int per_node, NetworkRates& rates) {
  (link.between_nodes ? rates.between : rates.within) =
      link.rate * (link.between_nodes && link.of_process ? per_node : 1);
  (link.between_nodes ? rates.hop_between : rates.hop_within) = link.hop;
}

double compute_seconds(const Work& work, const Ceilings& ceilings) {
  const double kernels =
      ceilings.product_seconds(work) + work.attention / ceilings.attention + work.bytes / ceilings.memory;
  return std::max(kernels, std::max(work.to_device, work.to_host) / ceilings.link);
}

double network_seconds(const Work& work, const TeamShape& team, const NetworkRates& rates) {
  const double near = work.network - work.network_far, near_calls = work.collectives - work.collectives_far;
  const int near_group = team.per_node();
  double seconds = near / rates.within + near_calls * (rates.start + (near_group - 1) * rates.hop_within);
  if (team.nodes == 1) return seconds;
  // A ring through all processes leaves a node once; rings of one process of every node share what leaves it.
  const int in_node = team.shards_in_node ? 1 : team.per_node();
  const double rate = std::min(rates.within, rates.between * in_node / team.per_node());
  const double hops = team.nodes * ((in_node - 1) * rates.hop_within + rates.hop_between);
  return seconds + work.network_far / rate + work.collectives_far * (rates.start + hops);
}

}  // namespace

NetworkRates network_rates(const std::string& link, const TeamShape& team, double measured) {
  NetworkRates rates{.start = ring_start};
  const Link *within = &links[0], *between = &links[2];
  double own_within = 0, own_between = 0;
  for (const std::string& name : link.empty() ? std::vector<std::string>() : split(link, ',')) {
    if (const Link* known = find_link(name)) {
      (known->between_nodes ? between : within) = known;
    } else if (const double value = gigabytes(name); value > 0) {
      (team.nodes > 1 ? own_between : own_within) = value;
    } else {
      user_error("--link: expected nvlink, pcie, ib400, eth100 or GB/s, got {}", name);
    }
  }
  use(*within, team.per_node(), rates);
  use(*between, team.per_node(), rates);
  if (own_within > 0) rates.within = 1e9 * own_within;
  if (own_between > 0) rates.between = 1e9 * own_between * team.per_node();
  const auto text = [](const Link& known, double own) {
    return own > 0 ? fmt::format("{:g} GB/s per process", own) : std::string(known.text);
  };
  if (link.empty() && measured > 0) {  // of a ring through all processes
    rates.within = rates.between = measured;
    rates.source = fmt::format("{:.3g} GB/s per process, measured by inlay bench collectives", measured / 1e9);
    return rates;
  }
  rates.source = text(*within, own_within) + " within a node";
  if (team.nodes > 1) rates.source += ", " + text(*between, own_between) + " between nodes";
  return rates;
}

Edge edge_of(const model::ModelConfig& config) {
  const double embedding = static_cast<double>(config.vocab) * static_cast<double>(config.hidden);
  return {.layers = config.layer_count(),
          .share = std::max(embedding / static_cast<double>(config.parameter_count()),
                            1.0 / static_cast<double>(config.layer_count()))};
}

TeamEstimate estimate_team_step(const MemoryPlan& plan, std::int64_t micro_batches, const Edge& edge,
                                const TeamShape& team, const Ceilings& ceilings, const NetworkRates& network) {
  const Work& forward = plan.cost.of(StepPart::forward);
  const Work backward = plan.cost.of(StepPart::recompute) + plan.cost.of(StepPart::backward);
  const Work &sums = plan.cost.of(StepPart::sums), &update = plan.cost.of(StepPart::optimizer);
  const auto sent = [&](const Work& work) { return network_seconds(work, team, network); };
  const auto beside = [&](double compute, double exchange) {
    return std::max(compute, exchange) + std::min(compute, exchange) * edge.share;
  };
  const double there = compute_seconds(forward, ceilings), back = compute_seconds(backward, ceilings);
  const double optimizer = compute_seconds(update, ceilings) + update.host_bytes / ceilings.host;
  const auto passes = static_cast<double>(micro_batches);

  TeamEstimate result;
  result.compute_seconds = passes * (there + back) + optimizer;
  result.network_seconds = passes * sent(forward + backward) + sent(sums) + sent(update);
  result.step_seconds = (passes - 1) * (beside(there, sent(forward)) + beside(back, sent(backward))) +
                        beside(there, sent(forward) + sent(update)) + beside(back, sent(backward) + sent(sums)) +
                        optimizer;
  result.tokens_per_second = team.processes * passes * plan.batch.tokens / result.step_seconds;
  const Work every = forward + backward, once = sums + update;
  result.sent_bytes = passes * every.network + once.network;
  result.sent_far_bytes = passes * every.network_far + once.network_far;
  result.layer_bytes = (every.network + once.network) / static_cast<double>(edge.layers);
  return result;
}

}  // namespace inlay::train
