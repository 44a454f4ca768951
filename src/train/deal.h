#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/engine.h"

// Which rank computes which documents of a step, so that all of them finish together. The same on every rank, without
// asking the others.
namespace inlay::train {

// What work costs, in whatever unit: a document by its tokens, and its attention by their square; a pass over the model
// in itself, however little it holds.
struct DealCost {
  double token = 1, square = 0, pass = 0;

  double of(std::int64_t length) const {
    const auto tokens = static_cast<double>(length);
    return token * tokens + square * tokens * tokens;
  }
};
// As a plan counts it, at the rates of one kind of GPU: rates that every rank measured would differ.
DealCost deal_cost(const MemoryPlan& plan);

// A document: what it takes of a micro-batch, and what it costs.
struct DealItem {
  std::int64_t size = 0;
  double cost = 0;
};

struct Deal {
  std::vector<std::vector<std::vector<std::size_t>>> ranks;  // items of each micro-batch of each rank; all ascending
  std::vector<double> costs;                                 // of each rank

  std::int64_t passes() const;          // of the rank that has most micro-batches
  std::int64_t before(int rank) const;  // micro-batches of the ranks before it
  double imbalance() const;             // the dearest rank's cost over the mean, less one
};

// Deals items to ranks, in micro-batches that hold `capacity` at most; an item that is larger has one for itself. Given
// are micro-batches that they fit into: item i stands in `batch_of[i]`, which ascends from 0. What is least is the cost
// of the dearest rank and of the passes of the rank that has most.
Deal deal_items(std::span<const DealItem> items, std::span<const std::size_t> batch_of, std::int64_t capacity,
                int ranks, double pass_cost);
// The same with the micro-batches left as they are.
Deal deal_whole(std::span<const DealItem> items, std::span<const std::size_t> batch_of, int ranks);

}  // namespace inlay::train
