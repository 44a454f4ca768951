#include "train/memory.h"

#include <algorithm>
#include <fstream>

#include "backend/cuda/context.h"
#include "train/step_time.h"

namespace inlay::train {

namespace {

using model::ActivationPolicy;

// Below the first, a product of a tile's rows no longer fills a large device.
constexpr std::int64_t good_tiles[] = {0, 32768, 16384, 8192};
constexpr std::int64_t small_tiles[] = {4096, 2048, 1024, 512};
// Rows of logits where there is no room for what the loss would choose. Every chunk passes over the head's gradient.
constexpr std::int64_t small_chunks[] = {1024, 256};

class Search {
 public:
  Search(const model::ModelConfig& config, const EngineOptions& options, const MemoryDemands& demands,
         const MemoryBudget& budget)
      : config_(config), options_(options), demands_(demands), budget_(budget) {
    for (const std::string_view rung : ActivationPolicy::ladder()) {
      // The CPU's host is the device: moving would only copy.
      const ActivationPolicy policy = ActivationPolicy::parse(rung);
      if (options.device == Device::cpu && policy.offloads()) continue;
      rungs_.push_back(policy);
    }
    if (demands.policy) rungs_ = {*demands.policy};
  }

  // Whether run() would find anything, without the search for the best.
  bool possible() {
    const std::int64_t tile = demands_.mlp_tile.value_or(std::end(small_tiles)[-1]);
    options_.loss.chunk = chunks().back();
    const auto with_layers = [&](const ActivationPolicy& policy) {
      options_.host_layers = demands_.host_layers.value_or(0);
      if (try_plan(policy, tile)) return true;
      if (demands_.host_layers || !options_.training) return false;
      options_.host_layers = fewest_layers([&] { try_plan(policy, tile); });
      return options_.host_layers > 0 && try_plan(policy, tile);
    };
    // What needs the least of the device first: that is what mostly decides.
    const std::vector<ActivationPolicy> lean = tiling_rungs();
    if (std::any_of(lean.rbegin(), lean.rend(), with_layers)) return true;
    if (!may_spill()) return false;
    options_.spill_folder = budget_.disk;
    return with_layers(demands_.policy.value_or(ActivationPolicy::parse("offload")));
  }

  MemoryChoice run(EngineOptions& chosen) {
    MemoryChoice result = with_chunks([&] { return try_layers(demands_.host_layers.value_or(0)); });
    if (result.fits) move_gate_and_up(result);
    if (!result.fits && !demands_.host_layers && options_.training)
      result = with_chunks([&] { return search_layers(); });
    if (!result.fits && may_spill()) result = with_chunks([&] { return try_disk(); });
    if (!result.fits) result.reason = advice(result.plan);
    chosen = options_;
    return result;
  }

 private:
  // What is taken off the device may go to a disk.
  bool may_spill() const { return !budget_.disk.empty() && (!demands_.policy || demands_.policy->offloads()); }

  // Chunks of logits to try, the best first; 0 is the loss's own choice.
  std::vector<std::int64_t> chunks() const {
    if (demands_.loss_chunk) return {*demands_.loss_chunk};
    const std::int64_t chosen =
        ops::loss_chunk_rows(options_.device, options_.compute, config_.vocab, options_.max_tokens, 0);
    std::vector<std::int64_t> result = {0};
    for (const std::int64_t chunk : small_chunks) {
      if (chunk < chosen) result.push_back(chunk);
    }
    return result;
  }

  // The first chunk with which the attempt succeeds; where none does, the last attempt.
  template <class Attempt>
  MemoryChoice with_chunks(const Attempt& attempt) {
    MemoryChoice result;
    for (const std::int64_t chunk : chunks()) {
      options_.loss.chunk = chunk;
      result = attempt();
      if (!result.fits) continue;
      if (chunk > 0 && !demands_.loss_chunk) result.reason += "; few rows of logits at once, so that it fits";
      return result;
    }
    return result;
  }

  bool fits(const MemoryPlan& plan) const {
    if (options_.device == Device::cpu) return plan.device_peak + plan.host_peak <= budget_.device;
    return plan.device_peak <= budget_.device && plan.host_peak <= budget_.host;
  }

  bool try_plan(const ActivationPolicy& policy, std::int64_t tile) {
    options_.policy = policy;
    options_.mlp_tile = tile;
    plan_ = Engine::plan(config_, options_);
    return fits(plan_);
  }

  template <std::size_t N>
  bool try_tiles(const ActivationPolicy& policy, const std::int64_t (&tiles)[N]) {
    if (demands_.mlp_tile) return try_plan(policy, *demands_.mlp_tile);
    bool tried = false;
    for (const std::int64_t tile : tiles) {
      if (tile >= options_.max_tokens) continue;
      if (try_plan(policy, tile)) return true;
      tried = true;
    }
    return !tried && try_plan(policy, 0);  // a batch smaller than any tile
  }

  // The first rung that fits, with its largest tile; then as many layers as possible on the rung above.
  MemoryChoice try_layers(std::int64_t host_layers) {
    options_.host_layers = host_layers;
    for (std::size_t rung = 0; rung < rungs_.size(); ++rung) {
      if (!try_tiles(rungs_[rung], good_tiles)) continue;
      const std::string reason =
          rung == 0 ? std::string("everything fits") : fmt::format("{} does not fit", rungs_[rung - 1].str());
      if (rung > 0) climb(rungs_[rung], rungs_[rung - 1]);
      return {.plan = plan_, .fits = true, .reason = reason};
    }
    const std::int64_t smallest = demands_.mlp_tile.value_or(std::end(small_tiles)[-1]);
    bool fit = false;
    for (const ActivationPolicy& rung : tiling_rungs()) {
      fit = try_plan(rung, smallest) && try_tiles(rung, small_tiles);
      if (fit) break;
    }
    return {.plan = plan_, .fits = fit, .reason = "the MLP's tiles are small so that it fits"};
  }

  // Gate and up are large, and cost little enough to compute again that taking them off the device pays only while the
  // link would be idle: of every layer, or of every second one. That is judged by an H200's rates, whose products are
  // fast for its link, so that every machine comes to the same, and rather computes again where it is close. Processes
  // that share a host share its memory's bandwidth, too, which is not known.
  void move_gate_and_up(MemoryChoice& found) {
    if (options_.device == Device::cpu || !options_.training || demands_.policy || options_.mesh.many()) return;
    const EngineOptions before = options_;
    const std::vector<ActivationPolicy> rungs = rungs_;
    EngineOptions best = options_;
    double least = seconds(found.plan);
    constexpr double worth_it = 0.98;
    const auto consider = [&](const MemoryChoice& other) {
      const double needed = other.fits ? seconds(other.plan) : least;
      if (needed >= worth_it * least) return;
      least = needed / worth_it;
      found.plan = other.plan;
      found.reason += "; gate and up wait on the host while the link has time for them";
      best = options_;
    };
    for (const char* half : {"_half", ""}) {
      options_ = before;
      for (ActivationPolicy& rung : rungs_) {
        if (rung.str() == "recompute_mlp") rung = ActivationPolicy::parse(fmt::format("offload_mlp{}", half));
      }
      consider(try_layers(before.host_layers));
      rungs_ = {ActivationPolicy::parse(fmt::format("offload_both{}", half))};
      consider(try_layers(before.host_layers));
      rungs_ = rungs;
    }
    options_ = best;
  }

  double seconds(const MemoryPlan& plan) const {
    static const Ceilings rates = h200_ceilings();
    return estimate_step(plan, 1, rates).micro_batch_seconds;
  }

  // The rungs whose memory falls with the tiles: those that make the MLP's inside again.
  std::vector<ActivationPolicy> tiling_rungs() const {
    const ActivationPolicy recompute = ActivationPolicy::parse("recompute");
    const auto from = std::find_if(rungs_.begin(), rungs_.end(),
                                   [&](const ActivationPolicy& rung) { return rung.str() == recompute.str(); });
    return from == rungs_.end() ? std::vector{rungs_.back()} : std::vector(from, rungs_.end());
  }

  // Gives the upper rung to all but the first n layers, with the smallest n that fits.
  void climb(const ActivationPolicy& lower, const ActivationPolicy& upper) {
    const std::int64_t tile = options_.mlp_tile, layers = config_.layer_count();
    const auto mixed = [&](std::int64_t n) {
      return n == layers ? lower : ActivationPolicy::parse(fmt::format("{}*{}+{}", n, lower.str(), upper.str()));
    };
    std::int64_t none = 0, all = layers;  // n = 0 does not fit, n = layers does
    while (all - none > 1) {
      const std::int64_t n = (none + all) / 2;
      (try_plan(mixed(n), tile) ? all : none) = n;
    }
    try_plan(mixed(all), tile);
  }

  // The fewest layers on the host with which the device suffices: every further one takes memory of the host that its
  // activations could have.
  MemoryChoice search_layers() {
    const std::int64_t all = fewest_layers([&] { try_tiles(leanest(), small_tiles); });
    if (all == 0) return {.plan = plan_};
    // The least that suffices leaves no room for good tiles: one layer more may.
    MemoryChoice choice;
    for (std::int64_t n = all; n <= std::min(all + 2, config_.layer_count()) && !choice.fits; ++n) {
      choice = try_layers(n);
      choice.reason = fmt::format("it does not fit with fewer than {} layers on the host", n);
    }
    return choice;
  }

  // What needs the least of the device: half of the inputs take a slab more, for less of the host.
  const ActivationPolicy& leanest() const {
    return rungs_.size() > 1 && rungs_.back().offloads() ? rungs_[rungs_.size() - 2] : rungs_.back();
  }

  // The fewest layers on the host for which the plan that make() leaves suffices for the device; 0 where none does.
  template <class Make>
  std::int64_t fewest_layers(const Make& make) {
    const auto suffices = [&](std::int64_t n) {
      options_.host_layers = n;
      make();
      return plan_.device_peak <= budget_.device;
    };
    std::int64_t none = 0, all = config_.layer_count();
    if (!suffices(all)) return 0;
    while (all - none > 1) {
      const std::int64_t n = (none + all) / 2;
      (suffices(n) ? all : none) = n;
    }
    return all;
  }

  MemoryChoice try_disk() {
    options_.spill_folder = budget_.disk;
    std::vector<std::int64_t> layers = {demands_.host_layers.value_or(0)};
    if (!demands_.host_layers && options_.training) {
      const std::int64_t fewest = fewest_layers([&] { try_tiles(ActivationPolicy::parse("offload"), small_tiles); });
      for (std::int64_t n = fewest; fewest > 0 && n <= std::min(fewest + 2, config_.layer_count()); ++n) {
        layers.push_back(n);
      }
    }
    for (const std::int64_t host_layers : layers) {
      options_.host_layers = host_layers;
      const std::vector<ActivationPolicy> wanted =
          demands_.policy
              ? std::vector{*demands_.policy}
              : std::vector{ActivationPolicy::parse("offload_attention"), ActivationPolicy::parse("offload")};
      for (const ActivationPolicy& policy : wanted) {
        if (try_tiles(policy, good_tiles) || try_tiles(policy, small_tiles)) {
          return {.plan = plan_, .fits = true, .reason = "host memory is not enough: inputs go to the disk"};
        }
      }
    }
    return {.plan = plan_};
  }

  std::string advice(const MemoryPlan& plan) const {
    std::string text = fmt::format("the run needs {} of {} memory, but only {} is free", format_bytes(plan.device_peak),
                                   name_of(options_.device), format_bytes(budget_.device));
    if (plan.host_peak > budget_.host && options_.device != Device::cpu) {
      text += fmt::format("; it needs {} of host memory, but only {} is free", format_bytes(plan.host_peak),
                          format_bytes(budget_.host));
    }
    const std::size_t activations = plan.classes[static_cast<std::size_t>(MemoryClass::activations)] +
                                    plan.classes[static_cast<std::size_t>(MemoryClass::workspace)];
    if (demands_.policy || demands_.mlp_tile || demands_.loss_chunk || demands_.host_layers) {
      text += "; set activation_policy, mlp_tile, loss.chunk and memory.host_layers to auto";
    } else if (activations > plan.device_peak / 2) {
      text += "; lower micro_batch_size or sequence_len";
    } else {
      text += "; " + demands_.lighter;
    }
    if (plan.host_peak > budget_.host && budget_.disk.empty()) text += "; or set memory.disk to a folder";
    return text;
  }

  const model::ModelConfig& config_;
  EngineOptions options_;
  const MemoryDemands& demands_;
  const MemoryBudget& budget_;
  std::vector<ActivationPolicy> rungs_;
  MemoryPlan plan_;
};

// What a control group would still give, by its folder; unlimited where it limits nothing.
std::size_t left_in_group(const std::string& folder, const char* limit_file, const char* used_file) {
  std::size_t limit = 0, used = 0;
  if (!(std::ifstream(folder + limit_file) >> limit) || !(std::ifstream(folder + used_file) >> used)) {
    return Arena::unlimited;
  }
  std::size_t cache = 0, value = 0;  // pages of files, which go when they are needed
  std::string key;
  std::ifstream stat(folder + "/memory.stat");
  while (stat >> key >> value) {
    if (key == "inactive_file" || key == "active_file") cache += value;
  }
  used -= std::min(cache, used);
  return limit > used ? limit - used : 0;
}

// The least that our control group and those around it would give: version 2, or version 1's memory controller.
std::size_t left_in_groups() {
  std::size_t left = Arena::unlimited;
  const auto climb = [&](const std::string& root, std::string path, const char* limit, const char* used) {
    for (;;) {
      left = std::min(left, left_in_group(root + path, limit, used));
      const std::size_t slash = path.rfind('/');
      if (slash == path.npos) return;
      path.resize(slash);
    }
  };
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:/path
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty()) climb("/sys/fs/cgroup", path, "/memory.max", "/memory.current");
    if (controllers == "memory") {
      climb("/sys/fs/cgroup/memory", path, "/memory.limit_in_bytes", "/memory.usage_in_bytes");
    }
  }
  return left;
}

// The least of what the system and the control groups that we run in would still give.
std::size_t available_memory() {
  std::size_t available = Arena::unlimited;
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::size_t kib = 0;
  while (meminfo >> key >> kib) {
    if (key == "MemAvailable:") available = kib * 1024;
    meminfo.ignore(64, '\n');
  }
  return std::min(available, left_in_groups());
}

}  // namespace

MemoryChoice choose_memory(const model::ModelConfig& config, EngineOptions& options, const MemoryDemands& demands,
                           const MemoryBudget& budget) {
  return Search(config, options, demands, budget).run(options);
}

std::int64_t longest_context(const model::ModelConfig& config, EngineOptions options, const MemoryDemands& demands,
                             const MemoryBudget& budget, std::int64_t most) {
  const auto fits = [&](std::int64_t tokens) {
    EngineOptions candidate = options;
    candidate.max_tokens = candidate.max_document = tokens;
    return Search(config, candidate, demands, budget).possible();
  };
  constexpr std::int64_t grain = 256;
  if (fits(most)) return most;
  std::int64_t good = 0, bad = most / grain + 1;  // in grains
  while (bad - good > 1) {
    const std::int64_t middle = (good + bad) / 2;
    (fits(middle * grain) ? good : bad) = middle;
  }
  return good * grain;
}

std::size_t memory_budget(Device device) {
  if (device == Device::cpu) return available_memory() / 10 * 9;
  // The driver fragments a little, and libraries load code lazily.
  constexpr std::size_t reserve = std::size_t{512} << 20;
  const std::size_t free = backend::cuda::device_memory();
  return free > reserve ? free - reserve : 0;
}

std::size_t host_memory_budget() { return available_memory() / 10 * 9; }

}  // namespace inlay::train
