#include "model/device_batch.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

namespace inlay::model {

namespace {

// Slabs are as large as the number of tokens can make them, so that the plan holds for any batch of that size.
struct Slabs {
  Slabs(Exec& exec, std::int64_t tokens) : exec_(exec), tokens_(tokens) {}

  template <class T>
  View upload(std::string_view name, const std::vector<T>& values, std::int64_t extra = 0) {
    constexpr DType dtype = std::is_same_v<T, float> ? DType::f32 : DType::i32;
    View slab = exec_.arena().keep(MemoryClass::batch, name, dtype, {tokens_ + extra});
    View view = slab.slice_rows(0, static_cast<std::int64_t>(values.size()));
    exec_.upload(view, values.data());
    return view;
  }

 private:
  Exec& exec_;
  std::int64_t tokens_;
};

// Tokens in order of their ids, and where each id begins.
struct Groups {
  std::vector<std::int32_t> order, starts, ids;
};

Groups group(const PackedBatch& batch) {
  Groups groups;
  groups.order.resize(static_cast<std::size_t>(batch.token_count()));
  std::iota(groups.order.begin(), groups.order.end(), 0);
  // Stable: equal tokens stay in order of position.
  std::stable_sort(groups.order.begin(), groups.order.end(), [&](std::int32_t a, std::int32_t b) {
    return batch.tokens[static_cast<std::size_t>(a)] < batch.tokens[static_cast<std::size_t>(b)];
  });
  for (std::size_t i = 0; i < groups.order.size(); ++i) {
    const std::int32_t id = batch.tokens[static_cast<std::size_t>(groups.order[i])];
    if (!groups.ids.empty() && groups.ids.back() == id) continue;
    groups.starts.push_back(static_cast<std::int32_t>(i));
    groups.ids.push_back(id);
  }
  groups.starts.push_back(static_cast<std::int32_t>(batch.token_count()));
  return groups;
}

std::vector<std::int32_t> table_rows(const PackedBatch& batch, std::int64_t long_row) {
  std::vector<std::int32_t> rows = batch.positions;
  for (std::size_t d = 0; long_row > 0 && d + 1 < batch.cu_seqlens.size(); ++d) {
    const std::int32_t begin = batch.cu_seqlens[d], end = batch.cu_seqlens[d + 1];
    if (end - begin <= long_row) continue;
    for (std::int32_t i = begin; i < end; ++i) rows[static_cast<std::size_t>(i)] += static_cast<std::int32_t>(long_row);
  }
  return rows;
}

}  // namespace

DeviceBatch upload(Exec& exec, const PackedBatch& batch, std::int64_t long_row) {
  const std::int64_t tokens = batch.token_count();
  // The order decides about no byte: a plan need not sort.
  const Groups groups = exec.planning() ? Groups{batch.tokens, {0}, {}} : group(batch);
  Slabs slabs(exec, tokens);
  DeviceBatch result;
  result.tokens = slabs.upload("batch.tokens", batch.tokens);
  result.targets = slabs.upload("batch.targets", batch.targets);
  result.positions = slabs.upload("batch.positions", table_rows(batch, long_row));
  result.cu_seqlens = slabs.upload("batch.cu_seqlens", batch.cu_seqlens, 1);
  result.valid_rows = slabs.upload("batch.valid_rows", batch.valid_rows);
  result.prefix_lengths = slabs.upload("batch.prefix_lengths", batch.prefix_lengths());
  // The slab is taken in any case, so that the plan holds for batches with weights too.
  const View weights = slabs.upload("batch.weights", batch.weights);
  if (!batch.weights.empty()) result.weights = weights;
  if (!batch.roles.empty()) result.roles = slabs.upload("batch.roles", batch.roles);
  if (!batch.reference.empty()) result.reference = slabs.upload("batch.reference", batch.reference);
  if (const std::int64_t width = batch.kept.per_token; width > 0) {
    const View ids = exec.arena().keep(MemoryClass::batch, "batch.kept_ids", DType::i32, {tokens, width});
    const View log_probs = exec.arena().keep(MemoryClass::batch, "batch.kept_log_probs", DType::f32, {tokens, width});
    exec.upload(ids, batch.kept.ids.data());
    exec.upload(log_probs, batch.kept.log_probs.data());
    result.kept_ids = ids;
    result.kept_log_probs = log_probs;
  }
  result.token_groups.order = slabs.upload("batch.token_order", groups.order);
  result.token_groups.starts = slabs.upload("batch.token_starts", groups.starts, 1);
  result.token_groups.ids = slabs.upload("batch.token_ids", groups.ids);
  result.host_cu_seqlens = batch.cu_seqlens;
  result.token_count = tokens;
  result.valid_count = batch.valid_count();
  return result;
}

}  // namespace inlay::model
