#include "backend/cpu/parallel.h"
#include "ops/attention/cpu_blocks.h"

// Backward: P = exp(scale · q·k − lse), dV = P^T dO, dS = P ∘ (dO V^T − delta), dQ = scale · dS K, dK = scale · dS^T Q,
// with delta = the sum of dO ∘ O over a head; a rule puts its score into P, and its slope beside P in dS. Sums have one
// order whatever the schedule: dK and dV of a block of keys run over heads and then over blocks of queries, dQ of a
// block of queries over blocks of keys, all ascending.
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
  const TileRule* rule;  // or null
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
    scores = memory.take<float>(tile);
    dp = memory.take<float>(tile);
    slopes = memory.take<float>(tile);
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
    if (g.rule != nullptr) strip = memory.take<f32v>(TileRule::strip_vectors(*g.rule));
  }

  float *scores, *dp;     // S^T, dP^T
  float* slopes;          // of a rule's scores, like them
  Element* p;             // A: P^T
  Element* ds_rows;       // A: dS^T
  Element* ds_columns;    // B: the same
  f32v* strip = nullptr;  // of a rule
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
    // Queries past the end, and those that saw nothing, get no probability at all.
    const float sum = i < count ? from[i * lse.stride(0)] * log2_e : -far_below;
    side.lse[i] = sum > far_below ? sum : -far_below;
    side.delta[i] = i < count ? all.delta[head * g.tokens + token + i] : 0.0f;
  }
  side.begun = false;
}

// From S^T and dP^T: P^T, and dS^T in both layouts.
template <class Tiles, bool masked, bool sloped>
void score_gradients(const Geometry& g, Workspace<Tiles>& w, std::int64_t keys, std::int64_t queries,
                     std::int64_t distance, float scale) {
  const f32v factor = splat(scale * log2_e);
  for (std::int64_t c = 0; c < queries; c += lanes) {
    const f32v lse = backend::cpu::load(w.query.lse + c), delta = backend::cpu::load(w.query.delta + c);
    const auto probability = [&](std::int64_t r) {
      const f32v s = backend::cpu::load(w.scores + r * block_size + c);
      const f32v p = exp2<Tiles::one_layout>(s * factor - lse);
      return masked ? backend::cpu::select(visible(distance + c - r, g.window), p, f32v{}) : p;
    };
    for (std::int64_t r = 0; r < keys; r += 2) {
      const f32v even = probability(r), odd = probability(r + 1);
      const float* dp = w.dp + r * block_size + c;
      f32v d_even = even * (backend::cpu::load(dp) - delta);
      f32v d_odd = odd * (backend::cpu::load(dp + block_size) - delta);
      if constexpr (sloped) {
        const float* slopes = w.slopes + r * block_size + c;
        d_even *= backend::cpu::load(slopes);
        d_odd *= backend::cpu::load(slopes + block_size);
      }
      const auto ds = Tiles::round(d_even, d_odd);
      Tiles::store_a(w.p, r, c, Tiles::round(even, odd));
      Tiles::store_a(w.ds_rows, r, c, ds);
      if constexpr (!Tiles::one_layout) Tiles::store_b(w.ds_columns, r, c, ds);
    }
  }
}

// The scores and their gradients by a rule.
template <class Tiles>
void score_gradients_by_rule(const Geometry& g, Workspace<Tiles>& w, const TileRule& rule, const TilePlace& at,
                             bool partial) {
  const bool sloped = g.rule->changes_scores();
  if (!sloped && !partial) return score_gradients<Tiles, false, false>(g, w, at.keys, at.queries, 0, g.scale);
  rule.apply(w.scores, sloped ? w.slopes : nullptr, w.strip, at, g.scale, partial);
  const auto score = sloped ? score_gradients<Tiles, false, true> : score_gradients<Tiles, false, false>;
  score(g, w, at.keys, at.queries, 0, 1.0f);
}

// Where two blocks meet, and for what.
struct Meeting {
  const DocumentRange& document;
  std::int64_t i, j, head;  // blocks of queries and of keys, and the query head
  Geometry::Tile tile;
  bool want_dq, want_dkv;
};

// One block of queries meets one block of keys; dq, dk and dv gain a term (=, where it is their first).
template <class Tiles>
void meet(const Geometry& g, Workspace<Tiles>& w, const TileRule* rule, KeySide<Tiles>& key, const Meeting& meeting) {
  const auto& [document, i, j, head, tile, want_dq, want_dkv] = meeting;
  if (tile == Geometry::Tile::empty) return;
  QuerySide<Tiles>& query = w.query;
  const std::int64_t queries = padded(document.count(i), block_step), keys = padded(document.count(j), block_step);
  Tiles::multiply(w.scores, block_size, key.k, g.depth, query.q_columns, block_size, keys, queries, g.depth, false);
  Tiles::multiply(w.dp, block_size, key.v, g.depth, query.dout_columns, block_size, keys, queries, g.depth, false);
  const bool partial = tile == Geometry::Tile::partial;
  if (rule != nullptr) {
    score_gradients_by_rule(g, w, *rule, g.tile_place(document, i, j, head), partial);
  } else {
    const auto score = partial ? score_gradients<Tiles, true, false> : score_gradients<Tiles, false, false>;
    score(g, w, keys, queries, (i - j) * block_size, g.scale);
  }
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
void write_rows(const HeadRows<T>& to, const float* from, std::int64_t ld, float factor) {
  for (std::int64_t r = 0; r < to.count; ++r) {
    for (std::int64_t c = 0; c < to.width; c += lanes) {
      store_to(to.data + r * to.stride + c, backend::cpu::load(from + r * ld + c) * factor, to.width - c);
    }
  }
}

template <class T, class Tiles>
void write_dq(const Geometry& g, const BackwardTensors& all, QuerySide<Tiles>& query, std::int64_t token,
              std::int64_t count, std::int64_t head) {
  if (!query.begun) std::fill_n(query.dq, g.rows * block_size, 0.0f);
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

// One block of queries against the blocks of keys [at.j, last). dq is taken up where earlier keys left it, and is
// written with the last ones that the block may see.
template <class T, class Tiles>
void visit_keys(const Geometry& g, const BackwardTensors& all, Workspace<Tiles>& w, const BackwardTask& task,
                Meeting at, std::int64_t last) {
  const DocumentRange& document = task.document;
  const std::int64_t first = at.j, token = document.token(at.i), count = document.count(at.i);
  const bool first_keys = g.first_key(at.i) >= first, last_keys = g.last_key(at.i, document) <= last;
  Geometry::Tile tiles[key_blocks_at_once];
  bool any = false;
  for (std::int64_t j = first; j < last; ++j) {
    tiles[j - first] = g.meeting(document, at.i, j, at.head);
    any |= tiles[j - first] != Geometry::Tile::empty;
  }
  if (!any && !(at.want_dq && (first_keys || last_keys))) return;
  pack_queries<T>(g, all, w.query, token, count, at.head, true);
  float* waiting = all.dq + (at.head * g.tokens + token) * g.rows;
  if (at.want_dq && !first_keys) {
    exchange_dq(waiting, w.query.dq, g.rows, count, true);
    w.query.begun = true;
  }
  for (at.j = first; at.j < last; ++at.j) {
    at.tile = tiles[at.j - first];
    meet(g, w, all.rule, w.keys[at.j - first], at);
  }
  if (!at.want_dq) return;
  if (last_keys) {
    write_dq<T>(g, all, w.query, token, count, at.head);
  } else {
    if (!w.query.begun) std::fill_n(w.query.dq, g.rows * block_size, 0.0f);
    exchange_dq(waiting, w.query.dq, g.rows, count, false);
  }
}

// Some blocks of keys of one key/value head against all queries that see them: writes dk and dv. With want_dq also dq;
// then one task must visit all the keys of its document.
template <class T, class Tiles>
void run_key_task(const Geometry& g, const BackwardTensors& all, const BackwardTask& task, TileMemory& memory,
                  bool want_dq) {
  Workspace<Tiles> w(memory, g);
  const typename Tiles::Scope scope;
  const DocumentRange& document = task.document;
  for (std::int64_t first = task.first; first < task.last; first += key_blocks_at_once) {
    const std::int64_t last = std::min(first + key_blocks_at_once, task.last);
    for (std::int64_t j = first; j < last; ++j) {
      pack_keys<T>(g, all, w.keys[j - first], document.token(j), document.count(j), task.head, want_dq);
    }
    for (std::int64_t head = task.head * g.group; head < (task.head + 1) * g.group; ++head) {
      for (std::int64_t i = g.first_query(first); i < g.last_query(last - 1, document); ++i) {
        visit_keys<T>(g, all, w, task, {document, i, first, head, Geometry::Tile::empty, want_dq, true}, last);
      }
    }
    for (std::int64_t j = first; j < last; ++j) {
      KeySide<Tiles>& side = w.keys[j - first];
      const std::int64_t token = document.token(j), count = document.count(j);
      if (!side.begun) {
        std::fill_n(side.dk, block_size * g.rows, 0.0f);
        std::fill_n(side.dv, block_size * g.rows, 0.0f);
      }
      write_rows(rows_of<T>(all.grads.dk, token, count, task.head), side.dk, g.rows, g.scale);
      write_rows(rows_of<T>(all.grads.dv, token, count, task.head), side.dv, g.rows, 1.0f);
    }
  }
}

// Some blocks of queries of one head against the keys they see: writes dq.
template <class T, class Tiles>
void run_query_task(const Geometry& g, const BackwardTensors& all, const BackwardTask& task, TileMemory& memory) {
  Workspace<Tiles> w(memory, g);
  const typename Tiles::Scope scope;
  const DocumentRange& document = task.document;
  for (std::int64_t i = task.first; i < task.last; ++i) {
    pack_queries<T>(g, all, w.query, document.token(i), document.count(i), task.head, false);
    for (std::int64_t j = g.first_key(i); j < g.last_key(i, document); ++j) {
      const Geometry::Tile tile = g.meeting(document, i, j, task.head);
      if (tile == Geometry::Tile::empty) continue;
      pack_keys<T>(g, all, w.keys[0], document.token(j), document.count(j), task.head / g.group, true);
      meet(g, w, all.rule, w.keys[0], {document, i, j, task.head, tile, true, false});
    }
    write_dq<T>(g, all, w.query, document.token(i), document.count(i), task.head);
  }
}

// As many rows at a time as a vector is long: each row's partial sums become a column, and columns add up as vectors.
template <class T>
void compute_delta(const Geometry& g, const BackwardTensors& all) {
  const ConstView out = all.tensors.out;
  backend::cpu::parallel_for(padded(g.tokens, lanes) / lanes, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin * lanes; token < std::min(end * lanes, g.tokens); token += lanes) {
      const std::int64_t count = std::min(lanes, g.tokens - token);
      for (std::int64_t head = 0; head < g.heads; ++head) {
        const auto o = rows_of<T>(out, token, count, head), d = rows_of<T>(all.dout, token, count, head);
        u32v rows[lanes] = {};
        for (std::int64_t r = 0; r < count; ++r) {
          f32v sum = {};
          for (std::int64_t c = 0; c < g.width; c += lanes) {
            sum += load_to(o.data + r * o.stride + c, g.width - c) * load_to(d.data + r * d.stride + c, g.width - c);
          }
          rows[r] = (u32v)sum;
        }
        transpose(rows);
        f32v delta = (f32v)rows[0];
        for (std::int64_t i = 1; i < lanes; ++i) delta += (f32v)rows[i];
        store_to(all.delta + head * g.tokens + token, delta, count);
      }
    }
  });
}

// Pairs of blocks that meet, with blocks of keys [first, last).
std::int64_t pairs_of(const Geometry& g, const DocumentRange& document, std::int64_t first, std::int64_t last) {
  std::int64_t pairs = 0;
  for (std::int64_t j = first; j < last; ++j) pairs += g.last_query(j, document) - g.first_query(j);
  return pairs;
}

// What scratch holds: floats for delta and for the sums of dq that wait for further blocks of keys, then the tiles.
std::size_t bytes_of_rows(const Geometry& g) {
  return static_cast<std::size_t>(padded(g.tokens * g.heads * (1 + g.rows) * std::int64_t{sizeof(float)}, 64));
}

template <class T, class Tiles>
void backward(const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors, const AttentionSpec& spec,
              View scratch) {
  const Geometry g(tensors, spec, Tiles::depth_step);
  auto* const begin = reinterpret_cast<std::byte*>(scratch.as<std::uint8_t>());
  auto* const delta = reinterpret_cast<float*>(begin);
  const PoolMemory memory{begin + bytes_of_rows(g), bytes_of<Workspace<Tiles>>(g)};
  const std::optional<TileRule> rule = tile_rule(spec);
  const BackwardTensors all = {
      rule ? &*rule : nullptr, grads, dout, tensors, delta + g.tokens * g.heads * g.rows, delta};
  compute_delta<T>(g, all);

  // Whole documents by key/value head compute everything once; pieces of them cost half as much again, because dq
  // needs scores of its own, but there are more of them. The bits are the same, so the threads may decide.
  std::vector<BackwardTask> whole, by_keys, by_queries;
  std::int64_t total = 0, largest = 0;
  for (std::int64_t index = 0; index + 1 < std::ssize(spec.host_cu_seqlens); ++index) {
    const DocumentRange document = document_at(spec, index);
    if (document.length == 0) continue;
    const std::int64_t cost = pairs_of(g, document, 0, document.blocks()) * g.group;
    largest = std::max(largest, cost);
    total += cost * g.kv_heads;
    for (std::int64_t head = 0; head < g.kv_heads; ++head) {
      whole.push_back({document, head, 0, document.blocks(), cost});
    }
  }
  if (2 * largest * backend::cpu::threads() <= 3 * total) {
    run_tasks(whole, memory,
              [&](const BackwardTask& task, TileMemory& tiles) { run_key_task<T, Tiles>(g, all, task, tiles, true); });
    return;
  }
  for (const BackwardTask& task : whole) {
    const DocumentRange& document = task.document;
    for (std::int64_t first = 0; first < document.blocks(); first += key_blocks_at_once) {
      const std::int64_t last = std::min(first + key_blocks_at_once, document.blocks());
      by_keys.push_back({document, task.head, first, last, pairs_of(g, document, first, last) * g.group});
    }
    for (std::int64_t head = task.head * g.group; head < (task.head + 1) * g.group; ++head) {
      for (std::int64_t i = 0; i < document.blocks(); ++i) {
        by_queries.push_back({document, head, i, i + 1, g.last_key(i, document) - g.first_key(i)});
      }
    }
  }
  run_tasks(by_keys, memory,
            [&](const BackwardTask& task, TileMemory& tiles) { run_key_task<T, Tiles>(g, all, task, tiles, false); });
  run_tasks(by_queries, memory,
            [&](const BackwardTask& task, TileMemory& tiles) { run_query_task<T, Tiles>(g, all, task, tiles); });
}

}  // namespace

std::size_t attention_backward_scratch_bytes(const AttentionTensors& tensors, const AttentionSpec& spec) {
  return with_tiles(tensors.q.dtype(), [&]<class T, class Tiles>(T, Tiles) {
    const Geometry g(tensors, spec, Tiles::depth_step);
    return bytes_of_rows(g) + PoolMemory::bytes(bytes_of<Workspace<Tiles>>(g));
  });
}

void attention_backward(Exec&, const AttentionGrads& grads, ConstView dout, const AttentionTensors& tensors,
                        const AttentionSpec& spec, View scratch) {
  with_tiles(tensors.q.dtype(),
             [&]<class T, class Tiles>(T, Tiles) { backward<T, Tiles>(grads, dout, tensors, spec, scratch); });
}

}  // namespace inlay::ops::cpu
