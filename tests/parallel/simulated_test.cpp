#include <gtest/gtest.h>

#include <chrono>

#include "parallel/communicator.h"
#include "support/device_tensors.h"

namespace inlay::testing {
namespace {

using parallel::CutTensor;
using parallel::RowCut;

// Every other rank is taken to have what this one has.
TEST(ParallelSimulated, GivesWhatEqualRanksWould) {
  for (const Device device : devices()) {
    for (const int rank : {0, 2}) {
      TestBench bench(device, std::size_t{4} << 20);
      const auto ranks = parallel::simulated_process(rank, 3, 1e12, 0);
      const std::vector<double> values = random_values(7 * 5, 1);
      const RowCut cut = RowCut::even(7, 3);  // 2, 2, 3
      const auto rows = [&](std::int64_t begin, std::int64_t end, double factor) {
        std::vector<double> part(values.begin() + begin * 5, values.begin() + end * 5);
        for (double& value : part) value *= factor;
        return rounded(part, DType::f32);
      };
      const View sum = bench.tensor(DType::f32, {7, 5}, values);
      ranks->all_reduce(bench.exec, {&sum, 1}, "test");
      const View whole = bench.tensor(DType::f32, {7, 5}, values);
      const View share = bench.poisoned(DType::f32, {cut.rows_of(rank), 5});
      const CutTensor parts[] = {{whole, share, &cut}};
      ranks->reduce_scatter(bench.exec, parts, "test");
      const View gathered = bench.poisoned(DType::f32, {7, 5});
      const CutTensor own[] = {{gathered, share, &cut}};
      ranks->all_gather(bench.exec, own, "test");
      bench.exec.synchronize();
      EXPECT_LT(relative_error(bench.read(sum), rows(0, 7, 3)), 1e-6);
      EXPECT_LT(relative_error(bench.read(share), rows(cut.begin(rank), cut.end(rank), 3)), 1e-6);
      EXPECT_EQ(bench.read(gathered.slice_rows(cut.begin(rank), cut.end(rank))), bench.read(share));
      for (const double value : bench.read(gathered)) EXPECT_FALSE(std::isnan(value)) << "rows of other ranks";
      EXPECT_EQ(ranks->sum(std::vector<double>{2}, "test"), std::vector<double>{6});
    }
  }
}

// At least as long as the network would take; how much longer is the machine's affair.
TEST(ParallelSimulated, TakesTheTimeOfTheNetwork) {
  for (const Device device : devices()) {
    TestBench bench(device, std::size_t{4} << 20);
    const View tensor = bench.tensor(DType::f32, {1000}, std::vector<double>(1000, 1));
    const auto ranks = parallel::simulated_process(0, 2, 1e5, 0.01);  // 2 · 4000 B · ½ at 100 kB/s: 40 ms
    const auto began = std::chrono::steady_clock::now();
    ranks->all_reduce(bench.exec, {&tensor, 1}, "test");
    bench.exec.synchronize();
    EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), 0.0499);
  }
}

}  // namespace
}  // namespace inlay::testing
