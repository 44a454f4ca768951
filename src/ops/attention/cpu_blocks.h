#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "backend/cpu/parallel.h"
#include "backend/cpu/threads.h"
#include "ops/attention/attention.h"
#include "ops/attention/cpu_rules.h"
#include "ops/attention/cpu_tiles.h"
#if defined(__AMX_BF16__)
#include "ops/attention/cpu_amx.h"
#endif

// What forward and backward share: how a document falls into blocks, which pairs of blocks meet, and where the tiles of
// a thread live. Blocks begin at their document's beginning, so a document's bits do not depend on its neighbours.
namespace inlay::ops::cpu {

inline constexpr float log2_e = 1.44269504f, ln_2 = 0.69314718f;

struct DocumentRange {
  std::int64_t index, begin, length;

  std::int64_t blocks() const { return (length + block_size - 1) / block_size; }
  std::int64_t count(std::int64_t block) const { return std::min(block_size, length - block * block_size); }
  std::int64_t token(std::int64_t block) const { return begin + block * block_size; }
};

inline DocumentRange document_at(const AttentionSpec& spec, std::int64_t index) {
  const auto at = static_cast<std::size_t>(index);
  return {index, spec.host_cu_seqlens[at], spec.host_cu_seqlens[at + 1] - spec.host_cu_seqlens[at]};
}

// The first block of keys that a block of queries sees; the last is the one of the same index.
inline std::int64_t first_key_block(std::int64_t query_block, std::int64_t window) {
  return std::max<std::int64_t>(query_block * block_size - window + 1, 0) / block_size;
}
// The last block of queries that sees a block of keys, within its document.
inline std::int64_t last_query_block(std::int64_t key_block, const DocumentRange& document, std::int64_t window) {
  const std::int64_t last = std::min(document.length - 1, key_block * block_size + block_size - 1 + window - 1);
  return last / block_size;
}
// Some query of the block does not see some key of the other.
inline bool needs_mask(std::int64_t query_block, std::int64_t key_block, std::int64_t window) {
  return query_block == key_block || (query_block - key_block + 1) * block_size - 1 >= window;
}

struct Geometry {
  std::int64_t tokens, heads, kv_heads, group, width;  // group: query heads to a key/value head; width: head size
  std::int64_t depth;                                  // width padded for sums over it
  std::int64_t rows;                                   // width padded to whole vectors
  std::int64_t window;
  float scale;
  const AttentionSpec& spec;
  const AttentionRule* rule;

  Geometry(const AttentionTensors& tensors, const AttentionSpec& spec, std::int64_t depth_step)
      : tokens(tensors.q.dim(0)),
        heads(tensors.q.dim(1)),
        kv_heads(tensors.k.dim(1)),
        group(heads / kv_heads),
        width(tensors.q.dim(2)),
        depth(padded(width, depth_step)),
        rows(padded(width, lanes)),
        window(spec.window == 0 ? std::numeric_limits<std::int32_t>::max()
                                : std::min<std::int64_t>(spec.window, std::numeric_limits<std::int32_t>::max())),
        scale(spec.scale),
        spec(spec),
        rule(spec.rule) {}

  using Tile = AttentionRule::Tile;
  // How a block of queries sees a block of keys.
  Tile meeting(const DocumentRange& document, std::int64_t query_block, std::int64_t key_block,
               std::int64_t head) const {
    if (rule != nullptr) return meeting_by_rule(document, query_block, key_block, head);
    if (key_block > query_block || key_block < first_key_block(query_block, window)) return Tile::empty;
    return needs_mask(query_block, key_block, window) ? Tile::partial : Tile::full;
  }
  // Blocks of keys that queries up to a block may see, and blocks of queries that may see keys of some blocks; last:
  // exclusive. A rule may let anybody see anybody.
  std::int64_t first_key(std::int64_t query_block) const {
    return rule != nullptr ? 0 : first_key_block(query_block, window);
  }
  std::int64_t last_key(std::int64_t query_block, const DocumentRange& document) const {
    return rule != nullptr ? document.blocks() : query_block + 1;
  }
  std::int64_t first_query(std::int64_t key_block) const { return rule != nullptr ? 0 : key_block; }
  std::int64_t last_query(std::int64_t key_block, const DocumentRange& document) const {
    return rule != nullptr ? document.blocks() : last_query_block(key_block, document, window) + 1;
  }

  rules::Place place(const DocumentRange& document, std::int64_t head) const {
    const auto at = [](std::int64_t x) { return static_cast<float>(x); };
    return {at(head),
            at(document.index),
            at(document.length),
            spec.prefix_lengths ? at(spec.prefix_lengths.as<std::int32_t>()[document.index]) : 0.0f,
            at(heads),
            spec.head_bias ? spec.head_bias.as<float>()[head] : 0.0f};
  }
  TilePlace tile_place(const DocumentRange& document, std::int64_t i, std::int64_t j, std::int64_t head) const {
    return {place(document, head), i * block_size, j * block_size, padded(document.count(i), block_step),
            padded(document.count(j), block_step)};
  }

 private:
  Tile meeting_by_rule(const DocumentRange& document, std::int64_t i, std::int64_t j, std::int64_t head) const {
    const auto last = [&](std::int64_t block) { return block * block_size + document.count(block) - 1; };
    const Tile tile = rule->classify(place(document, head), i * block_size, last(i), j * block_size, last(j));
    // What is padded must not be seen.
    const bool whole = document.count(i) == block_size && document.count(j) == block_size;
    return tile == Tile::full && !whole ? Tile::partial : tile;
  }
};

inline std::optional<TileRule> tile_rule(const AttentionSpec& spec) {
  return spec.rule == nullptr ? std::nullopt : std::optional<TileRule>(*spec.rule);
}

// Which queries of a vector see a key: 0 <= query - key < window. `distance` is that of the first.
inline i32v visible(std::int64_t distance, std::int64_t window) {
  return (i32v)(((u32v)backend::cpu::lane_numbers + static_cast<std::uint32_t>(distance)) <
                (u32v{} + static_cast<std::uint32_t>(window)));
}

template <class T, class Byte>  // T: the stored type
auto rows_of(const BasicView<Byte>& view, std::int64_t token, std::int64_t count, std::int64_t head) {
  auto* data = view.template as<T>();
  return HeadRows<std::remove_pointer_t<decltype(data)>>{data + token * view.stride(0) + head * view.stride(1),
                                                         view.stride(0), count, view.dim(2)};
}

template <class T>
void store_to(T* to, f32v v, std::int64_t n) {
  if (n >= lanes) {
    backend::cpu::store(to, v);
  } else {
    backend::cpu::store_some(to, v, n);
  }
}

// to[row, :] = from^T · factor[row]; from is [width, block_size].
template <class T>
void write_transposed(const HeadRows<T>& to, const float* from, const float* factor) {
  for (std::int64_t r = 0; r < to.count; r += lanes) {
    for (std::int64_t c = 0; c < to.width; c += lanes) {
      u32v v[lanes];
      for (std::int64_t i = 0; i < lanes; ++i) v[i] = (u32v)backend::cpu::load(from + (c + i) * block_size + r);
      transpose(v);
      for (std::int64_t i = 0; i < std::min(lanes, to.count - r); ++i) {
        store_to(to.data + (r + i) * to.stride + c, (f32v)v[i] * factor[r + i], to.width - c);
      }
    }
  }
}

// Memory of a thread's tiles: pieces of it are taken one after the other. Without memory it only counts.
class TileMemory {
 public:
  TileMemory() = default;
  TileMemory(std::byte* begin, std::size_t bytes) : begin_(begin), capacity_(bytes) {}

  template <class T>
  T* take(std::int64_t count) {
    T* result = begin_ == nullptr ? nullptr : reinterpret_cast<T*>(begin_ + used_);
    used_ += static_cast<std::size_t>(padded(count * static_cast<std::int64_t>(sizeof(T)), 64));
    INLAY_ASSERT(used_ <= capacity_, "attention's tiles take {} bytes of {}", used_, capacity_);
    return result;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* begin_ = nullptr;
  std::size_t capacity_ = std::numeric_limits<std::size_t>::max(), used_ = 0;
};

// What a workspace takes, which is made of such memory.
template <class Workspace>
std::size_t bytes_of(const Geometry& g) {
  TileMemory counter;
  const Workspace workspace(counter, g);
  return counter.used();
}

// The tiles of all threads, so many bytes each.
struct PoolMemory {
  std::byte* begin;
  std::size_t each;

  TileMemory of(int thread) const { return {begin + static_cast<std::size_t>(thread) * each, each}; }
  static std::size_t bytes(std::size_t each) { return each * static_cast<std::size_t>(backend::cpu::threads()); }
};

// Runs work(task, tiles) for all tasks, the dearest first, on whichever thread is free. Tasks write apart from each
// other.
template <class Task, class Work>
void run_tasks(std::vector<Task>& tasks, const PoolMemory& memory, const Work& work) {
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
  const auto count = static_cast<std::int64_t>(tasks.size());
  std::atomic<std::int64_t> next = 0;
  backend::cpu::run_team(static_cast<int>(std::min<std::int64_t>(backend::cpu::threads(), count)), [&](int thread) {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      TileMemory tiles = memory.of(thread);
      work(tasks[static_cast<std::size_t>(i)], tiles);
    }
  });
}

// Calls body with the stored type and the tiles that go with it, as arguments that only have a type.
template <class Body>
auto with_tiles(DType dtype, const Body& body) {
  if (dtype == DType::f32) return body(float{}, FloatTiles{});
#if defined(__AMX_BF16__)
  return body(bf16{}, AmxTiles{});
#else
  return body(bf16{}, FloatTiles{});
#endif
}

}  // namespace inlay::ops::cpu
