#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// What the kernels of attention_plain_cuda.cuh want of a rule, and the rule that they follow where none is given.
namespace inlay::ops::cuda::plain {

// A tile of one document. Positions count from the document's first token.
struct Tile {
  std::int64_t document;  // its first token in the batch
  int index;              // which document it is
  int length;             // its tokens
  int first;              // the tile's first position
  __device__ bool empty() const { return first >= length; }
};

// What a rule makes of a pair of tokens.
struct Pair {
  bool seen;
  float score, slope;  // the score, and its derivative by q · k times the scale
};

// The rule that is not asked for by name: a query sees the keys of the window that ends with itself.
struct CausalWindow {
  std::int32_t window;  // at least 1; unlimited is larger than any document

  struct At {};  // what the rule knows of a head of a document
  __device__ At at(const Tile&, int) const { return {}; }

  __device__ Pair pair(const At&, int query, int key, int length, float score) const {
    return {query < length && key <= query && query - key < window, score, 1.0f};
  }
  // Whether any pair of two tiles may be seen; every position in between is asked about.
  __device__ bool meet(const At&, int, int, int, int, int) const { return true; }

  // Positions of the first key tile that any query of the tile sees, and behind the last one.
  __device__ int first_key(const Tile& queries, int rows) const {
    const int oldest = queries.first - window + 1;  // no underflow: window is at most 2^30
    return oldest <= 0 ? 0 : oldest / rows * rows;
  }
  __device__ int end_of_keys(const Tile& queries, int rows) const { return min(queries.first + rows, queries.length); }
  // The same of queries that see any key of the tile.
  __device__ int first_query(const Tile& keys) const { return keys.first; }
  __device__ int end_of_queries(const Tile& keys, int rows) const {
    const int last_key = min(keys.first + rows, keys.length) - 1;
    return window < keys.length - last_key ? last_key + window : keys.length;
  }
};

}  // namespace inlay::ops::cuda::plain
