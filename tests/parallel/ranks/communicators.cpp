#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "parallel/processes.h"
#include "support/device_tensors.h"
#include "support/files.h"

// What one rank of several checks. Tests of Parallel run these under mpirun; alone they have nothing to do.
namespace inlay::testing {
namespace {

using parallel::Communicator;
using parallel::CutTensor;
using parallel::RowCut;

class UnderMpirun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (parallel::place_in_environment().size == 1) return;
    const char* const device = std::getenv("INLAY_TEST_RANKS_ON");
    device_ = device != nullptr && std::string_view(device) == "cuda" ? Device::cuda : Device::cpu;
    world_ = parallel::take_places(parallel::join_processes(), device_, false, {});
  }
  static void TearDownTestSuite() {
    world_.reset();
    parallel::leave_processes();
  }
  void SetUp() override {
    if (world_ == nullptr) GTEST_SKIP() << "for mpirun";
  }

  // A rank's numbers, as the dtype has them. On a GPU they are whole, so that any order of summation gives the same.
  static std::vector<double> numbers(std::int64_t count, int rank, DType dtype) {
    std::vector<double> values;
    values.reserve(static_cast<std::size_t>(count));
    auto state = static_cast<std::uint32_t>(rank) * 40503U + 17;
    for (std::int64_t i = 0; i < count; ++i) {
      state = state * 1664525U + 1013904223U;
      const int whole = static_cast<int>(state >> 16) % 1000 - 500;
      values.push_back(device_ == Device::cuda ? whole : 0.1 * whole);
    }
    return rounded(std::move(values), dtype);
  }
  // Summed in the dtype, from rank 0 on.
  static std::vector<double> sums(std::int64_t count, int ranks, DType dtype) {
    std::vector<double> total = numbers(count, 0, dtype);
    for (int rank = 1; rank < ranks; ++rank) {
      const std::vector<double> more = numbers(count, rank, dtype);
      for (std::size_t i = 0; i < total.size(); ++i) {
        total[i] =
            dtype == DType::f64 ? total[i] + more[i] : static_cast<float>(total[i]) + static_cast<float>(more[i]);
      }
    }
    return total;
  }

  static std::vector<Shape> shapes() {
    return {{1}, {1, 1}, {2, 3}, {7, 5}, {13, 1}, {64, 33}, {0, 4}, {3, 0}, {101, 101}, {8, 1024}};
  }
  static std::vector<RowCut> cuts(std::int64_t rows, int ranks) {
    std::vector<RowCut> found = {RowCut::even(rows, ranks)};
    for (int owner = 0; owner < ranks; ++owner) found.push_back(RowCut::whole(rows, ranks, owner));
    return found;
  }

  static void check_reduce_scatter(Communicator& ranks, DType dtype, bool in_place);
  static void check_all_gather(Communicator& ranks, DType dtype, bool in_place);
  static void check_all_reduce(Communicator& ranks, DType dtype);

  static inline std::shared_ptr<Communicator> world_;
  static inline Device device_ = Device::cpu;
};

std::vector<double> rows_of(const std::vector<double>& values, const Shape& shape, const RowCut& cut, int rank) {
  const std::int64_t row = shape[0] == 0 ? 0 : shape.size() / shape[0];
  return {values.begin() + cut.begin(rank) * row, values.begin() + cut.end(rank) * row};
}

View share_in(TestBench& bench, View whole, const RowCut& cut, int rank, bool in_place) {
  if (in_place) return whole.slice_rows(cut.begin(rank), cut.end(rank));
  return bench.poisoned(whole.dtype(), whole.shape().with_rows(cut.rows_of(rank)));
}

// All shapes and cuts at once, so that pieces of many tensors go together.
void UnderMpirun::check_reduce_scatter(Communicator& ranks, DType dtype, bool in_place) {
  TestBench bench(device_, std::size_t{64} << 20);
  std::vector<RowCut> all_cuts;
  for (const Shape& shape : shapes()) {
    for (const RowCut& cut : cuts(shape[0], ranks.size())) all_cuts.push_back(cut);
  }
  std::vector<CutTensor> tensors;
  for (const Shape& shape : shapes()) {
    for (int i = 0; i <= ranks.size(); ++i) {
      const RowCut& cut = all_cuts[tensors.size()];
      const View whole = bench.tensor(dtype, shape, numbers(shape.size(), ranks.rank(), dtype));
      tensors.push_back({whole, share_in(bench, whole, cut, ranks.rank(), in_place), &cut});
    }
  }
  ranks.reduce_scatter(bench.exec, tensors, "test");
  bench.exec.synchronize();
  for (const CutTensor& t : tensors) {
    const std::vector<double> all = sums(t.whole.shape().size(), ranks.size(), dtype);
    EXPECT_EQ(bench.read(t.share), rows_of(all, t.whole.shape(), *t.cut, ranks.rank())) << t.whole.shape().str();
  }
}

void UnderMpirun::check_all_gather(Communicator& ranks, DType dtype, bool in_place) {
  TestBench bench(device_, std::size_t{64} << 20);
  for (const Shape& shape : shapes()) {
    const std::vector<double> all = numbers(shape.size(), 99, dtype);
    for (const RowCut& cut : cuts(shape[0], ranks.size())) {
      const View whole = bench.poisoned(dtype, shape), share = share_in(bench, whole, cut, ranks.rank(), in_place);
      const View mine = bench.tensor(dtype, share.shape(), rows_of(all, shape, cut, ranks.rank()));
      backend::copy_in_lane(bench.exec, share, mine, backend::Lane::network);
      const CutTensor tensor{whole, share, &cut};
      ranks.all_gather(bench.exec, {&tensor, 1}, "test");
      bench.exec.synchronize();
      EXPECT_EQ(bench.read(whole), all) << shape.str();
    }
  }
}

void UnderMpirun::check_all_reduce(Communicator& ranks, DType dtype) {
  TestBench bench(device_, std::size_t{64} << 20);
  std::vector<View> tensors;
  for (const Shape& shape : shapes()) {
    tensors.push_back(bench.tensor(dtype, shape, numbers(shape.size(), ranks.rank(), dtype)));
  }
  ranks.all_reduce(bench.exec, tensors, "test");
  bench.exec.synchronize();
  for (const View& t : tensors) {
    EXPECT_EQ(bench.read(t), sums(t.shape().size(), ranks.size(), dtype)) << t.shape().str();
  }
}

TEST_F(UnderMpirun, SumsReachTheirOwners) {
  for (const bool in_place : {false, true}) {
    for (const DType dtype : {DType::f32, DType::f64}) check_reduce_scatter(*world_, dtype, in_place);
  }
}

TEST_F(UnderMpirun, EverybodyGetsAllSums) {
  for (const DType dtype : {DType::f32, DType::f64}) check_all_reduce(*world_, dtype);
}

TEST_F(UnderMpirun, EverybodyGetsAllShares) {
  for (const bool in_place : {false, true}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) check_all_gather(*world_, dtype, in_place);
  }
}

// More than fits into the scratch memory of a sum at once, of both dtypes, beginning off any boundary.
TEST_F(UnderMpirun, LargeSumsGoInPieces) {
  TestBench bench(device_, std::size_t{256} << 20);
  const std::int64_t rows = (std::int64_t{5} << 20) / 7;
  const View odd = bench.tensor(DType::f32, {3, 1}, numbers(3, world_->rank(), DType::f32));
  const View wide = bench.tensor(DType::f64, {rows, 1}, numbers(rows, world_->rank(), DType::f64));
  const View large = bench.tensor(DType::f32, {rows, 7}, numbers(rows * 7, world_->rank(), DType::f32));
  const RowCut few = RowCut::even(3, world_->size()), many = RowCut::even(rows, world_->size());
  const std::vector<CutTensor> tensors = {{odd, share_in(bench, odd, few, world_->rank(), false), &few},
                                          {wide, share_in(bench, wide, many, world_->rank(), false), &many},
                                          {large, share_in(bench, large, many, world_->rank(), true), &many}};
  world_->reduce_scatter(bench.exec, tensors, "test");
  bench.exec.synchronize();
  for (const CutTensor& t : tensors) {
    const std::vector<double> all = sums(t.whole.size(), world_->size(), t.whole.dtype());
    EXPECT_TRUE(bench.read(t.share) == rows_of(all, t.whole.shape(), *t.cut, world_->rank()));
  }
}

TEST_F(UnderMpirun, BroadcastsAndTransposes) {
  TestBench bench(device_, std::size_t{64} << 20);
  const int size = world_->size(), rank = world_->rank();
  for (int root = 0; root < size; ++root) {
    const std::vector<View> tensors = {bench.tensor(DType::bf16, {7, 5}, numbers(35, rank, DType::bf16)),
                                       bench.tensor(DType::f32, {0, 3}, {}),
                                       bench.tensor(DType::f64, {1}, numbers(1, rank, DType::f64))};
    world_->broadcast(bench.exec, tensors, root, "test");
    bench.exec.synchronize();
    EXPECT_EQ(bench.read(tensors[0]), numbers(35, root, DType::bf16));
    EXPECT_EQ(bench.read(tensors[2]), numbers(1, root, DType::f64));
  }
  constexpr std::int64_t n = 3;
  const View to = bench.poisoned(DType::f32, {size * n, 5});
  const std::vector<double> mine = numbers(size * n * 5, rank, DType::f32);
  world_->all_to_all(bench.exec, to, bench.tensor(DType::f32, {size * n, 5}, mine), "test");
  bench.exec.synchronize();
  std::vector<double> expected;
  for (int from = 0; from < size; ++from) {
    const std::vector<double> theirs = numbers(size * n * 5, from, DType::f32);
    expected.insert(expected.end(), theirs.begin() + rank * n * 5, theirs.begin() + (rank + 1) * n * 5);
  }
  EXPECT_EQ(bench.read(to), expected);
}

TEST_F(UnderMpirun, GroupsWorkAmongThemselves) {
  const int colour = world_->rank() % 2;
  const std::shared_ptr<Communicator> group = world_->split(colour);
  ASSERT_EQ(group->size(), (world_->size() + 1 - colour) / 2);
  EXPECT_EQ(group->rank(), world_->rank() / 2);
  EXPECT_EQ(group->name_of(group->rank()), world_->name_of(world_->rank())) << "messages name ranks of the run";
  check_reduce_scatter(*group, DType::f32, true);
  check_all_gather(*group, DType::f32, false);
  check_all_reduce(*group, DType::f64);
}

TEST_F(UnderMpirun, SmallThingsAreExchangedInOrder) {
  const int size = world_->size(), rank = world_->rank();
  const std::vector<std::string> all =
      world_->exchange(std::string(static_cast<std::size_t>(rank) * 1000, static_cast<char>('a' + rank)), "test");
  ASSERT_EQ(all.size(), static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(all[static_cast<std::size_t>(r)],
              std::string(static_cast<std::size_t>(r) * 1000, static_cast<char>('a' + r)));
  }
  EXPECT_TRUE(world_->any(rank == size - 1, "test"));
  EXPECT_FALSE(world_->any(false, "test"));
  double total = 0;
  for (int r = 0; r < size; ++r) total += 0.1 * (r + 1);
  EXPECT_EQ(world_->sum(std::vector<double>{0.1 * (rank + 1), 1}, "test"), (std::vector<double>{total, double(size)}));
  EXPECT_EQ(world_->from_leader("mine is " + std::to_string(rank), "test"), "mine is 0");
}

TEST_F(UnderMpirun, TheRankThatDiffersIsNamed) {
  const int odd_one = world_->size() - 1;
  const bool odd = world_->rank() == odd_one;
  EXPECT_EQ(user_error_of([&] { parallel::agree_on(*world_, {{"program", "1"}, {"data", "x"}}); }), "<no error>");
  const std::string error = user_error_of([&] {
    parallel::agree_on(
        *world_,
        {{"program", "1"}, {"configuration", odd ? "seed: 1\nlearning_rate: 2\n" : "seed: 1\nlearning_rate: 1\n"}});
  });
  EXPECT_EQ(error, world_->name_of(odd_one) +
                       " has a different configuration from most: learning_rate: 2, not learning_rate: 1");
}

TEST_F(UnderMpirun, AnErrorOfOneIsEverybodys) {
  const int last = world_->size() - 1;
  EXPECT_EQ(user_error_of([&] {
              together(*world_, "test", [&] {
                if (world_->rank() == last) user_error("no space left");
              });
            }),
            world_->name_of(last) + ": no space left");
  EXPECT_EQ(user_error_of([&] { together(*world_, "test", [&] { user_error("the same everywhere"); }); }),
            "the same everywhere");
}

}  // namespace
}  // namespace inlay::testing
