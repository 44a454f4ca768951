#include "train/measured_network.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>

#include <nlohmann/json.hpp>

#include "backend/cuda/context.h"
#include "core/error.h"
#include "io/file.h"
#include "train/ceilings.h"

namespace inlay::train {

namespace {

constexpr int rings_version = 1;  // of the file; what a file of another version says is not known to be comparable

std::string network_of(Device device) { return "network of " + machine_name(device); }

// A positive number, no larger than a machine of any kind has it, or nothing.
double positive(const nlohmann::json& json, const char* name, double largest) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number()) return 0;
  const auto value = found->get<double>();
  return value > 0 && value <= largest ? value : 0;
}

bool whole_ring(const MeasuredRing& ring) {
  return ring.rate > 0 && ring.processes > 1 && ring.nodes > 0 && ring.processes % ring.nodes == 0 && ring.bytes > 0 &&
         ring.iterations > 0;
}

// A damaged entry says nothing.
std::vector<MeasuredRing> read_rings(const std::filesystem::path& file, const std::string& network) {
  std::ifstream stream(file);
  if (!stream) return {};
  const auto json = nlohmann::json::parse(stream, nullptr, false);
  if (!json.is_object() || json.value("version", nlohmann::json()) != rings_version ||
      json.value("machine", nlohmann::json()) != network || !json.value("rings", nlohmann::json()).is_array()) {
    return {};
  }
  std::vector<MeasuredRing> rings;
  for (const nlohmann::json& entry : json["rings"]) {
    if (!entry.is_object()) continue;
    constexpr double most = 1e9, most_bytes = 1e18;
    const MeasuredRing ring = {.rate = positive(entry, "bytes_per_s", most_bytes),
                               .processes = static_cast<int>(positive(entry, "processes", most)),
                               .nodes = static_cast<int>(positive(entry, "nodes", most)),
                               .bytes = static_cast<std::int64_t>(positive(entry, "bytes", most_bytes)),
                               .iterations = static_cast<int>(positive(entry, "iterations", most))};
    if (whole_ring(ring)) rings.push_back(ring);
  }
  return rings;
}

// Of those that fit, the one that is nearest by a number.
const MeasuredRing* nearest(std::span<const MeasuredRing> rings, const std::function<bool(const MeasuredRing&)>& fits,
                            int MeasuredRing::*number, int wanted) {
  const MeasuredRing* best = nullptr;
  for (const MeasuredRing& ring : rings) {
    if (!fits(ring)) continue;
    if (best == nullptr || std::abs(ring.*number - wanted) < std::abs(best->*number - wanted)) best = &ring;
  }
  return best;
}

}  // namespace

std::vector<MeasuredRing> kept_rings(Device device) {
  if (device == Device::cuda && !backend::cuda::available()) return {};
  const std::filesystem::path file = ceilings_file(network_of(device));
  return file.empty() ? std::vector<MeasuredRing>() : read_rings(file, network_of(device));
}

bool keep_ring(Device device, const MeasuredRing& ring) {
  INLAY_ASSERT(whole_ring(ring), "a ring that was not measured");
  const std::filesystem::path file = ceilings_file(network_of(device));
  if (file.empty()) return false;
  std::vector<MeasuredRing> rings = read_rings(file, network_of(device));
  const auto same = std::ranges::find_if(
      rings, [&](const MeasuredRing& other) { return other.processes == ring.processes && other.nodes == ring.nodes; });
  if (same == rings.end()) {
    rings.push_back(ring);
  } else if (same->bytes > ring.bytes || same->iterations > ring.iterations) {
    return false;
  } else {
    *same = ring;
  }
  nlohmann::ordered_json json = {
      {"version", rings_version}, {"machine", network_of(device)}, {"rings", nlohmann::ordered_json::array()}};
  for (const MeasuredRing& one : rings) {
    json["rings"].push_back({{"processes", one.processes},
                             {"nodes", one.nodes},
                             {"bytes", one.bytes},
                             {"iterations", one.iterations},
                             {"bytes_per_s", one.rate}});
  }
  std::error_code ignored;
  std::filesystem::create_directories(file.parent_path(), ignored);
  try {
    io::write_file_atomic(file, json.dump(2) + "\n");
  } catch (const UserError&) {  // then plans know nothing of it
    return false;
  }
  return true;
}

const MeasuredRing* ring_within(std::span<const MeasuredRing> rings, int per_node) {
  return nearest(
      rings, [](const MeasuredRing& ring) { return ring.nodes == 1; }, &MeasuredRing::processes, per_node);
}

const MeasuredRing* ring_between(std::span<const MeasuredRing> rings, int per_node, int nodes) {
  return nearest(
      rings, [&](const MeasuredRing& ring) { return ring.nodes > 1 && ring.per_node() == per_node; },
      &MeasuredRing::nodes, nodes);
}

}  // namespace inlay::train
