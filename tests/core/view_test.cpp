#include "core/view.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace inlay {
namespace {

// A matrix whose elements are their own flat index.
struct Counting {
  explicit Counting(Shape shape)
      : values(static_cast<std::size_t>(shape.size())), view(values.data(), DType::i32, shape) {
    std::iota(values.begin(), values.end(), 0);
  }
  std::vector<std::int32_t> values;
  View view;
};

std::int32_t at(View view, std::int64_t i, std::int64_t j) { return view.as<std::int32_t>()[i * view.stride(0) + j]; }

TEST(CoreView, ShapesKnowTheirSize) {
  EXPECT_EQ((Shape{3, 4}).size(), 12);
  EXPECT_EQ((Shape{3, 0, 5}).size(), 0);
  EXPECT_EQ(Shape{}.size(), 1);
  EXPECT_EQ((Shape{3, 4}).str(), "[3, 4]");
  EXPECT_EQ(Shape{}.str(), "[]");
  EXPECT_NE((Shape{3, 4}), (Shape{3, 4, 1}));
  EXPECT_THROW((Shape{1, 2, 3, 4, 5}), InternalError);
}

TEST(CoreView, StridesOfAContiguousTensor) {
  const Counting tensor({2, 3, 5, 7});
  EXPECT_EQ(tensor.view.stride(0), 105);
  EXPECT_EQ(tensor.view.stride(1), 35);
  EXPECT_EQ(tensor.view.stride(2), 7);
  EXPECT_EQ(tensor.view.stride(3), 1);
  EXPECT_EQ(tensor.view.rows(), 30);
  EXPECT_EQ(tensor.view.cols(), 7);
  EXPECT_EQ(tensor.view.bytes(), 840u);
  EXPECT_TRUE(tensor.view.contiguous());
}

TEST(CoreView, SlicesShareMemory) {
  const Counting matrix({5, 7});
  const View rows = matrix.view.slice_rows(1, 4);
  EXPECT_EQ(rows.shape(), (Shape{3, 7}));
  EXPECT_TRUE(rows.contiguous());
  EXPECT_EQ(at(rows, 0, 0), 7);
  const View block = rows.slice_cols(2, 5);
  EXPECT_EQ(block.shape(), (Shape{3, 3}));
  EXPECT_FALSE(block.contiguous());
  EXPECT_EQ(block.ld(), 7);
  EXPECT_EQ(at(block, 2, 1), 3 * 7 + 3);
  block.as<std::int32_t>()[0] = -1;
  EXPECT_EQ(matrix.values[7 + 2], -1);
  EXPECT_TRUE(block.slice_rows(1, 2).contiguous()) << "a single row has no stride to speak of";
}

TEST(CoreView, EmptySlicesAreNotAbsent) {
  const Counting matrix({5, 7});
  const View none = matrix.view.slice_rows(5, 5);
  EXPECT_EQ(none.size(), 0);
  EXPECT_FALSE(none.absent());
  EXPECT_TRUE(View().absent());
  EXPECT_EQ(View().size(), 0);
  EXPECT_EQ(View().bytes(), 0u);
}

TEST(CoreView, SlicesStayInside) {
  const Counting matrix({5, 7});
  EXPECT_THROW(matrix.view.slice_rows(0, 6), InternalError);
  EXPECT_THROW(matrix.view.slice_rows(-1, 2), InternalError);
  EXPECT_THROW(matrix.view.slice_rows(3, 2), InternalError);
  EXPECT_THROW(matrix.view.slice_cols(0, 8), InternalError);
}

TEST(CoreView, SplitsColumnsIntoHeads) {
  const Counting matrix({3, 12});
  const View heads = matrix.view.slice_cols(4, 12).split_cols(2);  // two heads of four, rows strided
  EXPECT_EQ(heads.shape(), (Shape{3, 2, 4}));
  EXPECT_EQ(heads.stride(0), 12);
  EXPECT_EQ(heads.stride(1), 4);
  EXPECT_EQ(heads.stride(2), 1);
  EXPECT_EQ(heads.as<std::int32_t>()[2 * heads.stride(0) + 1 * heads.stride(1) + 3], 2 * 12 + 4 + 7);
  EXPECT_FALSE(heads.contiguous());
  EXPECT_TRUE(matrix.view.split_cols(3).contiguous());
  EXPECT_THROW(matrix.view.split_cols(5), InternalError);
  EXPECT_THROW(heads.split_cols(2), InternalError) << "only a matrix has columns to split";
}

TEST(CoreView, ReshapesOnlyWhatIsContiguous) {
  const Counting matrix({4, 6});
  EXPECT_EQ(matrix.view.reshape({2, 12}).shape(), (Shape{2, 12}));
  EXPECT_EQ(at(matrix.view.reshape({2, 12}), 1, 0), 12);
  EXPECT_THROW(matrix.view.reshape({5, 5}), InternalError);
  EXPECT_THROW(matrix.view.slice_cols(0, 3).reshape({12}), InternalError);
  EXPECT_EQ(matrix.view.slice_rows(1, 3).reshape({12}).as<std::int32_t>()[0], 6);
}

TEST(CoreView, ElementsHaveOneType) {
  const Counting matrix({2, 2});
  EXPECT_THROW(matrix.view.as<float>(), InternalError);
  const ConstView constant = matrix.view;
  static_assert(std::is_same_v<decltype(constant.as<std::int32_t>()), const std::int32_t*>);
  EXPECT_EQ(constant.as<std::int32_t>()[3], 3);
  EXPECT_THROW(matrix.view.reshape({4}).ld(), InternalError);
}

TEST(CoreError, AssertionsSayWhereAndWhat) {
  try {
    INLAY_ASSERT(1 + 1 == 3, "sums are off by {}", 1);
    FAIL() << "did not throw";
  } catch (const InternalError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("sums are off by 1"), std::string::npos) << message;
    EXPECT_NE(message.find("1 + 1 == 3"), std::string::npos) << message;
    EXPECT_NE(message.find("view_test.cpp"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace inlay
