#include <omp.h>

#include "backend/cpu/gemm.h"
#include "backend/cpu/parallel.h"
#include "ops/attention_cpu_amx.h"
#include "ops/attention_cpu_blocks.h"

// Backward: P = exp(scale · q·k − lse), dV = P^T dO, dS = P ∘ (dO V^T − delta), dQ = scale · dS K, dK = scale · dS^T Q,
// with delta = the sum of dO ∘ O over a head. Sums have one order whatever the schedule: dK and dV of a block of keys
// run over heads and then over blocks of queries, dQ of a block of queries over blocks of keys, all ascending.
namespace inlay::ops::cpu {

namespace {

constexpr std::int64_t key_blocks_at_once = 4;  // share the packing of a block of queries

struct BackwardTask {
  DocumentRange document;
  std::int64_t head;         // key/value head, or query head where only dq is computed
  std::int64_t first, last;  // blocks of keys, or of queries where only dq is computed; last: exclusive
  std::int64_t cost;
};

struct BackwardTensors {
  const AttentionGrads& grads;
  ConstView dout;
  const AttentionTensors& tensors;
  float* delta;  // [heads, tokens]
  float* dq;     // [heads, tokens, rows]: sums of dq that wait for further keys, block by block and transposed
};

template <class Tiles>
struct KeySide {
  typename Tiles::Element *k, *v;      // A [block, depth]
  typename Tiles::Element* k_columns;  // A [rows, block]
  float *dk, *dv;                      // [block, rows]
  bool begun = false;                  // dk and dv hold something
};

template <class Tiles>
struct QuerySide {
  typename Tiles::Element *q_columns, *dout_columns;  // B [depth, block]
  typename Tiles::Element *q, *dout;                  // B [block, rows]
  float *lse, *delta;                                 // lse in powers of two
  float* dq;                                          // transposed: [rows, block]
  bool begun = false;                                 // dq holds something
};

template <class Tiles>
struct Workspace {
  using Element = typename Tiles::Element;

  Workspace(TileMemory& memory, const Geometry& g) {
    const std::int64_t tile = block_size * block_size, wide = padded(g.width, 32) * block_size;
    const std::int64_t sums = g.rows * block_size;
    memory.reset(static_cast<std::size_t>(2 * tile + 2 * block_size + (2 * key_blocks_at_once + 1) * sums) *
                     sizeof(float) +
                 static_cast<std::size_t>(3 * tile + (3 * key_blocks_at_once + 4) * wide) * sizeof(Element));
    scores = memory.take<float>(tile);
    dp = memory.take<float>(tile);
    p = memory.take<Element>(tile);
    ds_rows = memory.take<Element>(tile);
    ds_columns = Tiles::one_layout ? ds_rows : memory.take<Element>(tile);
    for (KeySide<Tiles>& side : keys) {
      side = {memory.take<Element>(wide), memory.take<Element>(wide), memory.take<Element>(wide),
              memory.take<float>(sums), memory.take<float>(sums)};
    }
    query = {memory.take<Element>(wide), memory.take<Element>(wide),     memory.take<Element>(wide),
             memory.take<Element>(wide), memory.take<float>(block_size), memory.take<float>(block_size),
             memory.take<float>(sums)};
  }

  float *scores, *dp;   // S^T, dP^T
  Element* p;           // A: P^T
  Element* ds_rows;     // A: dS^T
  Element* ds_columns;  // B: the same
  KeySide<Tiles> keys[key_blocks_at_once];
  QuerySide<Tiles> query;
};

template <class T, class Tiles>
void pack_keys(const Geometry& g, const BackwardTensors& all, KeySide<Tiles>& side, std::int64_t token,
               std::int64_t count, std::int64_t kv_head, bool want_dq) {
  const auto k = rows_of<T>(all.tensors.k, token, count, kv_head);
  Tiles::pack_a(side.k, g.depth, k);
  Tiles::pack_a(side.v, g.depth, rows_of<T>(all.tensors.v, token, count, kv_head));
  if (want_dq) Tiles::pack_a_transposed(side.k_columns, k);
  side.begun = false;
}

template <class T, class Tiles>
void pack_queries(const Geometry& g, const BackwardTensors& all, QuerySide<Tiles>& side, std::int64_t token,
                  std::int64_t count, std::int64_t head, bool want_dkv) {
  const auto q = rows_of<T>(all.tensors.q, token, count, head);
  const auto dout = rows_of<T>(all.dout, token, count, head);
  Tiles::pack_b_transposed(side.q_columns, q);
  Tiles::pack_b_transposed(side.dout_columns, dout);
  if (want_dkv) {
    Tiles::pack_b(side.q, g.rows, q);
    Tiles::pack_b(side.dout, g.rows, dout);
  }
  const View& lse = all.tensors.lse;
  const float* from = lse.as<float>() + token * lse.stride(0) + head;
  for (std::int64_t i = 0; i < block_size; ++i) {
    // Queries past the end get no probability at all.
    side.lse[i] = i < count ? from[i * lse.stride(0)] * log2_e : -far_below;
    side.delta[i] = i < count ? all.delta[head * g.tokens + token + i] : 0.0f;
  }
  side.begun = false;
}

// From S^T and dP^T: P^T, and dS^T in both layouts.
template <class Tiles, bool masked>
void score_gradients(const Geometry& g, Workspace<Tiles>& w, std::int64_t keys, std::int64_t queries,
                     std::int64_t distance) {
  const f32x16 factor = splat(g.scale * log2_e);
  for (std::int64_t c = 0; c < queries; c += lanes) {
    const f32x16 lse = backend::cpu::load(w.query.lse + c), delta = backend::cpu::load(w.query.delta + c);
    const auto probability = [&](std::int64_t r) {
      const f32x16 s = backend::cpu::load(w.scores + r * block_size + c);
      const f32x16 p = exp2<Tiles::one_layout>(s * factor - lse);
      return masked ? backend::cpu::select(visible(distance + c - r, g.window), p, f32x16{}) : p;
    };
    for (std::int64_t r = 0; r < keys; r += 2) {
      const f32x16 even = probability(r), odd = probability(r + 1);
      const float* dp = w.dp + r * block_size + c;
      const f32x16 d_even = even * (backend::cpu::load(dp) - delta);
      const f32x16 d_odd = odd * (backend::cpu::load(dp + block_size) - delta);
      const auto ds = Tiles::round(d_even, d_odd);
      Tiles::store_a(w.p, r, c, Tiles::round(even, odd));
      Tiles::store_a(w.ds_rows, r, c, ds);
      if constexpr (!Tiles::one_layout) Tiles::store_b(w.ds_columns, r, c, ds);
    }
  }
}

// One block of queries meets one block of keys; dq, dk and dv gain a term (=, where it is their first).
template <class Tiles>
void meet(const Geometry& g, Workspace<Tiles>& w, KeySide<Tiles>& key, const DocumentRange& document, std::int64_t i,
          std::int64_t j, bool want_dq, bool want_dkv) {
  QuerySide<Tiles>& query = w.query;
  const std::int64_t queries = padded(document.count(i), block_step), keys = padded(document.count(j), block_step);
  Tiles::multiply(w.scores, block_size, key.k, g.depth, query.q_columns, block_size, keys, queries, g.depth, false);
  Tiles::multiply(w.dp, block_size, key.v, g.depth, query.dout_columns, block_size, keys, queries, g.depth, false);
  const auto score = needs_mask(i, j, g.window) ? score_gradients<Tiles, true> : score_gradients<Tiles, false>;
  score(g, w, keys, queries, (i - j) * block_size);
  if (want_dkv) {
    Tiles::multiply(key.dv, g.rows, w.p, block_size, query.dout, g.rows, keys, g.rows, queries, key.begun);
    Tiles::multiply(key.dk, g.rows, w.ds_rows, block_size, query.q, g.rows, keys, g.rows, queries, key.begun);
    key.begun = true;
  }
  if (want_dq) {
    Tiles::multiply(query.dq, block_size, key.k_columns, block_size, w.ds_columns, block_size, g.rows, queries, keys,
                    query.begun);
    query.begun = true;
  }
}

template <class T>
void write_rows(const Rows<T>& to, const float* from, std::int64_t ld, float factor) {
  for (std::int64_t r = 0; r < to.count; ++r) {
    for (std::int64_t c = 0; c < to.width; c += lanes) {
      store_to(to.data + r * to.stride + c, backend::cpu::load(from + r * ld + c) * factor, to.width - c);
    }
  }
}

template <class T, class Tiles>
void write_dq(const Geometry& g, const BackwardTensors& all, const QuerySide<Tiles>& query, std::int64_t token,
              std::int64_t count, std::int64_t head) {
  float scale[block_size];
  std::fill_n(scale, block_size, g.scale);
  write_transposed(rows_of<T>(all.grads.dq, token, count, head), query.dq, scale);
}

// The sums of dq between two visits: rows of `count` numbers, so that they take no more than a token's share each.
inline void exchange_dq(float* waiting, float* tile, std::int64_t rows, std::int64_t count, bool fetch) {
  for (std::int64_t d = 0; d < rows; ++d) {
    float *outside = waiting + d * count, *inside = tile + d * block_size;
    std::memcpy(fetch ? inside : outside, fetch ? outside : inside, static_cast<std::size_t>(count) * sizeof(float));
  }
}

// Some blocks of keys of one key/value head against all queries that see them: writes dk and dv. With want_dq also dq;
// then one task must visit all the keys of its document.
template <class T, class Tiles>
void run_key_task(const Geometry& g, const BackwardTensors& all, const BackwardTask& task, bool want_dq) {
  static thread_local TileMemory memory;
  Workspace<Tiles> w(memory, g);
  const typename Tiles::Scope scope;
  const DocumentRange& document = task.document;
  for (std::int64_t first = task.first; first < task.last; first += key_blocks_at_once) {
    const std::int64_t last = std::min(first + key_blocks_at_once, task.last);
    for (std::int64_t j = first; j < last; ++j) {
      pack_keys<T>(g, all, w.keys[j - first], document.token(j), document.count(j), task.head, want_dq);
    }
    const std::int64_t last_query = last_query_block(last - 1, document, g.window);
    for (std::int64_t head = task.head * g.group; head < (task.head + 1) * g.group; ++head) {
      for (std::int64_t i = first; i <= last_query; ++i) {
        const std::int64_t token = document.token(i), count = document.count(i);
        const std::int64_t first_key = first_key_block(i, g.window);
        pack_queries<T>(g, all, w.query, token, count, head, true);
        float* waiting = all.dq + (head * g.tokens + token) * g.rows;
        if (want_dq && first_key < first) {
          exchange_dq(waiting, w.query.dq, g.rows, count, true);
          w.query.begun = true;
        }
        for (std::int64_t j = std::max(first, first_key); j < std::min(last, i + 1); ++j) {
          meet(g, w, w.keys[j - first], document, i, j, want_dq, true);
        }
        if (!want_dq) continue;
        if (i < last) {
          write_dq<T>(g, all, w.query, token, count, head);
        } else {
          exchange_dq(waiting, w.query.dq, g.rows, count, false);
        }
      }
    }
    for (std::int64_t j = first; j < last; ++j) {
      const KeySide<Tiles>& side = w.keys[j - first];
      const std::int64_t token = document.token(j), count = document.count(j);
      write_rows(rows_of<T>(all.grads.dk, token, count, task.head), side.dk, g.rows, g.scale);
      write_rows(rows_of<T>(all.grads.dv, token, count, task.head), side.dv, g.rows, 1.0f);
    }
  }
}

// Some blocks of queries of one head against the keys they see: writes dq.
template <class T, class Tiles>
void run_query_task(const Geometry& g, const BackwardTensors& all, const BackwardTask& task) {
  static thread_local TileMemory memory;
  Workspace<Tiles> w(memory, g);
  const typename Tiles::Scope scope;
  const DocumentRange& document = task.document;
  for (std::int64_t i = task.first; i < task.last; ++i) {
    pack_queries<T>(g, all, w.query, document.token(i), document.count(i), task.head, false);
    for (std::int64_t j = first_key_block(i, g.window); j <= i; ++j) {
      pack_keys<T>(g, all, w.keys[0], document.token(j), document.count(j), task.head / g.group, true);
      meet(g, w, w.keys[0], document, i, j, true, false);
    }
    write_dq<T>(g, all, w.query, document.token(i), document.count(i), task.head);
  }
}

// Sixteen rows at a time: each row's sixteen partial sums become a column, and columns add up as vectors.
template <class T>
void compute_delta(const Geometry& g, const BackwardTensors& all) {
  const ConstView out = all.tensors.out;
  backend::cpu::parallel_for(padded(g.tokens, lanes) / lanes, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin * lanes; token < std::min(end * lanes, g.tokens); token += lanes) {
      const std::int64_t count = std::min(lanes, g.tokens - token);
      for (std::int64_t head = 0; head < g.heads; ++head) {
        const auto o = rows_of<T>(out, token, count, head), d = rows_of<T>(all.dout, token, count, head);
        u32x16 rows[lanes] = {};
        for (std::int64_t r = 0; r < count; ++r) {
          f32x16 sum = {};
          for (std::int64_t c = 0; c < g.width; c += lanes) {
            sum += load_to(o.data + r * o.stride + c, g.width - c) * load_to(d.data + r * d.stride + c, g.width - c);
          }
          rows[r] = (u32x16)sum;
        }
        transpose(rows);
        f32x16 delta = (f32x16)rows[0];
        for (std::int64_t i = 1; i < lanes; ++i) delta += (f32x16)rows[i];
        store_to(all.delta + head * g.tokens + token, delta, count);
      }
    }
  });
}

// Pairs of blocks that meet, with blocks of keys [first, last).
std::int64_t pairs_of(const DocumentRange& document, std::int64_t first, std::int64_t last, std::int64_t window) {
  std::int64_t pairs = 0;
  for (std::int64_t j = first; j < last; ++j) pairs += last_query_block(j, document, window) - j + 1;
  return pairs;
}

template <class T, class Tiles>
void backward(const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors, const AttentionSpec& spec,
              View scratch) {
  const Geometry g(tensors, spec, Tiles::depth_step);
  auto* delta = reinterpret_cast<float*>(scratch.as<std::uint8_t>());
  const BackwardTensors all = {grads, dout, tensors, delta + g.tokens * g.heads * g.rows, delta};
  compute_delta<T>(g, all);

  // Whole documents by key/value head compute everything once; pieces of them cost half as much again, because dq
  // needs scores of its own, but there are more of them. The bits are the same, so the threads may decide.
  std::vector<BackwardTask> whole, by_keys, by_queries;
  std::int64_t total = 0, largest = 0;
  for (std::int64_t index = 0; index + 1 < std::ssize(spec.host_cu_seqlens); ++index) {
    const DocumentRange document = document_at(spec, index);
    if (document.length == 0) continue;
    const std::int64_t cost = pairs_of(document, 0, document.blocks(), g.window) * g.group;
    largest = std::max(largest, cost);
    total += cost * g.kv_heads;
    for (std::int64_t head = 0; head < g.kv_heads; ++head) {
      whole.push_back({document, head, 0, document.blocks(), cost});
    }
  }
  if (2 * largest * omp_get_max_threads() <= 3 * total) {
    run_tasks(whole, [&](const BackwardTask& task) { run_key_task<T, Tiles>(g, all, task, true); });
    return;
  }
  for (const BackwardTask& task : whole) {
    const DocumentRange& document = task.document;
    for (std::int64_t first = 0; first < document.blocks(); first += key_blocks_at_once) {
      const std::int64_t last = std::min(first + key_blocks_at_once, document.blocks());
      by_keys.push_back({document, task.head, first, last, pairs_of(document, first, last, g.window) * g.group});
    }
    for (std::int64_t head = task.head * g.group; head < (task.head + 1) * g.group; ++head) {
      for (std::int64_t i = 0; i < document.blocks(); ++i) {
        by_queries.push_back({document, head, i, i + 1, i - first_key_block(i, g.window) + 1});
      }
    }
  }
  run_tasks(by_keys, [&](const BackwardTask& task) { run_key_task<T, Tiles>(g, all, task, false); });
  run_tasks(by_queries, [&](const BackwardTask& task) { run_query_task<T, Tiles>(g, all, task); });
}

}  // namespace

void attention_backward(Exec&, const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors,
                        const AttentionSpec& spec, View scratch) {
  if (tensors.q.dtype() == DType::f32) {
    backward<float, FloatTiles>(grads, dout, tensors, spec, scratch);
  } else if (backend::cpu::amx_usable()) {
    backward<bf16, AmxTiles>(grads, dout, tensors, spec, scratch);
  } else {
    backward<bf16, FloatTiles>(grads, dout, tensors, spec, scratch);
  }
}

}  // namespace inlay::ops::cpu
