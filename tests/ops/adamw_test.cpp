#include "ops/adamw.h"

#include <bit>

#include "op_cases.h"
#include "ops/reference/adamw.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

constexpr std::int64_t sizes[] = {1, 7, 16, 33, 4096, 70001};

// Less than a block and many of them, primes, and a number or two more or less than what goes together.
std::vector<std::int64_t> mixed_sizes(std::int64_t small) {
  std::vector<std::int64_t> result = {1, 2, 7, 8, 255, 2048, 2049, 16384, 16385, 65537, (1 << 20) + 8, (1 << 20) + 7};
  for (std::int64_t i = 0; i < small; ++i) result.insert(result.begin() + i / 8, 3 * i + 1);
  return result;
}

// Numbers in the middle of a tensor, behind a gap that takes them to where no vector begins, or none.
View placed(TestBench& bench, DType dtype, std::vector<double> values, std::int64_t gap) {
  const auto size = static_cast<std::int64_t>(values.size());
  values.insert(values.begin(), static_cast<std::size_t>(gap), 777.0);
  values.push_back(777.0);
  return bench.tensor(dtype, {gap + size + 1}, values).slice(0, gap, gap + size);
}
bool next_is_intact(TestBench& bench, View view) {
  const auto* end = static_cast<std::byte*>(view.data()) + view.bytes();
  return std::abs(bench.read(ConstView(end, view.dtype(), {1})).front() - 777.0) <= 3.0;
}

View float_tensor(TestBench& bench, const std::vector<float>& values) {
  const View view =
      bench.exec.arena().keep(MemoryClass::weights, "master", DType::f32, {static_cast<std::int64_t>(values.size())});
  bench.exec.upload(view, values.data());
  return view;
}
template <class T>
std::vector<T> download(TestBench& bench, ConstView view) {
  std::vector<T> values(static_cast<std::size_t>(view.size()));
  bench.exec.download(values.data(), view);
  return values;
}

// The parameter is the dtype of the weight; bf16 weights have a low half.
class OpsAdamW : public DeviceDType {
 protected:
  // A weight of `masters` in the test's dtype, and its low half where it has one.
  AdamWState make_state(TestBench& bench, const std::vector<double>& masters, DType moments) const {
    const auto size = static_cast<std::int64_t>(masters.size());
    AdamWState state;
    state.m = bench.tensor(moments, {size}, std::vector<double>(masters.size(), 0.0));
    state.v = bench.tensor(moments, {size}, std::vector<double>(masters.size(), 0.0));
    if (dtype() == DType::f32) {
      state.value = bench.tensor(DType::f32, {size}, masters);
    } else {
      state.value = bench.poisoned(DType::bf16, {size});
      state.low = bench.poisoned(DType::i16, {size});
      split_master(bench.exec, state.value, state.low, bench.tensor(DType::f32, {size}, masters));
    }
    return state;
  }
  std::vector<double> masters_of(TestBench& bench, const AdamWState& state) const {
    if (dtype() == DType::f32) return bench.read(state.value);
    const View master = bench.poisoned(DType::f32, state.value.shape());
    join_master(bench.exec, master, state.value, state.low);
    return bench.read(master);
  }
};

// More than one kernel takes; sizes that allow vectors and others; every bit as if each were alone.
TEST_P(OpsAdamW, ManyTogetherAreEachAlone) {
  TestBench bench(device());
  const AdamWSettings settings{.lr = 1e-2, .weight_decay = 0.1, .step = 3};
  const View scale = bench.tensor(DType::f32, {1}, {0.5});
  constexpr std::size_t count = 150;
  std::vector<AdamWSlot> alone, together;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t size = i % 3 == 0 ? 8 * static_cast<std::int64_t>(i + 1) : static_cast<std::int64_t>(5 * i + 1);
    const std::vector<double> start = random_values(size, i + 1);
    const View grad = bench.tensor(DType::f32, {size}, random_values(size, 1000 + i));
    const DType moments = i % 5 == 0 ? DType::bf16 : DType::f32;
    for (std::vector<AdamWSlot>* slots : {&alone, &together})
      slots->push_back({make_state(bench, start, moments), grad});
  }
  for (const AdamWSlot& slot : alone) adamw_step(bench.exec, slot.state, slot.grad, scale, settings);
  adamw_steps(bench.exec, together, scale, settings);
  std::vector<std::int64_t> slots;
  std::vector<ConstView> gradients;
  const View sums = bench.poisoned(DType::f64, {count}), one = bench.poisoned(DType::f64, {1});
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(masters_of(bench, together[i].state), masters_of(bench, alone[i].state)) << i;
    EXPECT_EQ(bench.read(together[i].state.m), bench.read(alone[i].state.m)) << i;
    EXPECT_EQ(bench.read(together[i].state.v), bench.read(alone[i].state.v)) << i;
    slots.push_back(static_cast<std::int64_t>(count - 1 - i));
    gradients.push_back(together[i].grad);
  }
  sums_of_squares(bench.exec, sums, slots, gradients);
  const std::vector<double> actual = download<double>(bench, sums);
  for (std::size_t i = 0; i < count; ++i) {
    sum_of_squares(bench.exec, one, 0, gradients[i]);
    EXPECT_EQ(actual[count - 1 - i], download<double>(bench, one)[0]) << i;
  }
}

TEST_P(OpsAdamW, ManyOfAwkwardSizesFollowTheReference) {
  TestBench bench(device());
  const AdamWSettings settings{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 4};
  const View scale = bench.tensor(DType::f32, {1}, {0.375});
  std::vector<AdamWSlot> slots;
  std::vector<std::vector<double>> values, ms, vs;
  for (const std::int64_t size : mixed_sizes(90)) {
    const std::size_t i = slots.size();
    const std::int64_t gap = i % 3 == 1 ? 1 : 0;
    const DType grad_dtype = i % 5 == 4 ? DType::bf16 : DType::f32;
    const auto start = rounded(random_values(size, 10 * i), DType::f32);
    const auto m = rounded(random_values(size, 10 * i + 1, 0.01), DType::f32);
    auto v = rounded(random_values(size, 10 * i + 2, 1e-4), DType::f32);
    for (double& square : v) square = std::abs(square) + 1e-6f;
    v = rounded(v, DType::f32);
    const auto grad = rounded(random_values(size, 10 * i + 3, 0.01), grad_dtype);
    AdamWState state{.value = placed(bench, dtype(), start, gap),
                     .low = {},
                     .m = placed(bench, DType::f32, m, gap),
                     .v = placed(bench, DType::f32, v, gap)};
    if (dtype() == DType::bf16) {
      state.low = bench.poisoned(DType::i16, {gap + size}).slice(0, gap, gap + size);
      split_master(bench.exec, state.value, state.low, bench.tensor(DType::f32, {size}, start));
    }
    slots.push_back({state, placed(bench, grad_dtype, grad, gap), i % 2 == 0});
    values.emplace_back(), ms.emplace_back(), vs.emplace_back();
    for (std::size_t k = 0; k < start.size(); ++k) {
      reference::AdamWParameter<double> p{start[k], m[k], v[k]};
      reference::adamw(p, 0.375 * grad[k], settings.lr, settings.beta1, settings.beta2, settings.eps,
                       slots.back().decays ? settings.weight_decay : 0.0, settings.step);
      values.back().push_back(p.value), ms.back().push_back(p.m), vs.back().push_back(p.v);
    }
  }
  adamw_steps(bench.exec, slots, scale, settings);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    SCOPED_TRACE(fmt::format("tensor {} of {}", i, values[i].size()));
    const AdamWState& state = slots[i].state;
    EXPECT_LT(relative_error(masters_of(bench, state), values[i]), 6e-7);
    EXPECT_LT(relative_error(bench.read(state.m), ms[i]), 1e-6);
    EXPECT_LT(relative_error(bench.read(state.v), vs[i]), 1e-6);
    for (const View& view : {state.value, state.m, state.v}) EXPECT_TRUE(next_is_intact(bench, view));
  }
}

TEST_P(OpsAdamW, TenStepsFollowADoublePrecisionReference) {
  for (const std::int64_t size : sizes) {
    for (const DType grad_dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} parameters, {} gradients", size, name_of(grad_dtype)));
      TestBench bench(device());
      AdamWSettings settings{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
      const auto start = rounded(random_values(size, 1), DType::f32);
      AdamWState state = make_state(bench, start, DType::f32);
      std::vector<reference::AdamWParameter<double>> expected;
      for (const double value : start) expected.push_back({value, 0, 0});
      const View scale = bench.tensor(DType::f32, {1}, {0.375});
      for (settings.step = 1; settings.step <= 10; ++settings.step) {
        const auto grad =
            rounded(random_values(size, 100 + static_cast<std::uint64_t>(settings.step), 0.01), grad_dtype);
        const bool scaled = settings.step % 2 == 0;
        adamw_step(bench.exec, state, bench.tensor(grad_dtype, {size}, grad), scaled ? ConstView(scale) : ConstView(),
                   settings);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          reference::adamw(expected[i], grad[i] * (scaled ? 0.375 : 1.0), settings.lr, settings.beta1, settings.beta2,
                           settings.eps, settings.weight_decay, settings.step);
        }
      }
      std::vector<double> values, moved, moved_expected, m, v;
      for (const auto& p : expected) values.push_back(p.value), m.push_back(p.m), v.push_back(p.v);
      const auto masters = masters_of(bench, state);
      EXPECT_LT(relative_error(masters, values), 6e-7);  // two roundings a step
      EXPECT_LT(relative_error(bench.read(state.m), m), 1e-6);
      EXPECT_LT(relative_error(bench.read(state.v), v), 1e-6);
      // The update itself, which is small beside the weight: ten roundings of it are all that may differ.
      for (std::size_t i = 0; i < start.size(); ++i) {
        moved.push_back(masters[i] - start[i]), moved_expected.push_back(values[i] - start[i]);
      }
      EXPECT_LT(relative_error(moved, moved_expected), 1e-4);
      if (dtype() == DType::bf16) {
        const auto stored = bench.read(state.value);
        for (std::size_t i = 0; i < stored.size(); ++i) {
          ASSERT_NEAR(stored[i], masters[i], std::abs(masters[i]) / 256.0) << "value is the master rounded";
        }
      }
    }
  }
}

TEST_P(OpsAdamW, Bf16MomentsStayNearTheReference) {
  constexpr std::int64_t size = 1000;
  TestBench bench(device());
  AdamWSettings settings{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0};
  const auto start = rounded(random_values(size, 2), DType::f32);
  AdamWState state = make_state(bench, start, DType::bf16);
  std::vector<double> values = start, m(size, 0.0), v(size, 0.0);
  for (settings.step = 1; settings.step <= 3; ++settings.step) {
    const auto grad = rounded(random_values(size, 200 + static_cast<std::uint64_t>(settings.step)), DType::f32);
    adamw_step(bench.exec, state, bench.tensor(DType::f32, {size}, grad), {}, settings);
    for (std::size_t i = 0; i < values.size(); ++i) {
      reference::AdamWParameter<double> p{values[i], m[i], v[i]};
      reference::adamw(p, grad[i], settings.lr, settings.beta1, settings.beta2, settings.eps, settings.weight_decay,
                       settings.step);
      values[i] = p.value, m[i] = p.m, v[i] = p.v;  // the update uses the moments before they are rounded
    }
    m = rounded(m, DType::bf16), v = rounded(v, DType::bf16);
  }
  EXPECT_LT(relative_error(masters_of(bench, state), values), 1e-6);
  EXPECT_LT(relative_error(bench.read(state.m), m), 1e-3);  // a tie in the rounding may fall either way
  EXPECT_LT(relative_error(bench.read(state.v), v), 1e-3);
}

TEST_P(OpsAdamW, SmallStepsAreNotLost) {
  // Steps far below half a unit of bf16 must add up in the low half.
  TestBench bench(device());
  AdamWState state = make_state(bench, std::vector<double>(50, 1.0), DType::f32);
  const View grad = bench.tensor(DType::f32, {50}, std::vector<double>(50, 1.0));
  for (std::int64_t step = 1; step <= 100; ++step) {
    adamw_step(bench.exec, state, grad, {}, {.lr = 1e-4, .eps = 0, .weight_decay = 0, .step = step});
  }
  for (const double value : masters_of(bench, state)) EXPECT_NEAR(value, 0.99, 1e-5);
}

TEST_P(OpsAdamW, RejectsAMissingLowHalfAndStepZero) {
  TestBench bench(device());
  AdamWState state = make_state(bench, {1.0, 2.0}, DType::f32);
  const View grad = bench.tensor(DType::f32, {2}, {0.0, 0.0});
  EXPECT_THROW(adamw_step(bench.exec, state, grad, {}, {.step = 0}), InternalError);
  state.low = dtype() == DType::bf16 ? View() : bench.poisoned(DType::i16, {2});
  EXPECT_THROW(adamw_step(bench.exec, state, grad, {}, {}), InternalError);
}

INSTANTIATE_TEST_SUITE_P(All, OpsAdamW, on_all_devices(), device_dtype_name);

class OpsMaster : public ::testing::TestWithParam<Device> {};

TEST_P(OpsMaster, SplitAndJoinAreExact) {
  std::vector<std::uint32_t> patterns;
  // Every upper half, with the lower halves where rounding changes its mind.
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x1234u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      patterns.push_back(high << 16 | low);
    }
  }
  std::vector<float> masters;
  for (const std::uint32_t bits : patterns) masters.push_back(std::bit_cast<float>(bits));
  TestBench bench(GetParam());
  const auto size = static_cast<std::int64_t>(masters.size());
  const View value = bench.poisoned(DType::bf16, {size}), low = bench.poisoned(DType::i16, {size});
  const View joined = bench.poisoned(DType::f32, {size});
  split_master(bench.exec, value, low, float_tensor(bench, masters));
  join_master(bench.exec, joined, value, low);
  const auto values = download<bf16>(bench, value);
  const auto lows = download<std::int16_t>(bench, low);
  const auto results = download<float>(bench, joined);
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const std::uint32_t magnitude = patterns[i] & 0x7fffffffu, sign = patterns[i] & 0x80000000u;
    const float stored = static_cast<float>(values[i]);
    const auto result = std::bit_cast<std::uint32_t>(results[i]);
    ASSERT_EQ(std::signbit(stored), sign != 0) << std::hex << patterns[i];
    if (magnitude > 0x7f800000u) {
      ASSERT_TRUE(std::isnan(stored) && std::isnan(results[i])) << std::hex << patterns[i];
      ASSERT_EQ(lows[i], 0);
    } else if (magnitude == 0x7f800000u) {
      ASSERT_TRUE(std::isinf(stored) && result == patterns[i]) << std::hex << patterns[i];
    } else if (magnitude > 0x7f7f7fffu) {  // would round to infinity: clamped
      ASSERT_TRUE(std::isfinite(stored)) << std::hex << patterns[i];
      ASSERT_EQ(result, sign | 0x7f7f7fffu) << std::hex << patterns[i];
    } else {
      ASSERT_EQ(result, patterns[i]);
      // Nearest: no other bf16 is closer. Halves go away from zero.
      const std::uint32_t expected = (magnitude >> 16) + ((magnitude & 0xffffu) >= 0x8000u ? 1 : 0);
      ASSERT_EQ(values[i].bits, sign >> 16 | expected) << std::hex << patterns[i];
    }
  }
}

TEST_P(OpsMaster, SumOfSquaresInDouble) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t size : {std::int64_t{1}, std::int64_t{17}, std::int64_t{70001}, std::int64_t{1200003}}) {
      SCOPED_TRACE(fmt::format("{} {}", size, name_of(dtype)));
      TestBench bench(GetParam());
      const auto x = rounded(random_values(size, 9, 100.0), dtype);
      double expected = 0;
      for (const double value : x) expected += value * value;
      const View sums = bench.tensor(DType::f64, {3}, {-1, -2, -3});
      const View data = bench.tensor(dtype, {size}, x);
      sum_of_squares(bench.exec, sums, 1, data);
      const auto first = bench.read(sums);
      EXPECT_EQ(first[0], -1);
      EXPECT_EQ(first[2], -3);
      EXPECT_NEAR(first[1], expected, expected * 1e-7);
      sum_of_squares(bench.exec, sums, 1, data);
      EXPECT_EQ(bench.read(sums), first) << "the same bits";
    }
  }
}

// Whoever else is summed, in whatever order: the same bits.
TEST_P(OpsMaster, SumsOfManyInDouble) {
  TestBench bench(GetParam());
  std::vector<ConstView> all;
  std::vector<double> expected;
  for (const std::int64_t size : mixed_sizes(300)) {
    const std::size_t i = all.size();
    const DType dtype = i % 3 == 2 ? DType::bf16 : DType::f32;
    const auto x = rounded(random_values(size, 9 + i, 100.0), dtype);
    all.push_back(placed(bench, dtype, x, i % 4 == 3 ? 1 : 0));
    expected.push_back(0);
    for (const double value : x) expected.back() += value * value;
  }
  const auto count = static_cast<std::int64_t>(all.size());
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; i < count; ++i) slots.push_back(count - i);
  const View sums = bench.tensor(DType::f64, {count + 1}, std::vector<double>(all.size() + 1, -1.0));
  sums_of_squares(bench.exec, sums, slots, all);
  const std::vector<double> together = download<double>(bench, sums);
  EXPECT_EQ(together[0], -1);
  const View again = bench.poisoned(DType::f64, {count});
  std::vector<ConstView> backwards(all.rbegin(), all.rend());
  backwards.erase(backwards.begin() + 5);
  slots.clear();
  for (std::int64_t i = 0; i + 1 < count; ++i) slots.push_back(i);
  sums_of_squares(bench.exec, again, slots, backwards);
  std::vector<double> others = download<double>(bench, again);
  others.insert(others.begin() + 5, together[6]);
  others.pop_back();
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(fmt::format("tensor {} of {}", i, all[i].size()));
    const double sum = together[all.size() - i];
    EXPECT_NEAR(sum, expected[i], 1e-12 * expected[i]);
    EXPECT_EQ(others[all.size() - 1 - i], sum);
    sum_of_squares(bench.exec, sums, 0, all[i]);
    EXPECT_EQ(download<double>(bench, sums)[0], sum);
  }
}

TEST_P(OpsMaster, NoNumbersSumToNothing) {
  TestBench bench(GetParam());
  const View sums = bench.tensor(DType::f64, {3}, {-1, -2, -3});
  const ConstView some = bench.tensor(DType::f32, {2}, {3.0, 4.0});
  const std::int64_t slots[] = {0, 2};
  const ConstView all[] = {some.slice(0, 1, 1), some};
  sums_of_squares(bench.exec, sums, slots, all);
  sums_of_squares(bench.exec, sums, {}, {});
  EXPECT_EQ(bench.read(sums), (std::vector<double>{0, -2, 25}));
}

TEST_P(OpsMaster, ClipScale) {
  TestBench bench(GetParam());
  const View norm = bench.poisoned(DType::f32, {1}), scale = bench.poisoned(DType::f32, {1});
  const View sums = bench.tensor(DType::f64, {3}, {4.0, 3.0, 9.0});
  const auto run = [&](View from, float max_norm) {
    clip_scale(bench.exec, norm, scale, from, max_norm);
    return std::pair(bench.read(norm)[0], bench.read(scale)[0]);
  };
  EXPECT_EQ(run(sums, 0.0f), std::pair(4.0, 1.0));
  EXPECT_EQ(run(sums, 5.0f), std::pair(4.0, 1.0));
  EXPECT_NEAR(run(sums, 1.0f).second, 1.0 / 4.000001, 1e-7);
  const View nothing = bench.tensor(DType::f64, {1}, {0.0});
  EXPECT_EQ(run(nothing, 1.0f), std::pair(0.0, 1.0));
  const View broken = bench.tensor(DType::f64, {2}, {1.0, std::nan("")});
  EXPECT_TRUE(std::isnan(run(broken, 1.0f).second)) << "a NaN is not hidden";
}

INSTANTIATE_TEST_SUITE_P(All, OpsMaster, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::ops
