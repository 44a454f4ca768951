#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <sstream>

#include <inlay/version.h>
#include <nlohmann/json.hpp>

#include "backend/cuda/context.h"
#include "cli/commands.h"
#include "core/arena.h"
#include "core/cache.h"
#include "core/environment.h"
#include "core/processors.h"
#include "io/free_space.h"
#include "io/paths.h"
#include "train/memory.h"

namespace inlay::cli {

namespace {

using Json = nlohmann::ordered_json;

// One thing that was looked for. What is missing says what that costs; what is not needed here is neither.
struct Finding {
  enum class State : std::uint8_t { found, missing, limits };

  std::string name;
  State state = State::found;
  std::string text;
  std::string cost = {};  // of what is missing or limits, and what helps
  Json values = {};       // for programs
};

std::string value_in(const char* file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == line.npos || !line.starts_with(key)) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == line.npos ? "" : line.substr(begin);
  }
  return {};
}

Finding processor() {
  const std::string features = value_in("/proc/cpuinfo", "Features");  // what Linux calls them on ARM
  const bool arm = !features.empty();
  const std::string flags = " " + (arm ? features : value_in("/proc/cpuinfo", "flags")) + " ";
  Json sets = Json::array();
  for (const char* set : {"sse4_2", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "asimd",
                          "asimddp", "bf16", "sve", "sve2"}) {
    if (flags.find(std::string(" ") + set + " ") != flags.npos) sets.push_back(set);
  }
  const auto has = [&](const char* set) { return std::ranges::find(sets, Json(set)) != sets.end(); };
  std::string names;
  for (const Json& set : sets) names += (names.empty() ? "" : " ") + set.get<std::string>();
  std::string model = value_in("/proc/cpuinfo", "model name");
  if (model.empty() && arm) model = "ARM64";
  Finding finding{.name = "processor",
                  .text = fmt::format("{}; {}; kernels: {}", model, names, version().kernels),
                  .values = {{"model", model}, {"instruction_sets", sets}, {"kernels", version().kernels}}};
  if (!arm && !has("avx2")) {
    finding.state = Finding::State::limits;
    finding.cost = "without AVX2 everything on the CPU takes many times as long";
  } else if (!has("amx_bf16")) {
    finding.state = Finding::State::limits;
    finding.cost =
        fmt::format("{}bf16 is no faster than fp32 on this CPU; dtype: auto takes fp32", arm ? "" : "without AMX ");
  }
  return finding;
}

Finding cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int granted = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  const long all = ::sysconf(_SC_NPROCESSORS_ONLN);
  const std::optional<double> quota = processor_quota();
  const double usable = std::min<double>(granted, quota.value_or(granted));
  Finding finding{.name = "cores",
                  .text = fmt::format("{} in the machine, {} granted by affinity, {} by quota", all, granted,
                                      quota ? fmt::format("{:g}", *quota) : "all"),
                  .values = {{"machine", all}, {"affinity", granted}, {"usable", usable}}};
  if (quota) finding.values["quota"] = *quota;
  if (usable < static_cast<double>(all)) {
    finding.state = Finding::State::limits;
    finding.cost = fmt::format("work on the CPU can use {:g} of {} cores", usable, all);
  }
  return finding;
}

Finding memory() {
  std::size_t total = 0;
  std::istringstream(value_in("/proc/meminfo", "MemTotal")) >> total;
  total *= 1024;
  const std::size_t usable = train::host_memory_budget();
  return {.name = "memory",
          .text = fmt::format("{}, of which a run would use up to {} (limited by free memory and control groups)",
                              format_bytes(total), format_bytes(usable)),
          .values = {{"bytes", total}, {"usable_bytes", usable}}};
}

// cost: where nothing can be written there.
Finding disk(const std::string& name, const std::filesystem::path& folder, const std::string& cost) {
  const std::filesystem::path there = io::nearest_existing(folder);
  const std::optional<std::uint64_t> free = io::free_space(folder);
  if (folder.empty() || !free) {
    return {.name = name, .state = Finding::State::missing, .text = "no folder", .cost = cost};
  }
  const bool is_folder = io::is_folder(there);
  if (!is_folder || ::access(there.c_str(), W_OK) != 0) {
    const std::string why = is_folder ? io::reason(errno) : there.string() + " is not a folder";
    return {.name = name,
            .state = Finding::State::missing,
            .text = fmt::format("nothing can be written to {}: {}", folder.string(), why),
            .cost = cost,
            .values = {{"folder", folder.string()}}};
  }
  return {.name = name,
          .text = fmt::format("{} free in {}", format_bytes(*free), folder.string()),
          .values = {{"folder", folder.string()}, {"free_bytes", *free}}};
}

Finding gpu() {
  using namespace backend;
  if (!cuda::built()) {
    return {.name = "GPU",
            .state = Finding::State::missing,
            .text = "this inlay was built without CUDA",
            .cost = "everything runs on the CPU; with nvcc installed, ./dev build makes one that uses GPUs"};
  }
  if (!cuda::available()) {
    const bool driver = ::dlopen("libcuda.so.1", RTLD_LAZY) != nullptr;
    return {.name = "GPU",
            .state = Finding::State::missing,
            .text = driver ? "the driver is installed, but no GPU responds (see nvidia-smi)" : "no driver, no GPU",
            .cost = "everything runs on the CPU"};
  }
  return {.name = "GPU",
          .text = fmt::format("{} of {}, {} free", cuda::device_count(), cuda::device_description(),
                              format_bytes(cuda::device_memory())),
          .values = {{"count", cuda::device_count()},
                     {"description", cuda::device_description()},
                     {"free_bytes", cuda::device_memory()}}};
}

// A library that is loaded when it is needed; cost: of its absence.
Finding library(const std::string& name, std::initializer_list<const char*> files, const std::string& cost) {
  for (const char* file : files) {
    void* const loaded = ::dlopen(file, RTLD_LAZY | RTLD_LOCAL);
    if (loaded == nullptr) continue;
    return {.name = name, .text = file, .values = {{"file", file}}};
  }
  return {.name = name, .state = Finding::State::missing, .text = "not found", .cost = cost};
}

Finding mpi() {
  std::istringstream folders(environment("PATH").value_or(""));
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = folder + "/mpirun";
    if (::access(file.c_str(), X_OK) == 0) return {.name = "MPI", .text = file, .values = {{"mpirun", file}}};
  }
  return {.name = "MPI",
          .state = Finding::State::missing,
          .text = "there is no mpirun on the PATH",
          .cost = "a run has one process, and one GPU; Debian, Ubuntu: openmpi-bin"};
}

std::vector<Finding> examine() {
  std::vector<Finding> findings = {processor(), cores(), memory(), gpu()};
  if (backend::cuda::built() && backend::cuda::available()) {
    findings.push_back(library("cuBLAS", {"libcublasLt.so.13", "libcublasLt.so.12"},
                               "nothing can be multiplied on the GPU; install NVIDIA's libcublas"));
    findings.push_back(library("cuDNN", {"libcudnn.so.9"}, "no attention on the GPU; install NVIDIA's cudnn9-cuda"));
    findings.push_back(library("NVRTC", {"libnvrtc.so.13", "libnvrtc.so.12"},
                               "no attention by rules on the GPU; install NVIDIA's cuda-nvrtc"));
    findings.push_back(
        library("NCCL", {"libnccl.so.2"}, "a run has one GPU; Debian, Ubuntu with NVIDIA's packages: libnccl2"));
  }
  findings.push_back(mpi());
  findings.push_back(disk("disk", ".", "a run whose output_dir is here cannot begin"));
  findings.push_back(disk("cache", cache_folder(),
                          "every run prepares its data and measures rates again; set HOME or XDG_CACHE_HOME"));
  return findings;
}

std::string_view name_of(Finding::State state) {
  switch (state) {
    case Finding::State::found: return "found";
    case Finding::State::missing: return "missing";
    case Finding::State::limits: return "limits";
  }
  return "?";
}

int run(bool json) {
  const std::vector<Finding> findings = examine();
  if (json) {
    const Version v = version();
    Json all = {{"version", v.number}, {"commit", v.commit}, {"compiler", v.compiler}, {"cuda", v.cuda}};
    for (const Finding& finding : findings) {
      Json entry = {{"state", name_of(finding.state)}, {"text", finding.text}};
      if (!finding.cost.empty()) entry["cost"] = finding.cost;
      entry.update(finding.values.is_null() ? Json::object() : finding.values);
      all["findings"][finding.name] = entry;
    }
    fmt::print("{}\n", all.dump());
    return 0;
  }
  fmt::print("inlay {}, commit {}\n", version().number, version().commit);
  for (const Finding& finding : findings) {
    const bool missing = finding.state == Finding::State::missing;
    fmt::print("{} {:<10} {}\n", missing ? "-" : "+", finding.name, finding.text);
    if (!finding.cost.empty()) fmt::print("  {:<10} {}\n", "", finding.cost);
  }
  return 0;
}

}  // namespace

void add_doctor(Program& program) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command =
      program.app.add_subcommand("doctor", "What this machine has for Inlay, what it lacks, and what that costs");
  command->add_flag("--json", *json, "Print one JSON object");
  command->callback([&program, json] { program.action = [json] { return run(*json); }; });
}

}  // namespace inlay::cli
