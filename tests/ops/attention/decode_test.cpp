#include "ops/attention/decode.h"

#include <algorithm>
#include <numeric>

#include "ops/op_cases.h"
#include "ops/reference/attention.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

struct DecodeCase {
  std::int64_t sequences, heads, kv_heads, head_size, length, capacity, window = 0;

  std::int64_t first_seen() const { return window == 0 ? 0 : std::max<std::int64_t>(0, length - window); }
  std::string name() const {
    return fmt::format("{} sequences, {}/{} heads of {}, {} of {} positions, window {}", sequences, heads, kv_heads,
                       head_size, length, capacity, window);
  }
};

const DecodeCase cases[] = {{1, 1, 1, 1, 1, 1},        {3, 6, 2, 10, 1, 4},        {2, 4, 4, 48, 17, 32},
                            {1, 8, 1, 128, 300, 301},  {2, 14, 2, 64, 33, 40},     {1, 9, 1, 80, 65, 65},
                            {3, 2, 1, 256, 70, 80},    {2, 3, 3, 7, 129, 130},     {2, 20, 1, 24, 50, 64},
                            {5, 6, 6, 48, 256, 256},   {1, 4, 2, 96, 15, 16},      {2, 2, 2, 250, 31, 33},
                            {2, 4, 2, 16, 40, 48, 1},  {2, 4, 2, 16, 40, 48, 39},  {2, 4, 2, 16, 40, 48, 40},
                            {2, 4, 2, 16, 40, 48, 41}, {1, 6, 2, 10, 100, 128, 6}, {2, 3, 1, 33, 200, 200, 64}};

std::vector<std::pair<DecodeCase, bool>> cases_with_and_without_sinks() {
  std::vector<std::pair<DecodeCase, bool>> result;
  for (const DecodeCase& c : cases) {
    result.emplace_back(c, false);
    result.emplace_back(c, true);
  }
  return result;
}

// A cache [sequences, kv_heads, capacity, head_size] in which what must not be read is not a number.
struct Cache {
  Cache(const DecodeCase& c, DType dtype, std::uint64_t seed)
      : values(static_cast<std::size_t>(c.sequences * c.kv_heads * c.capacity * c.head_size), std::nan("")), c(c) {
    const auto random = rounded(random_values(static_cast<std::int64_t>(values.size()), seed), dtype);
    for (std::int64_t row = 0; row < c.sequences * c.kv_heads * c.capacity; ++row) {
      const std::int64_t position = row % c.capacity;
      if (position < c.first_seen() || position >= c.length) continue;
      std::copy_n(random.data() + row * c.head_size, c.head_size, values.data() + row * c.head_size);
    }
  }
  // The same numbers as another case reads them.
  Cache(const Cache& other, const DecodeCase& c) : values(other.values), c(c) {}
  // What a sequence has seen as the reference reads it, [length, kv_heads, head_size]; 0 where it was not to be read.
  std::vector<double> seen(std::int64_t sequence) const {
    std::vector<double> result;
    for (std::int64_t position = 0; position < c.length; ++position) {
      for (std::int64_t head = 0; head < c.kv_heads; ++head) {
        const std::int64_t row = (sequence * c.kv_heads + head) * c.capacity + position;
        for (std::int64_t i = 0; i < c.head_size; ++i) {
          const double value = values[static_cast<std::size_t>(row * c.head_size + i)];
          result.push_back(std::isnan(value) ? 0.0 : value);
        }
      }
    }
    return result;
  }
  View on(TestBench& bench, DType dtype) const {
    return bench.tensor(dtype, {c.sequences, c.kv_heads, c.capacity, c.head_size}, values);
  }

  std::vector<double> values;
  const DecodeCase& c;
};

// Heads of an even size have their scores capped.
float softcap_of(const DecodeCase& c) { return c.head_size % 2 == 0 ? 1.5f : 0.0f; }

struct Capped : reference::CausalWindow {
  double cap;
  template <class S>
  S score(const reference::AttentionPair&, const S& s) const {
    using std::tanh;
    return cap > 0 ? S(cap) * tanh(s / S(cap)) : s;
  }
};

// The last row of causal attention over the whole sequence.
std::vector<double> reference_out(const DecodeCase& c, const std::vector<double>& q, const Cache& k, const Cache& v,
                                  double scale, const std::vector<double>& sinks) {
  const std::int64_t width = c.heads * c.head_size;
  const std::vector<std::int32_t> offsets = {0, static_cast<std::int32_t>(c.length)};
  const reference::AttentionShape shape = {c.heads, c.kv_heads, c.head_size, scale, c.window, offsets};
  std::vector<double> result;
  for (std::int64_t sequence = 0; sequence < c.sequences; ++sequence) {
    std::vector<double> queries(static_cast<std::size_t>(c.length * width)), out, lse;
    std::copy_n(q.begin() + sequence * width, width, queries.end() - width);
    reference::attention_forward(
        out, lse, queries, k.seen(sequence), v.seen(sequence), shape, [](double x) { return x; }, sinks,
        Capped{{c.window}, static_cast<double>(softcap_of(c))});
    result.insert(result.end(), out.end() - width, out.end());
  }
  return result;
}

// Every sequence's next token, all at one position.
CachePlaces last_places(TestBench& bench, std::int64_t sequences, std::int64_t length) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(sequences));
  std::iota(numbers.begin(), numbers.end(), 0);
  return {bench.indices(numbers),
          bench.indices(std::vector<std::int32_t>(numbers.size(), static_cast<std::int32_t>(length) - 1))};
}

class OpsDecodeAttention : public DeviceDType {};

TEST_P(OpsDecodeAttention, IsTheLastRowOfTheReference) {
  for (const auto& [c, with_sinks] : cases_with_and_without_sinks()) {
    SCOPED_TRACE(c.name() + (with_sinks ? ", sinks" : ""));
    TestBench bench(device());
    const std::int64_t width = c.heads * c.head_size;
    const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_size));
    const auto q = rounded(random_values(c.sequences * width, 1), dtype());
    const Cache k(c, dtype(), 2), v(c, dtype(), 3);
    const View keys = k.on(bench, dtype()), values = v.on(bench, dtype());
    const View dense = bench.poisoned(dtype(), {c.sequences, c.heads, c.head_size});
    const Window query = strided(bench, dtype(), c.sequences, width, q);
    const Window wide = strided(bench, dtype(), c.sequences, width);
    const auto sinks = with_sinks ? rounded(random_values(c.heads, 4, 4.0), dtype()) : std::vector<double>();
    DecodeSpec spec = {.scale = scale,
                       .places = last_places(bench, c.sequences, c.length),
                       .window = c.window,
                       .softcap = softcap_of(c)};
    if (with_sinks) spec.sinks = bench.tensor(dtype(), {c.heads}, sinks);
    decode_attention(bench.exec, dense, bench.tensor(dtype(), {c.sequences, c.heads, c.head_size}, q), keys, values,
                     spec);
    decode_attention(bench.exec, wide.view.split_cols(c.heads), query.view.split_cols(c.heads), keys, values, spec);

    // As for attention over whole documents: rounding of the result, and in fp32 of sums of a few hundred products of
    // standard normal numbers.
    const auto expected = reference_out(c, q, k, v, scale, sinks);
    const double size = std::sqrt(std::inner_product(expected.begin(), expected.end(), expected.begin(), 0.0));
    const double count = std::sqrt(static_cast<double>(expected.size()));
    const double allowed = dtype() == DType::f32 ? 2e-6 * size + 1e-6 * count : 6e-3 * size;
    EXPECT_LE(relative_error(bench.read(dense), expected) * size, allowed);
    // Other alignment, other kernel: the sums may run in another order.
    EXPECT_LE(relative_error(bench.read(wide.view), expected) * size, allowed);
    EXPECT_TRUE(surroundings_intact(bench, wide));
  }
}

// One key far above all others takes everything, and large scores do not overflow.
TEST_P(OpsDecodeAttention, LargeScoresAreExact) {
  const std::int64_t length = 40, width = 16;
  for (const std::int64_t winner : {0, 1, 17, 39}) {
    TestBench bench(device());
    std::vector<double> k(static_cast<std::size_t>(length * width), 1.0), v;
    std::fill_n(k.begin() + winner * width, width, 64.0);
    for (std::int64_t i = 0; i < length * width; ++i) v.push_back(static_cast<double>(i / width));
    const View out = bench.poisoned(dtype(), {1, 1, width});
    decode_attention(bench.exec, out, bench.tensor(dtype(), {1, 1, width}, std::vector<double>(width, 100.0)),
                     bench.tensor(dtype(), {1, 1, length, width}, k), bench.tensor(dtype(), {1, 1, length, width}, v),
                     {.scale = 1.0f, .places = last_places(bench, 1, length)});
    EXPECT_EQ(bench.read(out), std::vector<double>(width, static_cast<double>(winner)));
  }
}

TEST_P(OpsDecodeAttention, PlansWhatItTakes) {
  const Shape q{3, 4, 16}, cache{3, 2, 50, 16};
  const auto peak = [&](backend::Exec exec) {
    const View out = exec.arena().scratch("out", dtype(), q), query = exec.arena().scratch("q", dtype(), q);
    const View keys = exec.arena().scratch("k", dtype(), cache), values = exec.arena().scratch("v", dtype(), cache);
    const CachePlaces places = {exec.arena().scratch("sequences", DType::i32, {3}),
                                exec.arena().scratch("positions", DType::i32, {3})};
    exec.fill_zero(View(const_cast<void*>(places.sequences.data()), DType::i32, {3}));
    exec.fill_zero(View(const_cast<void*>(places.positions.data()), DType::i32, {3}));
    decode_attention(exec, out, query, keys, values, {.places = places});
    return exec.arena().peak();
  };
  EXPECT_EQ(peak(backend::Exec::planner(device())), peak(backend::Exec::runner(device(), 1 << 20)));
}

// Rows of any sequences at any positions, several of one among them, and more keys than one block of a GPU takes.
TEST_P(OpsDecodeAttention, RowsSeeTheirOwnSequenceUpToTheirOwnPosition) {
  const DecodeCase c = {3, 6, 2, 40, 700, 700};
  const std::vector<std::int32_t> sequences = {2, 0, 2, 2, 1, 0}, positions = {0, 699, 5, 300, 513, 1};
  const std::int64_t width = c.heads * c.head_size, rows = 6;
  TestBench bench(device());
  const Cache k(c, dtype(), 2), v(c, dtype(), 3);
  const auto q = rounded(random_values(rows * width, 1), dtype());
  const View out = bench.poisoned(dtype(), {rows, c.heads, c.head_size});
  decode_attention(bench.exec, out, bench.tensor(dtype(), {rows, c.heads, c.head_size}, q), k.on(bench, dtype()),
                   v.on(bench, dtype()),
                   {.scale = 0.2f, .places = {bench.indices(sequences), bench.indices(positions)}, .softcap = 1.5f});
  const auto found = bench.read(out);
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    DecodeCase alone = c;
    alone.length = positions[row] + 1;
    std::vector<double> queries(static_cast<std::size_t>(c.sequences * width));
    const std::int64_t sequence = sequences[row];
    std::copy_n(q.begin() + static_cast<std::int64_t>(row) * width, width, queries.begin() + sequence * width);
    const auto expected = reference_out(alone, queries, {k, alone}, {v, alone}, 0.2, {});
    const std::vector<double> mine(found.begin() + static_cast<std::int64_t>(row) * width,
                                   found.begin() + static_cast<std::int64_t>(row + 1) * width);
    const std::vector<double> theirs(expected.begin() + sequence * width, expected.begin() + (sequence + 1) * width);
    EXPECT_LE(relative_error(mine, theirs), dtype() == DType::f32 ? 2e-5 : 6e-3) << row;
  }
}

TEST_P(OpsDecodeAttention, RowsTakeTheirPlacesInTheCache) {
  TestBench bench(device());
  const std::int64_t heads = 2, width = 5, capacity = 4, rows = 3;
  const auto k = rounded(random_values(rows * heads * width, 1), dtype());
  const auto v = rounded(random_values(rows * heads * width, 2), dtype());
  const View keys =
      bench.tensor(dtype(), {2, heads, capacity, width}, std::vector<double>(2 * heads * capacity * width, 7));
  const View values =
      bench.tensor(dtype(), {2, heads, capacity, width}, std::vector<double>(2 * heads * capacity * width, 7));
  const Window wide = strided(bench, dtype(), rows, heads * width, k);
  const std::vector<std::int32_t> sequences = {1, 0, 1}, positions = {3, 0, 1};
  fill_cache(bench.exec, keys, values, {wide.view.split_cols(heads), bench.tensor(dtype(), {rows, heads, width}, v)},
             {bench.indices(sequences), bench.indices(positions)});
  std::vector<double> expected_k(2 * heads * capacity * width, 7), expected_v = expected_k;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < heads * width; ++i) {
      const auto at = static_cast<std::size_t>(row);
      const std::int64_t to = ((sequences[at] * heads + i / width) * capacity + positions[at]) * width + i % width;
      expected_k[static_cast<std::size_t>(to)] = k[static_cast<std::size_t>(row * heads * width + i)];
      expected_v[static_cast<std::size_t>(to)] = v[static_cast<std::size_t>(row * heads * width + i)];
    }
  }
  EXPECT_EQ(bench.read(keys), expected_k);
  EXPECT_EQ(bench.read(values), expected_v);
  const View numbers = bench.indices({5, 0, 41});
  advance(bench.exec, numbers);
  EXPECT_EQ(bench.read_indices(numbers), (std::vector<std::int32_t>{6, 1, 42}));
}

TEST_P(OpsDecodeAttention, RejectsPlacesThatDoNotFit) {
  TestBench bench(device());
  const View q = bench.poisoned(dtype(), {2, 4, 8}), cache = bench.poisoned(dtype(), {2, 2, 5, 8});
  const CachePlaces places = last_places(bench, 2, 1), three = last_places(bench, 3, 1);
  EXPECT_THROW(decode_attention(bench.exec, q, q, cache, cache, {.places = three}), InternalError);
  EXPECT_THROW(decode_attention(bench.exec, q, q, cache, cache, {}), InternalError);
  EXPECT_THROW(decode_attention(bench.exec, q, q, cache, bench.poisoned(dtype(), {2, 2, 4, 8}), {.places = places}),
               InternalError);
}

INSTANTIATE_TEST_SUITE_P(All, OpsDecodeAttention, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
