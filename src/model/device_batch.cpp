#include "model/device_batch.h"

#include <algorithm>
#include <numeric>

namespace inlay::model {

namespace {

View upload_indices(Exec& exec, std::string_view name, const std::vector<std::int32_t>& values, std::int64_t capacity) {
  View slab = exec.arena().keep(MemoryClass::batch, name, DType::i32, {capacity});
  View view = slab.slice_rows(0, static_cast<std::int64_t>(values.size()));
  exec.upload(view, values.data());
  return view;
}

}  // namespace

DeviceBatch upload(Exec& exec, const PackedBatch& batch) {
  const std::int64_t tokens = batch.token_count();

  // Positions by token id, stable: equal tokens stay in order of position.
  std::vector<std::int32_t> order(static_cast<std::size_t>(tokens));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return batch.tokens[static_cast<std::size_t>(a)] < batch.tokens[static_cast<std::size_t>(b)];
  });
  std::vector<std::int32_t> starts, ids;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int32_t id = batch.tokens[static_cast<std::size_t>(order[i])];
    if (!ids.empty() && ids.back() == id) continue;
    starts.push_back(static_cast<std::int32_t>(i));
    ids.push_back(id);
  }
  starts.push_back(static_cast<std::int32_t>(tokens));

  // Slabs are as large as the number of tokens can make them, so that the plan holds for any batch of that size.
  DeviceBatch result;
  result.tokens = upload_indices(exec, "batch.tokens", batch.tokens, tokens);
  result.targets = upload_indices(exec, "batch.targets", batch.targets, tokens);
  result.positions = upload_indices(exec, "batch.positions", batch.positions, tokens);
  result.cu_seqlens = upload_indices(exec, "batch.cu_seqlens", batch.cu_seqlens, tokens + 1);
  result.valid_rows = upload_indices(exec, "batch.valid_rows", batch.valid_rows, tokens);
  result.token_groups.order = upload_indices(exec, "batch.token_order", order, tokens);
  result.token_groups.starts = upload_indices(exec, "batch.token_starts", starts, tokens + 1);
  result.token_groups.ids = upload_indices(exec, "batch.token_ids", ids, tokens);
  result.host_cu_seqlens = batch.cu_seqlens;
  result.token_count = tokens;
  result.valid_count = batch.valid_count();
  return result;
}

}  // namespace inlay::model
