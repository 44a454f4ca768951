#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inlay::parallel {

struct Outgoing {
  int rank;
  const void* data;
  std::size_t bytes;
};
struct Incoming {
  int rank;
  void* data;
  std::size_t bytes;
};

// Bytes between the processes of a run: all that is asked of MPI. Its implementation is a library of its own
// (parallel/mpi), so that a run of one process needs no MPI. The two sides share this header and the standard library,
// nothing else. What MPI itself finds wrong ends all processes, with MPI's own words.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string host() const = 0;     // of this process
  virtual std::string library() const = 0;  // its name and version, for messages

  // What every rank has said, in the order of the ranks.
  virtual std::vector<std::string> exchange(std::string_view mine) = 0;
  // Sends and receives, all at once. What one rank sends to another arrives in the order of their lists; a piece is as
  // long on one side as on the other.
  virtual void move(std::span<const Outgoing> sends, std::span<const Incoming> receives) = 0;
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;

  // The ranks of one colour among themselves, in their order; or those of this host. Every rank calls it.
  virtual std::unique_ptr<Transport> split(int colour) = 0;
  virtual std::unique_ptr<Transport> on_this_host() = 0;

  // Short messages that nobody waits for: what was posted leaves in its time, unless much of it has not left yet; a
  // message that has come is taken.
  virtual void post(int rank, std::string_view message) = 0;
  virtual bool take(int& from, std::string& message) = 0;

  // Ends all processes of the run, with an exit code. Any thread may call it.
  virtual void abort(int code) = 0;
  // Called once at the end, by every rank, after every other Transport is gone.
  virtual void finish() = 0;
};

// What the library offers, under a name that changes with this interface. Called once per process. Where it returns
// nothing, `problem` says why.
using MakeTransport = Transport* (*)(std::string& problem);
inline constexpr const char* make_transport_name = "inlay_mpi_transport_1";

}  // namespace inlay::parallel
