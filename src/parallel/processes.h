#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "parallel/communicator.h"

// How the processes of a run find each other, where each of them works, and how they end. What starts them is mpirun or
// srun; they are told apart by what these leave in the environment.
namespace inlay::parallel {

struct Place {
  int rank = 0, size = 1;
};
Place place_in_environment();
// UserError, with what to use instead, where something that is not MPI has started several processes.
void refuse_other_launchers();

// Among the processes that were started together, exchanging what is in host memory; alone, without MPI, where there is
// one. Called once.
std::shared_ptr<Communicator> join_processes();
// Puts each process to its GPU and to cores of its own, as far as whoever started it has not done so, and gives what
// exchanges tensors of that device, in one order wherever that is asked for. Says through `note` what the user may want
// to change.
std::shared_ptr<Communicator> take_places(const std::shared_ptr<Communicator>& world, Device device, bool deterministic,
                                          const std::function<void(std::string_view)>& note);
// Seconds after which a rank that is not heard from, or that the others wait for, ends the run.
inline constexpr double default_timeout = 600;
void set_watchdog_timeout(double seconds);

// "rank 3 on node07" once it has joined others; empty where it is alone.
std::string process_name();
// The end of a run that has come to its end on all ranks: waits for them. Nothing is exchanged afterwards.
void leave_processes();
// What a process returns that ends together with all others. Where `inlay train --processes` has started them, it is 0,
// and the code is left for it in a file: of any other mpirun says in a dozen lines that something has failed, below the
// line that says what.
int exit_code_for_launcher(int code, const Place& place);
// The end of one that has not: ends all processes. Returns where there are no others.
void abandon_processes(int exit_code);
// What says why this process alone fails, and gives the exit code: called while the exception is handled.
using LastWords = std::function<int()>;
void set_last_words(LastWords words);
// For whoever handles an exception that would have to wait on its way out, while the others wait for this process: what
// went wrong is said, this is done, and all processes end. Returns where nobody has set the words, or this one is
// alone.
void fail_alone(const std::function<void()>& before_the_end);

// Whether all ranks have the same under each name. Otherwise a UserError on all of them that names a rank which has
// something else than most, and the first line in which it differs.
using Facts = std::vector<std::pair<std::string, std::string>>;
void agree_on(Communicator& communicator, const Facts& facts);

}  // namespace inlay::parallel
