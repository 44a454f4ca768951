#include "parallel/placement.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <tuple>

#include <fmt/format.h>

namespace inlay::parallel {

namespace {

int number_in(const std::string& file) {
  int value = 0;
  std::ifstream(file) >> value;
  return value;
}

}  // namespace

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::vector<std::tuple<int, int, int>> found;  // socket, core, processor
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", cpu);
    found.emplace_back(number_in(folder + "physical_package_id"), number_in(folder + "core_id"), cpu);
  }
  std::sort(found.begin(), found.end());
  std::vector<int> cores;
  for (const auto& [socket, core, cpu] : found) cores.push_back(cpu);
  return cores;
}

std::vector<int> parse_cores(const std::string& list) {
  std::vector<int> cores;
  const char *at = list.data(), *const end = at + list.size();
  const auto number = [&](int& value) {
    const auto [rest, error] = std::from_chars(at, end, value);
    at = rest;
    return error == std::errc();
  };
  for (int first = 0, last = 0; number(first); ++at) {
    last = first;
    if (at < end && *at == '-' && (++at, !number(last))) break;
    for (int core = first; core <= last; ++core) cores.push_back(core);
    if (at >= end || *at != ',') break;
  }
  return cores;
}

std::vector<int> cores_near(const std::string& pci, std::span<const int> allowed) {
  std::string name = pci, list;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream(fmt::format("/sys/bus/pci/devices/{}/local_cpulist", name)) >> list;
  const std::vector<int> near = parse_cores(list);
  std::vector<int> both;
  std::copy_if(allowed.begin(), allowed.end(), std::back_inserter(both),
               [&](int core) { return std::find(near.begin(), near.end(), core) != near.end(); });
  return both.empty() ? std::vector<int>(allowed.begin(), allowed.end()) : both;
}

std::vector<int> share_of(std::span<const int> cores, int index, int count) {
  const std::size_t n = cores.size(), i = static_cast<std::size_t>(index), of = static_cast<std::size_t>(count);
  if (n < of) return {cores.begin(), cores.end()};
  const auto share = cores.subspan(n * i / of, n * (i + 1) / of - n * i / of);
  return {share.begin(), share.end()};
}

bool keep_to_cores(std::span<const int> cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  return ::sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace inlay::parallel
