#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "io/safetensors_writer.h"
#include "parallel/communicator.h"

// How the ranks of a run write files together, and learn of each other's errors. In a run of one process all of it is
// plain writing.
namespace inlay::train {

using parallel::Communicator;

// A trained tensor holds infinities or NaN, or numbers that are too large for the dtype it is written in.
class NotFinite : public UserError {
 public:
  using UserError::UserError;
};

// As parallel::together, where errors of these kinds, which somebody treats in their own way, stay what they are: on
// all ranks.
template <class... Kinds>
void together_as(Communicator& ranks, std::string_view what, const std::function<void()>& work) {
  if (ranks.single()) return work();
  std::string mine;  // the number of its kind, and what it says
  parallel::together(ranks, what, [&] {
    try {
      work();
    } catch (const UserError& error) {
      char kind = '0';
      if (!((++kind, dynamic_cast<const Kinds*>(&error) != nullptr) || ...)) throw;
      mine = fmt::format("{}{}", kind, error.what());
    }
  });
  for (const std::string& error : ranks.exchange(mine, what)) {
    char kind = '0';
    const auto raise = [&]<class Kind>() {
      if (!error.empty() && error[0] == ++kind) throw Kind(error.substr(1));
    };
    (raise.template operator()<Kinds>(), ...);
  }
}

// Work that the leader does for all; what goes wrong with it goes wrong for all.
void by_leader(Communicator& ranks, std::string_view what, const std::function<void()>& work);

// Deals work to ranks, each piece to the one that has least. The same on every rank, without asking the others.
class Dealer {
 public:
  explicit Dealer(const Communicator& ranks);
  int next(std::uint64_t amount);  // the rank that gets this
  bool mine(std::uint64_t amount) { return next(amount) == rank_; }

 private:
  int rank_;
  std::vector<std::uint64_t> loads_;
};

// Which rank reads which file, so that all have about as much to read.
std::vector<int> deal_files(Communicator& ranks, const std::filesystem::path& folder,
                            const std::vector<std::string>& names);

// What was written to a folder. Of files that many ranks wrote nobody knows the sum before it was read back; of others
// the leader does.
struct SavedFiles {
  io::FileSums sums;
  std::vector<std::string> unsummed;

  void add(const SavedFiles& more);
};
// All sums, on every rank where the leader's are: files are dealt to ranks, which read them from disk.
io::FileSums sums_of(Communicator& ranks, const std::filesystem::path& folder, const SavedFiles& files);

inline io::Writers writers_of(const Communicator& ranks) {
  return ranks.single() ? io::Writers::one : io::Writers::many;
}
// Writer: SafetensorsWriter or ShardedWriter, made for writers_of(). Its files are made by the leader, write() writes
// this rank's bytes, and all is on disk at the end.
template <class Writer>
SavedFiles write_together(Communicator& ranks, Writer& writer, const std::function<void()>& write) {
  if (!ranks.single()) by_leader(ranks, "making files", [&] { writer.create(); });
  together_as<NotFinite>(ranks, "writing files", [&] {
    write();
    writer.finish();
  });
  if (ranks.single()) return {writer.sums(), {}};
  const auto mine = static_cast<double>(writer.written_bytes()), all = static_cast<double>(writer.tensor_bytes());
  const double written = ranks.sum({&mine, 1}, "bytes written")[0];
  INLAY_ASSERT(written == all, "{} of {} bytes were written to {}", written, all, writer.files().front());
  return {{}, writer.files()};
}

}  // namespace inlay::train
