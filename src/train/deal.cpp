#include "train/deal.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include "core/error.h"
#include "train/ceilings.h"

namespace inlay::train {

namespace {

// Closer than this nothing is gained by looking further.
constexpr double close_enough = 1e-3;
// Ranks that the dearest one looks at to exchange something, the cheapest first.
constexpr std::size_t most_tries = 16;

struct MicroBatch {
  std::int64_t room = 0;
  std::vector<std::size_t> items;
};

struct Rank {
  double cost = 0;
  std::vector<MicroBatch> batches;
};

// An item, and where in its rank's micro-batches it stands.
struct Held {
  double cost;
  std::size_t item, batch;
};

class DocumentDealer {
 public:
  // most: micro-batches that a rank may have.
  DocumentDealer(std::span<const DealItem> items, std::int64_t capacity, int ranks, std::size_t most)
      : items_(items), capacity_(capacity), most_(most), ranks_(static_cast<std::size_t>(ranks)) {}

  // The dearest item first, each to the rank that has least of those where it fits. False: one fitted nowhere.
  bool deal_single() {
    std::vector<std::size_t> order(items_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return items_[a].cost > items_[b].cost; });
    return deal(order, [&](std::size_t item, Rank& rank) {
      MicroBatch* batch = place_for(rank, size_of(item));
      if (batch == nullptr) return false;
      put(item, rank, *batch);
      return true;
    });
  }

  bool deal_whole(std::span<const std::size_t> batch_of) {
    std::vector<std::vector<std::size_t>> batches(batch_of.empty() ? 0 : batch_of.back() + 1);
    std::vector<double> costs(batches.size(), 0.0);
    for (std::size_t i = 0; i < items_.size(); ++i) {
      batches[batch_of[i]].push_back(i);
      costs[batch_of[i]] += items_[i].cost;
    }
    std::vector<std::size_t> order(batches.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
    return deal(order, [&](std::size_t number, Rank& rank) {
      if (rank.batches.size() == most_) return false;
      MicroBatch& batch = rank.batches.emplace_back(MicroBatch{capacity_, {}});
      for (const std::size_t item : batches[number]) put(item, rank, batch);
      return true;
    });
  }

  // The dearest rank gives an item away, or gets a cheaper one for it, as long as that makes it cheaper than it was
  // without making another one so dear. No cheaper than `enough`.
  void improve(double enough) {
    std::set<std::pair<double, std::size_t>> by_cost;
    for (std::size_t r = 0; r < ranks_.size(); ++r) by_cost.emplace(ranks_[r].cost, r);
    for (std::size_t round = 0; round < 4 * ranks_.size(); ++round) {
      const auto dearest = std::prev(by_cost.end());
      if (dearest->first <= enough) return;
      std::size_t tries = 0;
      const auto other = std::find_if(by_cost.begin(), dearest, [&](const auto& rank) {
        return ++tries <= most_tries && exchange(ranks_[dearest->second], ranks_[rank.second]);
      });
      if (other == dearest) return;
      for (const auto changed : {dearest, other}) {
        const std::size_t rank = changed->second;
        by_cost.erase(changed);
        by_cost.emplace(ranks_[rank].cost, rank);
      }
    }
  }

  Deal result() const {
    Deal deal;
    for (const Rank& rank : ranks_) {
      auto& batches = deal.ranks.emplace_back();
      for (const MicroBatch& batch : rank.batches) {
        if (batch.items.empty()) continue;
        batches.push_back(batch.items);
        std::ranges::sort(batches.back());
      }
      std::ranges::sort(batches);
      deal.costs.push_back(rank.cost);
    }
    return deal;
  }

 private:
  std::int64_t size_of(std::size_t item) const { return std::min(items_[item].size, capacity_); }

  // Offers everything, in order, to the rank that has least, then to the next.
  template <class Offer>
  bool deal(std::span<const std::size_t> order, const Offer& offer) {
    std::set<std::pair<double, std::size_t>> cheapest;
    for (std::size_t r = 0; r < ranks_.size(); ++r) cheapest.emplace(0.0, r);
    for (const std::size_t thing : order) {
      const auto taker =
          std::ranges::find_if(cheapest, [&](const auto& rank) { return offer(thing, ranks_[rank.second]); });
      if (taker == cheapest.end()) return false;
      const std::size_t rank = taker->second;
      cheapest.erase(taker);
      cheapest.emplace(ranks_[rank].cost, rank);
    }
    return true;
  }

  // The micro-batch with the least room that is enough; a new one where there is none.
  MicroBatch* place_for(Rank& rank, std::int64_t size) const {
    MicroBatch* best = nullptr;
    for (MicroBatch& batch : rank.batches) {
      if (batch.room >= size && (best == nullptr || batch.room < best->room)) best = &batch;
    }
    if (best == nullptr && rank.batches.size() < most_) {
      best = &rank.batches.emplace_back(MicroBatch{capacity_, {}});
    }
    return best;
  }

  void put(std::size_t item, Rank& rank, MicroBatch& batch) const {
    batch.items.push_back(item);
    batch.room -= size_of(item);
    rank.cost += items_[item].cost;
  }

  void take(std::size_t item, Rank& rank, MicroBatch& batch) const {
    batch.items.erase(std::ranges::find(batch.items, item));
    batch.room += size_of(item);
    rank.cost -= items_[item].cost;
  }

  std::vector<Held> held_by(const Rank& rank) const {
    std::vector<Held> held;
    for (std::size_t b = 0; b < rank.batches.size(); ++b) {
      for (const std::size_t item : rank.batches[b].items) held.push_back({items_[item].cost, item, b});
    }
    std::ranges::sort(
        held, [](const Held& a, const Held& b) { return std::pair(a.cost, a.item) < std::pair(b.cost, b.item); });
    return held;
  }

  // What brings both closest together.
  bool exchange(Rank& from, Rank& to) {
    const double gap = from.cost - to.cost;
    const std::vector<Held> gives = held_by(from), gets = held_by(to);
    const Held *given = nullptr, *gotten = nullptr;
    double least = (1 - close_enough) * gap / 2;  // distance from what would make them equal
    const auto consider = [&](double moved, const Held& give, const Held* get) {
      if (std::fabs(moved - gap / 2) >= least) return false;
      least = std::fabs(moved - gap / 2);
      given = &give;
      gotten = get;
      return true;
    };
    for (const Held& give : gives) {
      const std::int64_t size = size_of(give.item);
      const bool fits = to.batches.size() < most_ ||
                        std::ranges::any_of(to.batches, [&](const MicroBatch& b) { return b.room >= size; });
      if (fits) consider(give.cost, give, nullptr);
      const auto swaps = [&](const Held& get) {
        return to.batches[get.batch].room + size_of(get.item) >= size &&
               from.batches[give.batch].room + size >= size_of(get.item);
      };
      // Outwards from what would be right, on both sides, until one fits or others are better.
      const auto middle =
          std::ranges::lower_bound(gets, give.cost - gap / 2, {}, [](const Held& held) { return held.cost; });
      for (auto get = middle; get != gets.end() && gap / 2 - (give.cost - get->cost) < least; ++get) {
        if (swaps(*get) && consider(give.cost - get->cost, give, &*get)) break;
      }
      for (auto get = middle; get != gets.begin();) {
        --get;
        if (give.cost - get->cost - gap / 2 >= least) break;
        if (swaps(*get) && consider(give.cost - get->cost, give, &*get)) break;
      }
    }
    if (given == nullptr) return false;
    take(given->item, from, from.batches[given->batch]);
    if (gotten == nullptr) {
      put(given->item, to, *place_for(to, size_of(given->item)));
    } else {
      take(gotten->item, to, to.batches[gotten->batch]);
      put(gotten->item, from, from.batches[given->batch]);
      put(given->item, to, to.batches[gotten->batch]);
    }
    return true;
  }

  std::span<const DealItem> items_;
  std::int64_t capacity_;
  std::size_t most_;
  std::vector<Rank> ranks_;
};

// Micro-batches for each rank.
std::size_t shared_by(std::size_t batches, int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  return (batches + count - 1) / count;
}

}  // namespace

DealCost deal_cost(const MemoryPlan& plan) {
  const Ceilings rates = h200_ceilings();
  const backend::Work work = plan.cost.model();
  const double tokens = (rates.product_seconds(work) + work.bytes / rates.memory) / plan.batch.tokens;
  // However few tokens a pass has, every weight is read for it: as long as the products of so many would take.
  constexpr double tokens_per_pass = 200;
  return {.token = tokens,
          .square = work.attention / rates.attention / plan.batch.squares,
          .pass = tokens_per_pass * tokens};
}

std::int64_t Deal::passes() const {
  std::size_t most = 0;
  for (const auto& batches : ranks) most = std::max(most, batches.size());
  return static_cast<std::int64_t>(most);
}

std::int64_t Deal::before(int rank) const {
  std::size_t count = 0;
  for (std::size_t r = 0; r < static_cast<std::size_t>(rank); ++r) count += ranks[r].size();
  return static_cast<std::int64_t>(count);
}

double Deal::imbalance() const {
  const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
  if (total <= 0) return 0;
  return *std::ranges::max_element(costs) * static_cast<double>(costs.size()) / total - 1;
}

Deal deal_whole(std::span<const DealItem> items, std::span<const std::size_t> batch_of, int ranks) {
  DocumentDealer dealer(items, std::numeric_limits<std::int64_t>::max(), ranks,
                        shared_by(items.empty() ? 0 : batch_of.back() + 1, ranks));
  INLAY_ASSERT(dealer.deal_whole(batch_of), "there are more micro-batches than were counted");
  return dealer.result();
}

// Items one by one come out more even, but may not fit into as few micro-batches as those that they come from, so both
// are tried; and with one micro-batch more there is room to make up for squares with tokens.
Deal deal_items(std::span<const DealItem> items, std::span<const std::size_t> batch_of, std::int64_t capacity,
                int ranks, double pass_cost) {
  INLAY_ASSERT(items.size() == batch_of.size(), "{} items, {} of them in micro-batches", items.size(), batch_of.size());
  double total = 0, dearest = 0;
  std::int64_t size = 0;
  for (const DealItem& item : items) {
    total += item.cost;
    dearest = std::max(dearest, item.cost);
    size += std::min(item.size, capacity);
  }
  const std::size_t given = shared_by(items.empty() ? 0 : batch_of.back() + 1, ranks);
  const std::size_t fewest = shared_by(static_cast<std::size_t>((size + capacity - 1) / capacity), ranks);
  const double bound = (1 + close_enough) * std::max(total / ranks, dearest);  // none comes out cheaper, nearly
  const double enough = bound + pass_cost * static_cast<double>(fewest);

  std::optional<Deal> best;
  double least = 0;
  const auto consider = [&](DocumentDealer& dealer) {
    dealer.improve(bound);
    Deal deal = dealer.result();
    const double cost = *std::ranges::max_element(deal.costs) + pass_cost * static_cast<double>(deal.passes());
    if (best && cost >= least) return;
    least = cost;
    best = std::move(deal);
  };
  for (std::size_t most = fewest; most <= given + 1 && !(best && least <= enough); ++most) {
    DocumentDealer single(items, capacity, ranks, most);
    if (single.deal_single()) consider(single);
    if (most != given || (best && least <= enough)) continue;
    DocumentDealer whole(items, capacity, ranks, most);
    INLAY_ASSERT(whole.deal_whole(batch_of), "there are more micro-batches than were counted");
    consider(whole);
  }
  return *best;
}

}  // namespace inlay::train
