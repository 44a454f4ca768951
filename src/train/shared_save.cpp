#include "train/shared_save.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "io/manifest.h"
#include "io/paths.h"

namespace inlay::train {

void by_leader(Communicator& ranks, std::string_view what, const std::function<void()>& work) {
  parallel::together(ranks, what, [&] {
    if (ranks.leads()) work();
  });
}

Dealer::Dealer(const Communicator& ranks) : rank_(ranks.rank()), loads_(static_cast<std::size_t>(ranks.size()), 0) {}

int Dealer::next(std::uint64_t amount) {
  const auto least = std::ranges::min_element(loads_);
  *least += amount;
  return static_cast<int>(least - loads_.begin());
}

void SavedFiles::add(const SavedFiles& more) {
  sums.insert(more.sums.begin(), more.sums.end());
  unsummed.insert(unsummed.end(), more.unsummed.begin(), more.unsummed.end());
}

namespace {

// What a rank says of things that all of them know in the same order.
template <class T>
std::string_view bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <class T>
void set_from(std::vector<T>& values, std::string_view bytes) {
  INLAY_ASSERT(bytes.size() == values.size() * sizeof(T), "ranks know of different files");
  std::memcpy(values.data(), bytes.data(), bytes.size());
}

}  // namespace

// The largest first, to the rank that has least.
std::vector<int> deal_files(Communicator& ranks, const std::filesystem::path& folder,
                            const std::vector<std::string>& names) {
  std::vector<std::uint64_t> sizes(names.size());
  by_leader(ranks, "sizes of files", [&] {
    std::ranges::transform(names, sizes.begin(),
                           [&](const std::string& name) { return io::file_bytes(folder / name); });
  });
  set_from(sizes, ranks.from_leader(bytes_of(sizes), "sizes of files"));
  std::vector<std::size_t> order(names.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return sizes[i]; });
  Dealer dealer(ranks);
  std::vector<int> readers(names.size());
  for (const std::size_t i : order) readers[i] = dealer.next(sizes[i]);
  return readers;
}

io::FileSums sums_of(Communicator& ranks, const std::filesystem::path& folder, const SavedFiles& files) {
  const std::vector<std::string>& names = files.unsummed;
  if (names.empty()) return files.sums;
  const std::vector<int> readers = deal_files(ranks, folder, names);
  std::vector<io::FileSum> sums(names.size());
  parallel::together(ranks, "checksums", [&] {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (readers[i] == ranks.rank()) sums[i] = io::sum_of(folder / names[i]);
    }
  });
  const std::vector<std::string> all = ranks.exchange(bytes_of(sums), "checksums");
  io::FileSums result = files.sums;
  for (std::size_t i = 0; i < names.size(); ++i) {
    set_from(sums, all[static_cast<std::size_t>(readers[i])]);
    result[names[i]] = sums[i];
  }
  return result;
}

}  // namespace inlay::train
