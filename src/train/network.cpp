#include "train/network.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/text.h"
#include "train/step_time.h"

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

// What one kind of link is taken to be: what the user says counts before what was measured, and that before a guess.
struct Choice {
  const Link* link = nullptr;
  double own = 0;  // GB/s of each process
  bool named = false;
  const MeasuredRing* ring = nullptr;

  bool measured() const { return !named && ring != nullptr; }
  std::string text() const {
    if (own > 0) return fmt::format("{:g} GB/s per process", own);
    if (!measured()) return std::string(link->text);
    const std::string nodes = ring->nodes == 1 ? "one node" : fmt::format("{} nodes", ring->nodes);
    return fmt::format("{:.3g} GB/s per process, measured with {} processes on {} and {},", ring->rate / 1e9,
                       ring->processes, nodes, format_bytes(static_cast<std::size_t>(ring->bytes)));
  }
  // A ring leaves a node once, whatever has been measured of it: so its rate is the whole node's.
  double rate(int processes) const {
    if (own > 0) return 1e9 * own * processes;
    return measured() ? ring->rate : link->rate * (link->of_process ? processes : 1);
  }
};

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

NetworkRates network_rates(const std::string& link, const TeamShape& team, std::span<const MeasuredRing> rings) {
  Choice within{.link = &links[0], .ring = ring_within(rings, team.per_node())};
  Choice between{.link = &links[2], .ring = ring_between(rings, team.per_node(), team.nodes)};
  for (const std::string& name : link.empty() ? std::vector<std::string>() : split(link, ',')) {
    if (const Link* known = find_link(name)) {
      if (known->between_nodes && team.nodes == 1) {
        user_error("--link: {} connects nodes, but all {} processes are on one; give --nodes, or leave it out", name,
                   team.processes);
      }
      Choice& choice = known->between_nodes ? between : within;
      if (choice.named) user_error("--link: {} names a second link of its kind; one is enough", name);
      choice.link = known;
      choice.named = true;
    } else if (const double value = gigabytes(name); value > 0) {
      Choice& choice = team.nodes > 1 ? between : within;
      if (choice.named) user_error("--link: {} names a second link of its kind; one is enough", name);
      choice.own = value;
      choice.named = true;
    } else {
      user_error("--link: expected nvlink, pcie, ib400, eth100 or GB/s, got {}", name);
    }
  }
  NetworkRates rates{.within = within.rate(1),
                     .between = between.rate(team.per_node()),
                     .hop_within = within.link->hop,
                     .hop_between = between.link->hop,
                     .start = ring_start,
                     .source = within.text() + " within a node"};
  if (team.nodes > 1) rates.source += "; " + between.text() + " between nodes";
  return rates;
}

Edge edge_of(const model::ModelConfig& config) {
  const double embedding = static_cast<double>(config.vocab) * static_cast<double>(config.hidden);
  const auto all = static_cast<double>(config.parameter_count()), layers = static_cast<double>(config.layer_count());
  const double in_layers = all - embedding * (config.tied_embeddings ? 1 : 2);
  return {.layers = config.layer_count(), .share = std::min(1.0, (embedding + in_layers / layers) / all)};
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
  const double there = pass_seconds(forward, ceilings), back = pass_seconds(backward, ceilings);
  const double optimizer = pass_seconds(update, ceilings) + update.host_bytes / ceilings.host;
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
