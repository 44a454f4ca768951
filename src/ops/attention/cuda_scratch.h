#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

// How much memory attention's backward pass wants on a GPU. Compiled without CUDA too: a plan needs no GPU. The figures
// of cuDNN are those of its 9.14 on Hopper, checked plan by plan; a graph that wants more is reported, not squeezed in.
namespace inlay::ops::cuda {

constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

// To an eighth of a power of two (at least 512): few distinct values, and at most an eighth too many.
constexpr std::int64_t round_up_coarsely(std::int64_t value) {
  const std::int64_t step = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(value))) / 8;
  return round_up(value, std::max<std::int64_t>(step, 512));
}

struct AttentionHeads {
  std::int64_t heads = 0, kv_heads = 0, head_size = 0;

  constexpr std::int64_t group() const { return heads / kv_heads; }
  constexpr AttentionHeads part(std::int64_t kv_heads_of_part) const {
    return {group() * kv_heads_of_part, kv_heads_of_part, head_size};
  }
};

// How the documents of a batch are told to cuDNN.
struct AttentionLayout {
  bool ragged = false;
  std::int64_t documents = 0;  // ragged: rounded up to a power of two
  std::int64_t length = 0;     // ragged: rounded up to a power of two
  std::int64_t tokens = 0;     // the batch's own
  std::int64_t longest = 0;    // the longest document's own length
};

// cuDNN's workspace for the backward pass of some heads.
constexpr std::size_t cudnn_backward_bytes(const AttentionLayout& layout, const AttentionHeads& part,
                                           bool deterministic, std::int64_t lse_stride) {
  const bool grouped = part.group() > 1;
  const std::int64_t width = part.heads * part.head_size;
  // Sums of dq in fp32 (the deterministic variant keeps a whole matrix of score gradients instead), dk and dv of every
  // query head, and a number for every row.
  std::int64_t bytes = 0;
  if (layout.ragged && part.head_size % 16 == 0) {
    const std::int64_t tokens = round_up_coarsely(layout.tokens);
    bytes = tokens * (width * ((deterministic ? 0 : 4) + (grouped ? 8 : 0)) + lse_stride * 4);
  } else {
    const std::int64_t tokens = layout.documents * layout.length;
    bytes = tokens * (width * ((deterministic ? 0 : 4) + (grouped ? 4 : 0)) + part.heads * 4);
  }
  if (deterministic) {
    bytes += layout.documents * part.heads * round_up(layout.length, 64) * round_up(layout.length, 128) * 2;
  }
  return static_cast<std::size_t>(bytes + 1024 * layout.documents + 8192);
}

// What our side puts into scratch beside that: for documents of one length, the log-sum-exp as cuDNN reads it;
// otherwise the documents' lengths and offsets, and packed copies of the part's queries, keys, values and their
// gradients.
constexpr std::size_t backward_staging_bytes(const AttentionLayout& layout, const AttentionHeads& all,
                                             const AttentionHeads& part) {
  constexpr std::int64_t margin = 12 * 256;  // of alignment
  if (!layout.ragged) return static_cast<std::size_t>(layout.tokens * all.heads * 4 + margin);
  const std::int64_t index = (layout.documents + 1) * (4 + 9 * 8);
  return static_cast<std::size_t>(
      2 * round_up_coarsely(layout.tokens) * (part.heads + 2 * part.kv_heads) * part.head_size * 2 + index + margin);
}

// The most key heads whose backward pass fits into the bytes, or 0. Fewer heads at a time want less memory; the work is
// the same, in more launches.
constexpr std::int64_t kv_heads_that_fit(const AttentionLayout& layout, const AttentionHeads& all, bool deterministic,
                                         std::int64_t lse_stride, std::size_t bytes) {
  for (std::int64_t count = all.kv_heads; count >= 1; --count) {
    if (all.kv_heads % count != 0) continue;
    const AttentionHeads part = all.part(count);
    const std::size_t wanted =
        cudnn_backward_bytes(layout, part, deterministic, lse_stride) + backward_staging_bytes(layout, all, part);
    if (wanted <= bytes) return count;
  }
  return 0;
}

// Scratch of the whole op, for any division of the tokens into documents: room for all heads of one long document at
// once. Ragged documents want more, and have it while that is little; else they go some heads at a time. So does the
// deterministic variant, whose matrix is quadratic in the length; it has room for one key head as long as that is not
// too much. `cudnn` is false where only our own kernel will do, which wants a number a row.
constexpr std::size_t attention_backward_scratch_bytes(std::int64_t tokens, const AttentionHeads& all, bool cudnn,
                                                       bool deterministic) {
  constexpr std::size_t little = std::size_t{256} << 20, too_much = std::size_t{4} << 30;
  const auto rows = static_cast<std::size_t>(tokens * all.heads * 4 + 1024);
  if (!cudnn) return rows;
  const AttentionLayout dense{.documents = 1, .length = round_up(tokens, 128), .tokens = tokens, .longest = tokens};
  AttentionLayout ragged = dense;
  ragged.ragged = true;
  const auto wanted = [&](const AttentionLayout& layout, const AttentionHeads& part, bool fixed_order) {
    return cudnn_backward_bytes(layout, part, fixed_order, all.heads) + backward_staging_bytes(layout, all, part);
  };
  std::size_t bytes = std::max({rows, wanted(dense, all, false), wanted(ragged, all.part(1), false),
                                std::min(wanted(ragged, all, false), little)});
  if (deterministic) {
    const std::size_t one = wanted(dense, all.part(1), true);
    bytes = std::max({bytes, std::min(wanted(dense, all, true), little), one <= too_much ? one : 0});
  }
  return bytes + (std::size_t{1} << 20);  // for some thousand documents
}

// The forward pass wants the documents' lengths and offsets, and a few hundred bytes a document.
constexpr std::size_t forward_bytes(const AttentionLayout& layout) {
  return static_cast<std::size_t>(layout.ragged ? (layout.documents + 1) * (4 + 9 * 8 + 512) + 8192 : 8192);
}

}  // namespace inlay::ops::cuda
