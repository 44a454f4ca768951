#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/parallel.h"
#include "ops/attention/cpu_tiles.h"
#include "ops/attention/decode.h"

namespace inlay::ops::cpu {

namespace {

constexpr float no_sink = -std::numeric_limits<float>::infinity();

// scores[j] = scale · q·k[j], capped where there is a cap, and −∞ up to a whole vector. As many keys at a time as a
// vector is long: their partial sums, a vector each, are turned into one vector.
template <class T>
void score_keys(float* scores, const T* q, const HeadRows<const T>& keys, const DecodeSpec& spec) {
  for (std::int64_t begin = 0; begin < keys.count; begin += lanes) {
    const std::int64_t count = std::min(lanes, keys.count - begin);
    u32v sums[lanes] = {};
    for (std::int64_t j = 0; j < count; ++j) {
      const T* key = keys.data + (begin + j) * keys.stride;
      f32v sum = {};
      for (std::int64_t i = 0; i < keys.width; i += lanes) {
        sum += load_to(q + i, keys.width - i) * load_to(key + i, keys.width - i);
      }
      sums[j] = (u32v)sum;
    }
    transpose(sums);
    for (std::int64_t width = lanes / 2; width > 0; width /= 2) {
      for (std::int64_t i = 0; i < width; ++i) sums[i] = (u32v)((f32v)sums[i] + (f32v)sums[i + width]);
    }
    f32v found = (f32v)sums[0] * spec.scale;
    if (spec.softcap > 0) found = spec.softcap * backend::cpu::tanh(found / spec.softcap);
    backend::cpu::store(scores + begin, found);
  }
  std::fill(scores + keys.count, scores + padded(keys.count, lanes), -std::numeric_limits<float>::infinity());
}

// scores become e^(score - top); returns the inverse of their sum, which counts the sink as well (minus infinity:
// none).
float soften(float* scores, std::int64_t count, float sink) {
  f32v tops = backend::cpu::load(scores);
  for (std::int64_t j = lanes; j < count; j += lanes)
    tops = backend::cpu::maximum(tops, backend::cpu::load(scores + j));
  const float top = std::max(backend::cpu::largest(tops), sink);
  f32v total = {};
  for (std::int64_t j = 0; j < count; j += lanes) {
    const f32v weights = backend::cpu::exp(backend::cpu::load(scores + j) - top);
    backend::cpu::store(scores + j, weights);
    total += weights;
  }
  return 1.0f / (backend::cpu::sum(total) + std::exp(sink - top));
}

// out = factor · Σ_j weights[j] · values[j] in columns [begin, begin + strip vectors), whose sums stay in registers.
// The last vector of a row may be ragged; it is a strip by itself.
template <int strip, class T>
void weigh_strip(T* out, const float* weights, const HeadRows<const T>& values, float factor, std::int64_t begin) {
  const std::int64_t last = std::min(lanes, values.width - begin - (strip - 1) * lanes);
  f32v sums[strip] = {};
  for (std::int64_t j = 0; j < values.count; ++j) {
    const T* value = values.data + j * values.stride + begin;
    for (int part = 0; part < strip; ++part) {
      sums[part] += weights[j] * (strip == 1 ? load_to(value, last) : backend::cpu::load(value + part * lanes));
    }
  }
  for (int part = 0; part < strip; ++part) {
    T* to = out + begin + part * lanes;
    if (strip == 1) {
      backend::cpu::store_some(to, sums[part] * factor, last);
    } else {
      backend::cpu::store(to, sums[part] * factor);
    }
  }
}

template <class T>
void weigh_values(T* out, const float* weights, const HeadRows<const T>& values, float factor) {
  std::int64_t begin = 0;
  const auto left = [&] { return values.width - begin; };
  for (; left() >= 4 * lanes; begin += 4 * lanes) weigh_strip<4>(out, weights, values, factor, begin);
  for (; left() >= 3 * lanes; begin += 3 * lanes) weigh_strip<3>(out, weights, values, factor, begin);
  for (; left() >= 2 * lanes; begin += 2 * lanes) weigh_strip<2>(out, weights, values, factor, begin);
  for (; left() > 0; begin += lanes) weigh_strip<1>(out, weights, values, factor, begin);
}

template <class T>
void attend(View out, ConstView q, ConstView k, ConstView v, const DecodeSpec& spec, View scores) {
  const std::int64_t kv_heads = k.dim(1), group = q.dim(1) / kv_heads, width = q.dim(2);
  const auto* sequences = spec.places.sequences.as<std::int32_t>();
  const auto* positions = spec.places.positions.as<std::int32_t>();
  const auto seen = [&](const ConstView& cache, std::int64_t row, std::int64_t head) {
    const std::int64_t length = positions[row] + 1;
    const std::int64_t first = spec.window == 0 ? 0 : std::max<std::int64_t>(length - spec.window, 0);
    const T* data = cache.as<T>() + sequences[row] * cache.stride(0) + head * cache.stride(1) + first * cache.stride(2);
    return HeadRows<const T>{data, cache.stride(2), length - first, width};
  };
  const std::int64_t longest = *std::max_element(positions, positions + q.dim(0)) + 1;
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / (longest * width * group));
  backend::cpu::parallel_for(q.dim(0) * kv_heads, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t row = task / kv_heads, kv_head = task % kv_heads;
      const HeadRows<const T> keys = seen(k, row, kv_head), values = seen(v, row, kv_head);
      for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        float* weights = scores.as<float>() + row * scores.stride(0) + head * scores.stride(1);
        score_keys(weights, q.as<T>() + row * q.stride(0) + head * q.stride(1), keys, spec);
        const float sink = spec.sinks ? static_cast<float>(spec.sinks.as<T>()[head]) : no_sink;
        const float factor = soften(weights, keys.count, sink);
        weigh_values(out.as<T>() + row * out.stride(0) + head * out.stride(1), weights, values, factor);
      }
    }
  });
}

}  // namespace

void decode_attention(Exec&, View out, ConstView q, ConstView k, ConstView v, const DecodeSpec& spec, View scores) {
  if (q.dtype() == DType::bf16) return attend<bf16>(out, q, k, v, spec, scores);
  attend<float>(out, q, k, v, spec, scores);
}

void fill_cache(Exec&, View keys, View values, const CacheRows& rows, const CachePlaces& places) {
  const std::size_t size = size_of(keys.dtype()), bytes = static_cast<std::size_t>(keys.dim(3)) * size;
  const auto fill = [&](const View& cache, const ConstView& from) {
    for (std::int64_t row = 0; row < from.dim(0); ++row) {
      const std::int64_t sequence = places.sequences.as<std::int32_t>()[row];
      const std::int64_t position = places.positions.as<std::int32_t>()[row];
      for (std::int64_t head = 0; head < from.dim(1); ++head) {
        const std::int64_t to = sequence * cache.stride(0) + head * cache.stride(1) + position * cache.stride(2);
        const std::int64_t at = row * from.stride(0) + head * from.stride(1);
        std::memcpy(static_cast<std::byte*>(cache.data()) + static_cast<std::size_t>(to) * size,
                    static_cast<const std::byte*>(from.data()) + static_cast<std::size_t>(at) * size, bytes);
      }
    }
  };
  fill(keys, rows.k);
  fill(values, rows.v);
}

void advance(Exec&, View positions) {
  for (std::int64_t i = 0; i < positions.size(); ++i) ++positions.as<std::int32_t>()[i];
}

}  // namespace inlay::ops::cpu
