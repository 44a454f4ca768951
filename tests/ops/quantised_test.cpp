#include "ops/quantised.h"

#include <cstring>

#include "io/mxfp4.h"
#include "io/safetensors.h"
#include "op_cases.h"
#include "ops/quant_codes.h"
#include "ops/reference/quantised.h"
#include "support/paths.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

const std::vector<QuantFormat> quant_formats = {QuantFormat::nf4, QuantFormat::mxfp4, QuantFormat::int8,
                                                QuantFormat::fp8};

using Bytes = std::vector<std::uint8_t>;

Bytes bytes_of(const ConstView& host) {
  const auto* data = static_cast<const std::uint8_t*>(host.data());
  return {data, data + host.bytes()};
}

// The parameters: a device, and the dtype that matrices are opened in.
class OpsQuantised : public DeviceDType {
 protected:
  static const io::SafetensorsFile& golden() {
    static const io::SafetensorsFile file(source_folder() / "tests/golden/quantised.safetensors");
    return file;
  }
  static Bytes golden_bytes(const std::string& name) { return bytes_of(golden().tensor(name)); }

  static Bytes read(TestBench& bench, ConstView view) {
    Bytes bytes(view.bytes());
    bench.exec.download(bytes.data(), view);
    return bytes;
  }
  static View upload(TestBench& bench, ConstView host) {
    const View view = bench.poisoned(host.dtype(), host.shape());
    bench.exec.upload(view, host.data());
    return view;
  }
  static Quantised make(TestBench& bench, QuantFormat format, std::int64_t rows, std::int64_t cols) {
    return make_quantised(format, rows, cols,
                          [&](std::string_view, DType dtype, Shape shape) { return bench.poisoned(dtype, shape); });
  }
  static View pending_for(TestBench& bench, const Quantised& q) {
    const std::int64_t count = quant_pending_scales(q.format, q.rows, q.cols);
    return count > 0 ? bench.poisoned(DType::f32, {count}) : View();
  }
  // In pieces of so many row steps; 0: all at once.
  static void quantise(TestBench& bench, const Quantised& to, ConstView values, View pending, std::int64_t steps,
                       std::optional<float> offset = {}) {
    const std::int64_t piece = steps == 0 ? to.rows : steps * quant_row_step(to.format, to.cols);
    for (std::int64_t row = 0; row < to.rows; row += piece) {
      quantise_rows(bench.exec, to, row, values.slice_rows(row, std::min(to.rows, row + piece)), pending);
    }
    finish_quantising(bench.exec, to, pending, offset);
  }
  View open(TestBench& bench, const Quantised& q) const {
    const View out = bench.poisoned(dtype(), {q.rows, q.cols});
    dequantise_rows(bench.exec, out, q, 0);
    return out;
  }
  // All tensors of the matrix, one after the other.
  static std::vector<Bytes> parts(TestBench& bench, const Quantised& q) {
    std::vector<Bytes> result;
    for (const View& view : {q.codes, q.scales, q.nested_scales, q.offset}) {
      if (view) result.push_back(read(bench, view));
    }
    return result;
  }
};

TEST_P(OpsQuantised, TablesAreBitsandbytes) {
  const auto bytes = [](const auto& table) {
    return bytes_of(ConstView(table.data(), DType::f32, {static_cast<std::int64_t>(table.size())}));
  };
  EXPECT_EQ(bytes(quant::nf4_values), golden_bytes("nf4.map"));
  EXPECT_EQ(bytes(quant::dynamic_values), golden_bytes("dynamic.map"));
}

TEST_P(OpsQuantised, Nf4IsBitsandbytesBitForBit) {
  for (const std::string name : {"many_blocks", "straddling", "one_row", "odd", "edges"}) {
    const ConstView values = golden().tensor(name + ".values");
    const float offset = *golden().tensor(name + ".nf4.offset").as<float>();
    for (const std::int64_t steps : {0, 1, 2}) {
      SCOPED_TRACE(fmt::format("{}, steps of {}", name, steps));
      TestBench bench(device());
      const Quantised q = make(bench, QuantFormat::nf4, values.dim(0), values.dim(1));
      const View pending = pending_for(bench, q);
      quantise(bench, q, upload(bench, values), pending, steps, offset);
      EXPECT_EQ(read(bench, pending), golden_bytes(name + ".nf4.absmax"));
      EXPECT_EQ(read(bench, q.codes), golden_bytes(name + ".nf4.codes"));
      EXPECT_EQ(read(bench, q.scales), golden_bytes(name + ".nf4.scales"));
      EXPECT_EQ(read(bench, q.nested_scales), golden_bytes(name + ".nf4.nested_scales"));
      EXPECT_EQ(read(bench, open(bench, q)), golden_bytes(fmt::format("{}.nf4.{}", name, name_of(dtype()))));
      // Our own mean: within the rounding of a sum in fp32.
      finish_quantising(bench.exec, q, pending);
      EXPECT_NEAR(bench.read(q.offset)[0] / static_cast<double>(offset), 1.0, 1e-6);
    }
  }
}

TEST_P(OpsQuantised, Int8AndFp8RowsAreBitsandbytesAndPyTorchBitForBit) {
  for (const QuantFormat format : {QuantFormat::int8, QuantFormat::fp8}) {
    for (const std::string name : {"straddling", "one_row", "odd", "edges"}) {
      SCOPED_TRACE(fmt::format("{}, {}", name_of(format), name));
      const ConstView values = golden().tensor(name + ".values");
      TestBench bench(device());
      const Quantised q = make(bench, format, values.dim(0), values.dim(1));
      quantise(bench, q, upload(bench, values), {}, 2);
      const std::string prefix = fmt::format("{}.{}.", name, name_of(format));
      EXPECT_EQ(read(bench, q.codes), golden_bytes(prefix + "codes"));
      EXPECT_EQ(read(bench, q.scales), golden_bytes(prefix + "scales"));
      TestBench host(Device::cpu);
      const auto opened = host.read(golden().tensor(prefix + "fp32"));
      EXPECT_EQ(bench.read(open(bench, q)), rounded(opened, dtype()));
    }
  }
}

// As the loader of GPT-OSS files has always decoded them.
TEST_P(OpsQuantised, Mxfp4OpensEveryByteWithEveryScale) {
  constexpr std::int64_t rows = 256, cols = 512;  // a row for each scale
  Bytes codes, scales;
  for (int scale = 0; scale < rows; ++scale) {
    for (int byte = 0; byte < 256; ++byte) codes.push_back(static_cast<std::uint8_t>(byte));
    scales.insert(scales.end(), cols / 32, static_cast<std::uint8_t>(scale));
  }
  std::vector<bf16> decoded(rows * cols);
  io::mxfp4_decode(decoded, codes, scales);
  TestBench bench(device());
  const Quantised q = make(bench, QuantFormat::mxfp4, rows, cols);
  bench.exec.upload(q.codes, codes.data());
  bench.exec.upload(q.scales, scales.data());
  const auto actual = bench.read(open(bench, q));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double expected = static_cast<float>(decoded[i]);
    if (scales[i / 32] == 255) {
      ASSERT_TRUE(std::isnan(actual[i])) << i;
    } else {
      ASSERT_EQ(actual[i], expected) << i;
      ASSERT_EQ(std::signbit(actual[i]), std::signbit(expected)) << i;
    }
  }
}

TEST_P(OpsQuantised, Mxfp4RoundsToNearestEvenUnderTheScaleOfTheSpecification) {
  std::vector<double> elements;
  for (int code = 0; code < 16; ++code) elements.push_back(reference::small_float(code, 2, 1));
  constexpr std::int64_t rows = 7, cols = 96;
  auto values = random_values(rows * cols, 3, 0.02);
  for (std::size_t i = 0; i < 32; ++i) values[i] = 0.25 * static_cast<double>(i) - 4;  // ties, and all there is to hold
  for (std::size_t i = 32; i < 64; ++i) values[i] = 0;
  for (std::size_t i = 64; i < 96; ++i) values[i] *= 1e-38;  // subnormal numbers, and the smallest scale
  for (std::size_t i = 96; i < 128; ++i) values[i] *= 1e38;
  values[97] = 7.9;  // beyond 6 times the scale
  for (const DType from : {DType::f32, DType::bf16}) {
    TestBench bench(device());
    const auto x = rounded(values, from);
    const Quantised q = make(bench, QuantFormat::mxfp4, rows, cols);
    quantise(bench, q, bench.tensor(from, {rows, cols}, x), {}, 2);
    const Bytes codes = read(bench, q.codes), scales = read(bench, q.scales);
    for (std::size_t block = 0; block < scales.size(); ++block) {
      double largest = 0;
      for (std::size_t i = 32 * block; i < 32 * block + 32; ++i) largest = std::max(largest, std::abs(x[i]));
      const int exponent = largest == 0 ? -1000 : static_cast<int>(std::floor(std::log2(largest))) - 2;
      ASSERT_EQ(scales[block], std::max(exponent, -127) + 127) << block;
      for (std::size_t i = 32 * block; i < 32 * block + 32; ++i) {
        const double scaled = std::clamp(std::ldexp(x[i], 127 - scales[block]), -6.0, 6.0);
        const int code = codes[i / 2] >> (i % 2 * 4) & 15;
        ASSERT_EQ(elements[static_cast<std::size_t>(code)], elements[reference::nearest(elements, scaled)]) << i;
      }
    }
    // What MXFP4 can hold stays what it is.
    const View opened = open(bench, q);
    const Quantised again = make(bench, QuantFormat::mxfp4, rows, cols);
    quantise(bench, again, opened, {}, 1);
    EXPECT_EQ(bench.read(open(bench, again)), bench.read(opened));
  }
}

TEST_P(OpsQuantised, Fp8OpensEveryCodeAndRoundsToNearestEven) {
  std::vector<double> elements;
  for (int code = 0; code < 256; ++code) {
    elements.push_back((code & 0x7f) == 0x7f ? NAN : reference::small_float(code, 4, 3));
  }
  TestBench bench(device());
  const Quantised q = make(bench, QuantFormat::fp8, 1, 256);
  Bytes codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
  bench.exec.upload(q.codes, codes.data());
  const float one = 1;
  bench.exec.upload(q.scales, &one);
  const auto opened = bench.read(open(bench, q));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (std::isnan(elements[i])) {
      EXPECT_TRUE(std::isnan(opened[i])) << i;
    } else {
      EXPECT_EQ(opened[i], elements[i]) << i;
      EXPECT_EQ(std::signbit(opened[i]), std::signbit(elements[i])) << i;
    }
  }
  // 448 makes the scale 1; then all middles of neighbours, and what lies around them.
  std::vector<double> values = {448};
  for (std::size_t i = 0; i + 1 < 0x7f; ++i) {
    const double middle = (elements[i] + elements[i + 1]) / 2;
    for (const double x : {middle, middle * (1 + 1e-6), middle * (1 - 1e-6)}) values.insert(values.end(), {x, -x});
  }
  const auto count = static_cast<std::int64_t>(values.size());
  const auto x = rounded(values, DType::f32);
  const Quantised made = make(bench, QuantFormat::fp8, 1, count);
  quantise(bench, made, bench.tensor(DType::f32, {1, count}, x), {}, 0);
  const Bytes actual = read(bench, made.codes);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(elements[actual[i]], elements[reference::nearest(elements, x[i])]) << x[i];
  }
}

// Against the definitions in fp64, in any shape, whatever the pieces.
TEST_P(OpsQuantised, CodesAreTheNearestAndPiecesMakeNoDifference) {
  const std::vector<double> nf4(quant::nf4_values.begin(), quant::nf4_values.end());
  std::vector<double> steps(255), e4m3;
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = (static_cast<double>(i) - 127) / 127;
  for (int code = 0; code < 0x7f; ++code) {
    for (const int sign : {0, 0x80}) e4m3.push_back(reference::small_float(code | sign, 4, 3) / 448);
  }
  for (const auto& [rows, cols] : awkward_shapes()) {
    for (const DType from : {DType::f32, DType::bf16, DType::f16}) {
      for (const QuantFormat format : {QuantFormat::nf4, QuantFormat::int8, QuantFormat::fp8}) {
        SCOPED_TRACE(fmt::format("{} x {} from {} to {}", rows, cols, name_of(from), name_of(format)));
        TestBench bench(device());
        const auto x = rounded(random_values(rows * cols, 5, 0.1), from);
        const View values = bench.tensor(from, {rows, cols}, x);
        const Quantised q = make(bench, format, rows, cols), other = make(bench, format, rows, cols);
        const View pending = pending_for(bench, q);
        quantise(bench, q, values, pending, 0);
        const auto waited = pending ? bench.read(pending) : std::vector<double>();
        quantise(bench, other, values, pending, 1);
        EXPECT_EQ(parts(bench, other), parts(bench, q));

        // Every number is as near as its block's scale allows.
        const auto& numbers = format == QuantFormat::nf4 ? nf4 : format == QuantFormat::int8 ? steps : e4m3;
        const auto width = static_cast<std::size_t>(format == QuantFormat::nf4 ? 64 : cols);
        const Bytes codes = read(bench, q.codes);
        for (std::size_t begin = 0; begin < x.size(); begin += width) {
          double largest = 0;
          const std::size_t end = std::min(begin + width, x.size());
          for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
          if (!waited.empty()) {
            ASSERT_EQ(waited[begin / 64], largest);
          }
          if (largest == 0) continue;
          for (std::size_t i = begin; i < end; ++i) {
            double got = 0;
            if (format == QuantFormat::nf4) {
              got = nf4[codes[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15];
            } else if (format == QuantFormat::int8) {
              got = static_cast<std::int8_t>(codes[i]) / 127.0;
            } else {
              got = reference::small_float(codes[i], 4, 3) / 448;
            }
            const double wanted = x[i] / largest, best = numbers[reference::nearest(numbers, wanted)];
            ASSERT_LE(std::abs(wanted - got), std::abs(wanted - best) + 1e-6) << i;
          }
        }
      }
    }
  }
}

// The scales of NF4's blocks, nested and opened again, are near what they were: the 8-bit map's widest gap is 2 %.
TEST_P(OpsQuantised, NestedScalesComeBack) {
  TestBench bench(device());
  const std::int64_t rows = 300, cols = 320;
  auto x = random_values(rows * cols, 6);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= 1 + static_cast<double>(i / 64 % 7);
  const Quantised q = make(bench, QuantFormat::nf4, rows, cols);
  const View pending = pending_for(bench, q);
  quantise(bench, q, bench.tensor(DType::f32, {rows, cols}, x), pending, 3);
  const auto scales = bench.read(pending);
  double mean = 0;
  for (const double scale : scales) mean += scale / static_cast<double>(scales.size());
  EXPECT_NEAR(bench.read(q.offset)[0] / mean, 1, 1e-7);
  const Bytes codes = read(bench, q.scales);
  const auto nested = bench.read(q.nested_scales);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    EXPECT_NEAR(quant::dynamic_values[codes[i]] * nested[i / 256] + mean, scales[i], 0.01 * nested[i / 256]) << i;
  }
}

TEST_P(OpsQuantised, RowsAndManyMatricesOpenAsOneDoes) {
  for (const QuantFormat format : quant_formats) {
    for (const std::int64_t cols : {32, 96, 320}) {
      SCOPED_TRACE(fmt::format("{}, {} columns", name_of(format), cols));
      constexpr std::int64_t rows = 23;
      TestBench bench(device());
      std::vector<Quantised> matrices;
      std::vector<std::vector<double>> whole;
      for (std::uint64_t m = 0; m < 67; ++m) {  // more than one launch takes
        matrices.push_back(make(bench, format, rows, cols));
        quantise(bench, matrices.back(), bench.tensor(DType::f32, {rows, cols}, random_values(rows * cols, m)),
                 pending_for(bench, matrices.back()), 0);
        whole.push_back(bench.read(open(bench, matrices.back())));
      }
      for (const auto& [begin, end] : {std::pair{0, 23}, {3, 4}, {7, 20}}) {
        const auto count = static_cast<std::int64_t>(matrices.size());
        const View out = bench.poisoned(dtype(), {count, end - begin, cols});
        dequantise_rows(bench.exec, out, matrices, begin);
        std::vector<double> expected;
        for (const auto& one : whole)
          expected.insert(expected.end(), one.begin() + begin * cols, one.begin() + end * cols);
        ASSERT_EQ(bench.read(out), expected) << begin << " to " << end;
      }
    }
  }
  // Columns that no vector divides.
  for (const QuantFormat format : {QuantFormat::nf4, QuantFormat::int8, QuantFormat::fp8}) {
    TestBench bench(device());
    const Quantised q = make(bench, format, 11, 37);
    quantise(bench, q, bench.tensor(DType::f32, {11, 37}, random_values(11 * 37, 1)), pending_for(bench, q), 0);
    const auto whole = bench.read(open(bench, q));
    for (std::int64_t row = 0; row < 11; ++row) {
      const View out = bench.poisoned(dtype(), {1, 37});
      dequantise_rows(bench.exec, out, q, row);
      ASSERT_EQ(bench.read(out), row_of(whole, row, 37)) << name_of(format) << ", row " << row;
    }
  }
}

// What the CPU makes of a matrix, every device makes of it.
TEST_P(OpsQuantised, DevicesAgreeBitForBit) {
  for (const QuantFormat format : quant_formats) {
    for (const DType from : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(fmt::format("{} from {}", name_of(format), name_of(from)));
      constexpr std::int64_t rows = 301, cols = 992;
      auto x = random_values(rows * cols, 9, 0.3);
      std::fill(x.begin(), x.begin() + 2 * cols, 0.0);
      const auto run = [&](Device where) {
        TestBench bench(where);
        const Quantised q = make(bench, format, rows, cols);
        quantise(bench, q, bench.tensor(from, {rows, cols}, x), pending_for(bench, q), 40);
        auto result = parts(bench, q);
        result.push_back(read(bench, open(bench, q)));
        return result;
      };
      EXPECT_EQ(run(device()), run(Device::cpu));
    }
  }
}

TEST_P(OpsQuantised, ZerosStayZeros) {
  for (const QuantFormat format : quant_formats) {
    TestBench bench(device());
    const Quantised q = make(bench, format, 3, 64);
    quantise(bench, q, bench.tensor(DType::f32, {3, 64}, std::vector<double>(192, 0.0)), pending_for(bench, q), 0);
    EXPECT_EQ(bench.read(open(bench, q)), std::vector<double>(192, 0.0)) << name_of(format);
  }
}

TEST_P(OpsQuantised, PlansWhatItMoves) {
  const auto planned = [&](QuantFormat format, std::int64_t rows) {
    backend::Exec exec = backend::Exec::planner(device());
    const auto take = [&](std::string_view name, DType dtype, Shape shape) {
      return exec.arena().keep(MemoryClass::weights, name, dtype, shape);
    };
    const Quantised q = make_quantised(format, 128, 256, take);
    const View out = exec.arena().keep(MemoryClass::workspace, "out", dtype(), {rows, 256});
    dequantise_rows(exec, out, q, 64);
    const backend::Work work = exec.cost().total();
    return (device() == Device::cpu ? work.host_bytes + work.bytes : work.bytes) - static_cast<double>(out.bytes());
  };
  EXPECT_EQ(planned(QuantFormat::mxfp4, 64), 64 * (128 + 8));
  EXPECT_EQ(planned(QuantFormat::mxfp4, 1), 128 + 8);
  EXPECT_EQ(planned(QuantFormat::nf4, 64), 64 * (128 + 4) + 4);
  EXPECT_EQ(planned(QuantFormat::int8, 64), 64 * (256 + 4));
  EXPECT_EQ(planned(QuantFormat::fp8, 64), 64 * (256 + 4));
}

TEST_P(OpsQuantised, RejectsMismatches) {
  TestBench bench(device());
  const Quantised q = make(bench, QuantFormat::nf4, 8, 48);
  const View pending = pending_for(bench, q), values = bench.poisoned(DType::f32, {8, 48});
  EXPECT_EQ(quant_row_step(QuantFormat::nf4, 48), 4);
  EXPECT_EQ(quant_row_step(QuantFormat::nf4, 128), 1);
  EXPECT_EQ(quant_row_step(QuantFormat::nf4, 37), 64);
  EXPECT_EQ(quant_row_step(QuantFormat::fp8, 37), 1);
  EXPECT_THROW(quantise_rows(bench.exec, q, 2, values.slice_rows(0, 4), pending), InternalError);
  EXPECT_THROW(quantise_rows(bench.exec, q, 0, values.slice_rows(0, 3), pending), InternalError);
  EXPECT_THROW(quantise_rows(bench.exec, q, 4, values, pending), InternalError);
  EXPECT_THROW(quantise_rows(bench.exec, q, 0, values), InternalError);
  EXPECT_THROW(quantise_rows(bench.exec, q, 0, bench.poisoned(DType::f32, {8, 47}), pending), InternalError);
  EXPECT_THROW(finish_quantising(bench.exec, q, {}), InternalError);
  EXPECT_THROW(dequantise_rows(bench.exec, bench.poisoned(dtype(), {8, 48}), q, 1), InternalError);
  EXPECT_THROW(dequantise_rows(bench.exec, bench.poisoned(DType::f16, {8, 48}), q, 0), InternalError);
  const Quantised both[] = {q, make(bench, QuantFormat::int8, 8, 48)};
  EXPECT_THROW(dequantise_rows(bench.exec, bench.poisoned(dtype(), {2, 8, 48}), both, 0), InternalError);
  EXPECT_THROW(make(bench, QuantFormat::mxfp4, 8, 48), InternalError);
  for (const QuantFormat format : quant_formats) EXPECT_EQ(parse_quant_format(name_of(format)), format);
  EXPECT_EQ(parse_quant_format("fp4"), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(All, OpsQuantised, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
