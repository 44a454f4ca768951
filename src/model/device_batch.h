#pragma once

#include <cstdint>
#include <vector>

#include "backend/exec.h"
#include "core/batch.h"
#include "ops/embedding.h"

namespace inlay::model {

using backend::Exec;

// A packed batch where the kernels can read it. Everything a kernel would need a sort or a count for is prepared here,
// on the host, so that nothing inside a step waits for the device.
struct DeviceBatch {
  ConstView tokens, targets, positions, cu_seqlens, valid_rows;
  ConstView prefix_lengths;            // int32 [documents]: PackedBatch::prefix_lengths
  ConstView weights;                   // fp32, of the targets; absent: all of them are 1
  ConstView roles, reference;          // int32 and fp32 [sequences], where preferences are learned
  ConstView kept_ids, kept_log_probs;  // int32 and fp32 [T, K]: PackedBatch::Kept
  ops::TokenGroups token_groups;
  std::vector<std::int32_t> host_cu_seqlens;
  std::int64_t token_count = 0, valid_count = 0;
};

// Takes memory from the bottom of the arena; the caller releases it to the mark from before. Where long_row > 0, the
// positions of documents of more tokens than that count from long_row on (model/rope_table.h).
DeviceBatch upload(Exec& exec, const PackedBatch& batch, std::int64_t long_row = 0);

}  // namespace inlay::model
