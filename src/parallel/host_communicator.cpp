#include "parallel/host_communicator.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/parallel.h"
#include "core/error.h"
#include "parallel/activity.h"

namespace inlay::parallel {

namespace {

constexpr std::size_t scratch_bytes = std::size_t{16} << 20;  // of a sum's pieces, those of all ranks together

std::size_t bytes_of_row(ConstView tensor) {
  return tensor.dim(0) == 0 ? 0 : tensor.bytes() / static_cast<std::size_t>(tensor.dim(0));
}

// A part of one rank's rows of a tensor, in bytes from the tensor's beginning.
struct Part {
  std::size_t tensor, begin, bytes;
};

// A rank's rows of all tensors, in rounds of at most `limit` bytes and of whole numbers.
std::vector<std::vector<Part>> rounds_of(std::span<const CutTensor> tensors, int rank, std::size_t limit) {
  std::vector<std::vector<Part>> rounds;
  std::size_t room = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const CutTensor& t = tensors[i];
    const std::size_t row = bytes_of_row(t.whole), number = size_of(t.whole.dtype());
    std::size_t at = static_cast<std::size_t>(t.cut->begin(rank)) * row;
    const std::size_t end = static_cast<std::size_t>(t.cut->end(rank)) * row;
    while (at < end) {
      if (room < number) {
        rounds.emplace_back();
        room = limit;
      }
      const std::size_t bytes = std::min(end - at, room / number * number);
      rounds.back().push_back({i, at, bytes});
      at += bytes;
      room -= bytes;
    }
  }
  return rounds;
}

// out = inputs[0] + inputs[1] + …, from left to right.
template <class T>
void sum_in_order(T* out, std::span<const char* const> inputs, std::size_t count) {
  backend::cpu::parallel_for(static_cast<std::int64_t>(count), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t block = 1024;  // stays in the nearest cache
    T total[block];
    for (std::int64_t from = begin; from < end; from += block) {
      const std::int64_t n = std::min(block, end - from);
      std::memcpy(total, reinterpret_cast<const T*>(inputs[0]) + from, static_cast<std::size_t>(n) * sizeof(T));
      for (std::size_t i = 1; i < inputs.size(); ++i) {
        const T* input = reinterpret_cast<const T*>(inputs[i]) + from;
        for (std::int64_t j = 0; j < n; ++j) total[j] += input[j];
      }
      std::memcpy(out + from, total, static_cast<std::size_t>(n) * sizeof(T));
    }
  });
}

char* bytes_at(View tensor, std::size_t at) { return static_cast<char*>(tensor.data()) + at; }

}  // namespace

HostCommunicator::HostCommunicator(std::shared_ptr<Transport> transport, std::string name)
    : Communicator(transport->rank(), transport->size()), transport_(std::move(transport)) {
  names_ = transport_->exchange(name);
}

std::vector<std::string> HostCommunicator::exchange(std::string_view mine, std::string_view what) {
  const Activity::Wait wait(activity(), what);
  return transport_->exchange(mine);
}

std::shared_ptr<HostCommunicator> HostCommunicator::split_host(int colour) {
  const Activity::Wait wait(activity(), "dividing the ranks into groups");
  return std::make_shared<HostCommunicator>(transport_->split(colour), name_of(rank()));
}

// Every rank sends each other one the rows that this one sums.
void HostCommunicator::reduce_scatter_now(std::span<const CutTensor> tensors) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t limit = std::max<std::size_t>(scratch_bytes / ranks / 64 * 64, 4096);
  std::vector<std::vector<std::vector<Part>>> rounds(ranks);
  std::size_t most = 0;
  for (int rank = 0; rank < size(); ++rank) {
    auto& of_rank = rounds[static_cast<std::size_t>(rank)];
    of_rank = rounds_of(tensors, rank, limit);
    most = std::max(most, of_rank.size());
  }
  const auto& mine = rounds[static_cast<std::size_t>(rank())];
  std::size_t largest = 0;
  for (const auto& parts : mine) {
    std::size_t bytes = 0;
    for (const Part& part : parts) bytes += (part.bytes + 7) / 8 * 8;
    largest = std::max(largest, bytes);
  }
  std::vector<double> scratch(ranks * largest / sizeof(double));  // doubles: aligned for both dtypes
  for (std::size_t round = 0; round < most; ++round) {
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    std::vector<std::vector<const char*>> inputs(round < mine.size() ? mine[round].size() : 0);
    for (int step = 0; step < size(); ++step) {  // each begins with its neighbour: nobody is asked by all at once
      const int other = (rank() + step) % size();
      if (other == rank()) continue;
      const auto& theirs = rounds[static_cast<std::size_t>(other)];
      if (round >= theirs.size()) continue;
      for (const Part& part : theirs[round]) {
        sends.push_back({other, bytes_at(tensors[part.tensor].whole, part.begin), part.bytes});
      }
    }
    for (int other = 0; other < size() && round < mine.size(); ++other) {
      char* at = reinterpret_cast<char*>(scratch.data()) + static_cast<std::size_t>(other) * largest;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const Part& part = mine[round][i];
        if (other == rank()) {
          inputs[i].push_back(bytes_at(tensors[part.tensor].whole, part.begin));
          continue;
        }
        receives.push_back({other, at, part.bytes});
        inputs[i].push_back(at);
        at += (part.bytes + 7) / 8 * 8;
      }
    }
    transport_->move(sends, receives);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Part& part = mine[round][i];
      const CutTensor& t = tensors[part.tensor];
      char* const out =
          bytes_at(t.share, part.begin - static_cast<std::size_t>(t.cut->begin(rank())) * bytes_of_row(t.whole));
      if (t.whole.dtype() == DType::f64) {
        sum_in_order(reinterpret_cast<double*>(out), inputs[i], part.bytes / sizeof(double));
      } else {
        sum_in_order(reinterpret_cast<float*>(out), inputs[i], part.bytes / sizeof(float));
      }
    }
  }
}

void HostCommunicator::all_gather_now(std::span<const CutTensor> tensors) {
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (const CutTensor& t : tensors) {
    const std::size_t row = bytes_of_row(t.whole);
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size(), from = (rank() + size() - step) % size();
      sends.push_back({to, t.share.data(), t.share.bytes()});
      receives.push_back({from, bytes_at(t.whole, static_cast<std::size_t>(t.cut->begin(from)) * row),
                          static_cast<std::size_t>(t.cut->rows_of(from)) * row});
    }
    char* const own = bytes_at(t.whole, static_cast<std::size_t>(t.cut->begin(rank())) * row);
    if (t.share.bytes() > 0 && own != t.share.data()) std::memcpy(own, t.share.data(), t.share.bytes());
  }
  transport_->move(sends, receives);
}

void HostCommunicator::do_all_reduce(Exec&, std::span<const View> tensors, std::string_view what) {
  const Activity::Wait wait(activity(), what);
  std::vector<RowCut> cuts;
  cuts.reserve(tensors.size());
  std::vector<CutTensor> parts;
  for (const View& t : tensors) {
    const View flat = t.reshape({t.size()});
    const RowCut& cut = cuts.emplace_back(RowCut::even(t.size(), size()));
    parts.push_back({flat, flat.slice_rows(cut.begin(rank()), cut.end(rank())), &cut});
  }
  reduce_scatter_now(parts);
  all_gather_now(parts);
}

void HostCommunicator::do_reduce_scatter(Exec&, std::span<const CutTensor> tensors, std::string_view what) {
  const Activity::Wait wait(activity(), what);
  reduce_scatter_now(tensors);
}

void HostCommunicator::do_all_gather(Exec&, std::span<const CutTensor> tensors, std::string_view what) {
  const Activity::Wait wait(activity(), what);
  all_gather_now(tensors);
}

void HostCommunicator::do_broadcast(Exec&, std::span<const View> tensors, int root, std::string_view what) {
  const Activity::Wait wait(activity(), what);
  for (const View& t : tensors) transport_->broadcast(t.data(), t.bytes(), root);
}

void HostCommunicator::do_all_to_all(Exec&, View to, ConstView from, std::string_view what) {
  const Activity::Wait wait(activity(), what);
  const std::size_t bytes = to.bytes() / static_cast<std::size_t>(size());
  const char* const out = static_cast<const char*>(from.data());
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (int step = 1; step < size(); ++step) {
    const int next = (rank() + step) % size(), before = (rank() + size() - step) % size();
    sends.push_back({next, out + static_cast<std::size_t>(next) * bytes, bytes});
    receives.push_back({before, bytes_at(to, static_cast<std::size_t>(before) * bytes), bytes});
  }
  const std::size_t own = static_cast<std::size_t>(rank()) * bytes;
  if (bytes > 0) std::memcpy(bytes_at(to, own), out + own, bytes);
  transport_->move(sends, receives);
}

}  // namespace inlay::parallel
