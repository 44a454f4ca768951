#include "parallel/processes.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>

#include "backend/cpu/threads.h"
#include "backend/cuda/context.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/processors.h"
#include "parallel/activity.h"
#include "parallel/host_communicator.h"
#include "parallel/load_transport.h"
#include "parallel/nccl_communicator.h"
#include "parallel/placement.h"
#include "parallel/watchdog.h"

namespace inlay::parallel {

namespace {

// MPI is one per process, and so is this.
struct Joined {
  std::shared_ptr<Transport> transport;
  std::shared_ptr<HostCommunicator> world;
  std::unique_ptr<Watchdog> watchdog;
  LastWords last_words;
};
Joined& joined() {
  static Joined process;
  return process;
}

std::optional<int> number_in_environment(std::string_view name) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [rest, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || rest != text->data() + text->size() || value < 0) {
    user_error("{} is \"{}\" in the environment, expected a number", name, *text);
  }
  return value;
}

// What makes cores and GPUs of one host known to its processes.
struct Neighbours {
  int index = 0, count = 1;
  std::unique_ptr<Transport> transport;
};

void bind_cores(const Neighbours& here, const std::vector<int>& cores, const std::string& pci,
                const std::function<void(std::string_view)>& note) {
  const auto text_of = [](const std::vector<int>& list) {
    std::string text;
    for (const int core : list) text += std::to_string(core) + ",";
    return text;
  };
  const std::vector<std::string> all = here.transport->exchange(text_of(cores));
  const bool bound = std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) != all.end();
  if (bound) {
    if (note && cores.size() == 1 && ::sysconf(_SC_NPROCESSORS_ONLN) >= 2 * here.count) {
      note("mpirun has bound each process to one core; with --bind-to none they share all of them evenly");
    }
    return backend::cpu::limit_threads(granted_processors());
  }
  const std::vector<int> near = pci.empty() ? cores : cores_near(pci, cores);
  const std::vector<std::string> sets = here.transport->exchange(text_of(near));
  const auto same = [&](auto begin, auto end) { return static_cast<int>(std::count(begin, end, text_of(near))); };
  const int sharers = same(sets.begin(), sets.end()), before = same(sets.begin(), sets.begin() + here.index);
  keep_to_cores(share_of(near, before, sharers));
  backend::cpu::limit_threads(std::max(1, static_cast<int>(near.size()) / sharers));
}

std::string bind_gpu(Communicator& world, const Neighbours& here) {
  backend::cuda::DeviceAddress address;
  int count = 0;
  together(world, "binding GPUs", [&] {
    count = backend::cuda::device_count();
    if (count == 0) user_error("device: cuda was asked for, but no GPU can be used (check nvidia-smi)");
    backend::cuda::bind_device(here.index % count);
    address = backend::cuda::device_address();
  });
  std::vector<std::string> all = here.transport->exchange(address.identity);
  std::sort(all.begin(), all.end());
  const auto distinct = std::unique(all.begin(), all.end()) - all.begin();
  together(world, "binding GPUs", [&] {
    if (distinct == here.count || environment("INLAY_SHARE_GPU") == "1") return;
    user_error("there are {} GPUs for {} processes on this host; start one process per GPU", distinct, here.count);
  });
  return address.pci;
}

// The first line in which two texts differ, as "this, not that".
std::string difference(const std::string& theirs, const std::string& most) {
  std::size_t begin = 0, at = 0;
  for (; at < std::min(theirs.size(), most.size()) && theirs[at] == most[at]; ++at) {
    if (most[at] == '\n') begin = at + 1;
  }
  const auto line = [begin](const std::string& text) {
    const std::string rest = text.substr(std::min(begin, text.size()));
    return rest.substr(0, std::min<std::size_t>(rest.find('\n'), 200));
  };
  return fmt::format("{}, not {}", line(theirs), line(most));
}

}  // namespace

Place place_in_environment() {
  for (const auto& [size, rank] :
       {std::pair{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}, {"PMI_SIZE", "PMI_RANK"}}) {
    if (const auto processes = number_in_environment(size)) {
      return {number_in_environment(rank).value_or(0), std::max(*processes, 1)};
    }
  }
  if (const auto rank = number_in_environment("PMIX_RANK")) {
    return {*rank, std::max(number_in_environment("SLURM_STEP_NUM_TASKS").value_or(1), 1)};
  }
  return {};
}

// Processes that know nothing of each other would each do the whole run, into one folder.
void refuse_other_launchers() {
  constexpr const char* instead =
      "use `mpirun -n N inlay train …`, `srun --mpi=pmix inlay train …`, or on one machine `inlay train … --processes "
      "N`";
  if (number_in_environment("WORLD_SIZE").value_or(1) > 1) {
    user_error("torchrun (WORLD_SIZE in the environment) cannot start inlay's processes; {}", instead);
  }
  if (number_in_environment("SLURM_STEP_NUM_TASKS").value_or(1) > 1) {
    user_error("srun has started several processes without telling them about each other; {}", instead);
  }
}

std::shared_ptr<Communicator> join_processes() {
  INLAY_ASSERT(joined().transport == nullptr, "this process has joined the others before");
  const Place place = place_in_environment();
  if (place.size == 1) {
    refuse_other_launchers();
    return single_process();
  }
  std::shared_ptr<Transport> transport = load_transport();
  if (transport->size() != place.size) {
    user_error(
        "{} processes were started, but {} sees {} of them: whatever started them belongs to another MPI; use the "
        "mpirun of the MPI that inlay was built with",
        place.size, transport->library(), transport->size());
  }
  Joined& process = joined();
  process.transport = transport;
  process.world =
      std::make_shared<HostCommunicator>(transport, fmt::format("rank {} on {}", transport->rank(), transport->host()));
  process.watchdog = std::make_unique<Watchdog>(transport->split(0), process.world->names(), default_timeout);
  return process.world;
}

std::shared_ptr<Communicator> take_places(const std::shared_ptr<Communicator>& world, Device device, bool deterministic,
                                          const std::function<void(std::string_view)>& note) {
  const std::shared_ptr<HostCommunicator> host = joined().world;
  if (host == nullptr) return world;
  Neighbours here{.transport = joined().transport->on_this_host()};
  here.index = here.transport->rank();
  here.count = here.transport->size();
  const std::vector<int> cores = allowed_cores();
  const std::string pci = device == Device::cuda ? bind_gpu(*world, here) : std::string();
  bind_cores(here, cores, pci, note);
  if (device == Device::cpu) return world;
  // NCCL chooses by the sizes of messages and by what lies between the GPUs; around a ring, the order of sums is that
  // of the ring. Whoever has chosen keeps it.
  if (deterministic) ::setenv("NCCL_ALGO", "Ring", 0);
  return nccl_communicator(host);
}

void set_watchdog_timeout(double seconds) {
  if (joined().watchdog != nullptr) joined().watchdog->set_timeout(seconds);
}

std::string process_name() {
  const Joined& process = joined();
  return process.world == nullptr ? std::string() : process.world->name_of(process.world->rank());
}

void leave_processes() {
  Joined& process = joined();
  if (process.world == nullptr) return;
  process.world->barrier("the end");
  process.watchdog.reset();
  process.world.reset();
  process.transport->finish();
}

int exit_code_for_launcher(int code, const Place& place) {
  const auto file = environment("INLAY_EXIT_CODE_FILE");
  if (code == 0 || place.size == 1 || !file) return code;
  if (place.rank > 0) return 0;
  std::ofstream stream(*file);
  stream << code << std::flush;
  return stream ? 0 : code;
}

void abandon_processes(int exit_code) {
  if (joined().world != nullptr) joined().transport->abort(exit_code);
}

void set_last_words(LastWords words) { joined().last_words = std::move(words); }

void fail_alone(const std::function<void()>& before_the_end) {
  const Joined& process = joined();
  if (process.world == nullptr || !process.last_words) return;
  const int code = process.last_words();
  before_the_end();
  abandon_processes(code);
}

void agree_on(Communicator& communicator, const Facts& facts) {
  for (const auto& [name, value] : facts) {
    const std::vector<std::string> all = communicator.exchange(value, "comparing " + name);
    std::map<std::string_view, int> votes;
    for (const std::string& one : all) ++votes[one];
    if (votes.size() == 1) continue;
    // Rank 0's, where as many have it as anything else.
    std::string_view most = all.front();
    for (const auto& [one, count] : votes) {
      if (count > votes[most]) most = one;
    }
    const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& one) { return one != most; });
    throw SharedError(fmt::format("{} has a different {} from most: {}",
                                  communicator.name_of(static_cast<int>(other - all.begin())), name,
                                  difference(*other, std::string(most))));
  }
}

}  // namespace inlay::parallel
