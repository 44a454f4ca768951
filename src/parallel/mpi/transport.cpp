#include "parallel/transport.h"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <list>
#include <thread>

namespace inlay::parallel {

namespace {

constexpr int tensor_tag = 1, post_tag = 2;
constexpr std::size_t largest_piece = std::size_t{1} << 30;  // MPI counts in int
constexpr std::size_t most_pending_posts = 64;

// Waits without keeping a core busy for long: the threads that compute on this host need them, and ranks may be more
// than cores.
void wait_for(std::vector<MPI_Request>& requests) {
  using clock = std::chrono::steady_clock;
  const auto patience = clock::now() + std::chrono::milliseconds(5);
  for (bool patient = true;;) {
    int done = 0;
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    if (done != 0) return;
    if (patient) {
      ::sched_yield();
      patient = clock::now() < patience;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

template <class Start>
void in_pieces(std::size_t bytes, const Start& start) {
  for (std::size_t at = 0; at < bytes; at += largest_piece) {
    start(at, static_cast<int>(std::min(largest_piece, bytes - at)));
  }
}

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(MPI_Comm communicator) : communicator_(communicator) {
    MPI_Comm_rank(communicator_, &rank_);
    MPI_Comm_size(communicator_, &size_);
  }
  ~MpiTransport() override {
    int finished = 0;
    MPI_Finalized(&finished);
    if (finished == 0 && communicator_ != MPI_COMM_WORLD) MPI_Comm_free(&communicator_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::string host() const override {
    char name[MPI_MAX_PROCESSOR_NAME] = {};
    int length = 0;
    MPI_Get_processor_name(name, &length);
    return {name, static_cast<std::size_t>(length)};
  }

  std::string library() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    return std::string(text, static_cast<std::size_t>(length)).substr(0, std::string_view(text).find(','));
  }

  std::vector<std::string> exchange(std::string_view mine) override {
    const auto ranks = static_cast<std::size_t>(size_);
    const std::uint64_t bytes = mine.size();
    std::vector<std::uint64_t> sizes(ranks);
    std::vector<MPI_Request> requests(1);
    MPI_Iallgather(&bytes, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, communicator_, requests.data());
    wait_for(requests);
    std::vector<std::string> all(ranks);
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    for (int rank = 0; rank < size_; ++rank) {
      std::string& text = all[static_cast<std::size_t>(rank)];
      if (rank == rank_) {
        text = mine;
        continue;
      }
      text.resize(sizes[static_cast<std::size_t>(rank)]);
      sends.push_back({rank, mine.data(), mine.size()});
      receives.push_back({rank, text.data(), text.size()});
    }
    move(sends, receives);
    return all;
  }

  void move(std::span<const Outgoing> sends, std::span<const Incoming> receives) override {
    std::vector<MPI_Request> requests;
    const auto next = [&]() -> MPI_Request* { return &requests.emplace_back(MPI_REQUEST_NULL); };
    for (const Incoming& piece : receives) {
      in_pieces(piece.bytes, [&](std::size_t at, int count) {
        MPI_Irecv(static_cast<char*>(piece.data) + at, count, MPI_BYTE, piece.rank, tensor_tag, communicator_, next());
      });
    }
    for (const Outgoing& piece : sends) {
      in_pieces(piece.bytes, [&](std::size_t at, int count) {
        MPI_Isend(static_cast<const char*>(piece.data) + at, count, MPI_BYTE, piece.rank, tensor_tag, communicator_,
                  next());
      });
    }
    wait_for(requests);
  }

  void broadcast(void* data, std::size_t bytes, int root) override {
    in_pieces(bytes, [&](std::size_t at, int count) {
      std::vector<MPI_Request> requests(1);
      MPI_Ibcast(static_cast<char*>(data) + at, count, MPI_BYTE, root, communicator_, requests.data());
      wait_for(requests);
    });
  }

  std::unique_ptr<Transport> split(int colour) override {
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split(communicator_, colour, rank_, &part);
    return std::make_unique<MpiTransport>(part);
  }

  std::unique_ptr<Transport> on_this_host() override {
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split_type(communicator_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &part);
    return std::make_unique<MpiTransport>(part);
  }

  void post(int rank, std::string_view message) override {
    posted_.remove_if([](Post& post) {
      int left = 0;
      MPI_Test(&post.request, &left, MPI_STATUS_IGNORE);
      return left != 0;
    });
    if (posted_.size() >= most_pending_posts + static_cast<std::size_t>(size_)) return;
    Post& post = posted_.emplace_back(Post{std::string(message), MPI_REQUEST_NULL});
    MPI_Isend(post.message.data(), static_cast<int>(post.message.size()), MPI_BYTE, rank, post_tag, communicator_,
              &post.request);
  }

  bool take(int& from, std::string& message) override {
    int there = 0, count = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, post_tag, communicator_, &there, &status);
    if (there == 0) return false;
    MPI_Get_count(&status, MPI_BYTE, &count);
    from = status.MPI_SOURCE;
    message.resize(static_cast<std::size_t>(count));
    MPI_Recv(message.data(), count, MPI_BYTE, from, post_tag, communicator_, MPI_STATUS_IGNORE);
    return true;
  }

  void abort(int code) override { MPI_Abort(MPI_COMM_WORLD, code); }
  void finish() override { MPI_Finalize(); }

 private:
  struct Post {
    std::string message;
    MPI_Request request;
  };

  MPI_Comm communicator_;
  int rank_ = 0, size_ = 1;
  std::list<Post> posted_;  // a list: what is under way must not move
};

}  // namespace

}  // namespace inlay::parallel

extern "C" __attribute__((visibility("default"))) inlay::parallel::Transport* inlay_mpi_transport_1(
    std::string& problem) {
  int has = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &has);
  if (has < MPI_THREAD_MULTIPLE) {
    problem = "it was built without MPI_THREAD_MULTIPLE, which the watchdog needs";
    MPI_Finalize();
    return nullptr;
  }
  return new inlay::parallel::MpiTransport(MPI_COMM_WORLD);
}
