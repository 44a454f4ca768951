#include "ops/attention/cpu_blocks.h"

// Forward: blocks of queries against the blocks of keys they see, with a running maximum and sum per query.
namespace inlay::ops::cpu {

namespace {

// Some query heads of one key/value head times some blocks of queries of one document: they share packed keys.
struct ForwardTask {
  DocumentRange document;
  std::int64_t kv_head, first_head, last_head, first_block, last_block;  // last: exclusive
  std::int64_t cost;
};

constexpr std::int64_t states_per_task = 8, query_blocks_per_task = 4;

std::vector<ForwardTask> forward_tasks(const Geometry& g, const AttentionSpec& spec) {
  std::vector<ForwardTask> tasks;
  const std::int64_t heads_each = std::min(g.group, states_per_task);
  const std::int64_t blocks_each = std::clamp<std::int64_t>(states_per_task / heads_each, 1, query_blocks_per_task);
  for (std::int64_t index = 0; index + 1 < std::ssize(spec.host_cu_seqlens); ++index) {
    const DocumentRange document = document_at(spec, index);
    for (std::int64_t first = 0; first < document.blocks(); first += blocks_each) {
      const std::int64_t last = std::min(first + blocks_each, document.blocks());
      std::int64_t pairs = 0;
      for (std::int64_t b = first; b < last; ++b) pairs += g.last_key(b, document) - g.first_key(b);
      for (std::int64_t kv_head = 0; kv_head < g.kv_heads; ++kv_head) {
        for (std::int64_t h = 0; h < g.group; h += heads_each) {
          const std::int64_t h_end = std::min(h + heads_each, g.group);
          tasks.push_back(
              {document, kv_head, kv_head * g.group + h, kv_head * g.group + h_end, first, last, pairs * (h_end - h)});
        }
      }
    }
  }
  return tasks;
}

// One head's block of queries while its keys pass by.
template <class Tiles>
struct QueryState {
  typename Tiles::Element* q;  // B [depth, block]
  float* sums;                 // out^T before division, [rows, block]
  float* top;                  // per query: about the largest scaled score so far, in powers of two
  float* total;                // per query: the sum of 2^(score - top)
  bool begun = false;
};

// Turns the scores into probabilities relative to the running top, and rescales what was summed before.
template <class Tiles, bool masked>
void softmax_step(const Geometry& g, QueryState<Tiles>& state, typename Tiles::Element* p, const float* scores,
                  std::int64_t keys, std::int64_t queries, std::int64_t distance, float scale) {
  const f32v factor = splat(scale * log2_e);
  for (std::int64_t c = 0; c < queries; c += lanes) {
    const auto score = [&](std::int64_t r) {
      const f32v s = backend::cpu::load(scores + r * block_size + c) * factor;
      return masked ? backend::cpu::select(visible(distance + c - r, g.window), s, splat(2 * far_below)) : s;
    };
    const f32v before = backend::cpu::load(state.top + c);
    f32v even_top = before, odd_top = before;
    for (std::int64_t r = 0; r < keys; r += 2) {
      even_top = backend::cpu::maximum(even_top, score(r));
      odd_top = backend::cpu::maximum(odd_top, score(r + 1));
    }
    const f32v highest = backend::cpu::maximum(even_top, odd_top);
    // Raised only when it falls far behind: terms up to 2^8 do no harm, and what was summed before can mostly stay.
    const f32v top = backend::cpu::select(highest > before + 8.0f, highest, before);
    f32v even_sum = {}, odd_sum = {};
    for (std::int64_t r = 0; r < keys; r += 2) {
      const f32v even = exp2<Tiles::one_layout>(score(r) - top);
      const f32v odd = exp2<Tiles::one_layout>(score(r + 1) - top);
      even_sum += even;
      odd_sum += odd;
      Tiles::store_b(p, r, c, Tiles::round(even, odd));
    }
    const f32v rescale = exp2<true>(before - top);
    const f32v total = backend::cpu::load(state.total + c) * rescale + (even_sum + odd_sum);
    backend::cpu::store(state.total + c, total);
    backend::cpu::store(state.top + c, top);
    bool moved = false;
    for (std::int64_t i = 0; i < lanes; ++i) moved |= before[i] != top[i];
    if (!state.begun || !moved) continue;
    for (std::int64_t d = 0; d < g.rows; ++d) {
      float* at = state.sums + d * block_size + c;
      backend::cpu::store(at, backend::cpu::load(at) * rescale);
    }
  }
}

// out and lse of one finished block; zeros and minus infinity for queries that saw nothing.
template <class T, class Tiles>
void finish(const AttentionTensors& tensors, const QueryState<Tiles>& state, std::int64_t token, std::int64_t count,
            std::int64_t head) {
  float inverse[block_size], lse[block_size];
  for (std::int64_t c = 0; c < padded(count, lanes); c += lanes) {
    const f32v total = backend::cpu::load(state.total + c);
    const i32v seen = total > f32v{};
    backend::cpu::store(inverse + c, backend::cpu::select(seen, 1.0f / total, f32v{}));
    const f32v sum = backend::cpu::load(state.top + c) * ln_2 + log(total);
    backend::cpu::store(lse + c, backend::cpu::select(seen, sum, splat(-std::numeric_limits<float>::infinity())));
  }
  write_transposed(rows_of<T>(tensors.out, token, count, head), state.sums, inverse);
  float* to = tensors.lse.as<float>() + token * tensors.lse.stride(0) + head;
  for (std::int64_t i = 0; i < count; ++i) to[i * tensors.lse.stride(0)] = lse[i];
}

template <class Tiles>
struct Workspace {
  using Element = typename Tiles::Element;

  Workspace(TileMemory& memory, const Geometry& g) {
    const std::int64_t tile = block_size * block_size;
    const std::int64_t wide = padded(g.width, 32);  // transposed packing writes whole pairs of vectors
    scores = memory.take<float>(tile);
    p = memory.take<Element>(tile);
    k = memory.take<Element>(block_size * wide);
    v = memory.take<Element>(block_size * wide);
    for (QueryState<Tiles>& state : states) {
      state = {memory.take<Element>(wide * block_size), memory.take<float>(g.rows * block_size),
               memory.take<float>(block_size), memory.take<float>(block_size)};
    }
    if (g.rule != nullptr) strip = memory.take<f32v>(TileRule::strip_vectors(*g.rule));
  }

  float* scores;          // S^T
  Element* p;             // B: P^T
  Element *k, *v;         // A [block, depth]; A [rows, block]
  f32v* strip = nullptr;  // of a rule
  QueryState<Tiles> states[states_per_task];
};

template <class T, class Tiles>
void run_task(const Geometry& g, const TileRule* rule, const AttentionTensors& tensors, const ForwardTask& task,
              TileMemory& memory) {
  Workspace<Tiles> w(memory, g);
  const std::int64_t heads = task.last_head - task.first_head;
  const auto at = [&](std::int64_t block, std::int64_t head) -> QueryState<Tiles>& {
    return w.states[(block - task.first_block) * heads + head - task.first_head];
  };

  const typename Tiles::Scope scope;
  const DocumentRange& document = task.document;
  for (std::int64_t block = task.first_block; block < task.last_block; ++block) {
    for (std::int64_t head = task.first_head; head < task.last_head; ++head) {
      QueryState<Tiles>& state = at(block, head);
      std::fill_n(state.top, block_size, far_below);
      std::fill_n(state.total, block_size, 0.0f);
      const ConstView q = tensors.q;
      Tiles::pack_b_transposed(state.q, rows_of<T>(q, document.token(block), document.count(block), head));
    }
  }
  using Tile = Geometry::Tile;
  const bool by_head = rule != nullptr && g.rule->mask_depends_on_head();
  for (std::int64_t j = g.first_key(task.first_block); j < g.last_key(task.last_block - 1, document); ++j) {
    const std::int64_t keys = padded(document.count(j), block_step);
    bool packed = false;
    for (std::int64_t i = task.first_block; i < task.last_block; ++i) {
      const std::int64_t queries = padded(document.count(i), block_step), distance = (i - j) * block_size;
      Tile tile = Tile::empty;
      for (std::int64_t head = task.first_head; head < task.last_head; ++head) {
        if (by_head || head == task.first_head) tile = g.meeting(document, i, j, head);
        if (tile == Tile::empty) continue;
        if (!packed) {
          Tiles::pack_a(w.k, g.depth, rows_of<T>(tensors.k, document.token(j), document.count(j), task.kv_head));
          Tiles::pack_a_transposed(w.v, rows_of<T>(tensors.v, document.token(j), document.count(j), task.kv_head));
          packed = true;
        }
        QueryState<Tiles>& state = at(i, head);
        Tiles::multiply(w.scores, block_size, w.k, g.depth, state.q, block_size, keys, queries, g.depth, false);
        const bool ruled = rule != nullptr && (tile == Tile::partial || g.rule->changes_scores());
        if (ruled) {
          rule->apply(w.scores, nullptr, w.strip, g.tile_place(document, i, j, head), g.scale, tile == Tile::partial);
        }
        const bool masked = rule == nullptr && tile == Tile::partial;
        const auto step = masked ? softmax_step<Tiles, true> : softmax_step<Tiles, false>;
        step(g, state, w.p, w.scores, keys, queries, distance, ruled ? 1.0f : g.scale);
        Tiles::multiply(state.sums, block_size, w.v, block_size, w.p, block_size, g.rows, queries, keys, state.begun);
        state.begun = true;
      }
    }
  }
  for (std::int64_t block = task.first_block; block < task.last_block; ++block) {
    for (std::int64_t head = task.first_head; head < task.last_head; ++head) {
      QueryState<Tiles>& state = at(block, head);
      if (!state.begun) std::fill_n(state.sums, g.rows * block_size, 0.0f);
      finish<T>(tensors, state, document.token(block), document.count(block), head);
    }
  }
}

template <class T, class Tiles>
void forward(const AttentionTensors& tensors, const AttentionSpec& spec, View scratch) {
  const Geometry g(tensors, spec, Tiles::depth_step);
  const std::optional<TileRule> rule = tile_rule(spec);
  std::vector<ForwardTask> tasks = forward_tasks(g, spec);
  const PoolMemory memory{reinterpret_cast<std::byte*>(scratch.as<std::uint8_t>()), bytes_of<Workspace<Tiles>>(g)};
  run_tasks(tasks, memory, [&](const ForwardTask& task, TileMemory& tiles) {
    run_task<T, Tiles>(g, rule ? &*rule : nullptr, tensors, task, tiles);
  });
}

}  // namespace

std::size_t attention_forward_scratch_bytes(const AttentionTensors& tensors, const AttentionSpec& spec) {
  return with_tiles(tensors.q.dtype(), [&]<class T, class Tiles>(T, Tiles) {
    return PoolMemory::bytes(bytes_of<Workspace<Tiles>>(Geometry(tensors, spec, Tiles::depth_step)));
  });
}

void attention_forward(Exec&, const AttentionTensors& tensors, const AttentionSpec& spec, View scratch) {
  with_tiles(tensors.q.dtype(), [&]<class T, class Tiles>(T, Tiles) { forward<T, Tiles>(tensors, spec, scratch); });
}

}  // namespace inlay::ops::cpu
