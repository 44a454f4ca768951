#include "backend/cost.h"

#include <gtest/gtest.h>

#include "backend/lanes.h"
#include "backend/matmul.h"
#include "ops/elementwise.h"

namespace inlay::backend {
namespace {

constexpr std::size_t f32 = static_cast<std::size_t>(DType::f32), bf16 = static_cast<std::size_t>(DType::bf16);

View take(Exec& exec, DType dtype, Shape shape) {
  return exec.arena().keep(MemoryClass::workspace, "a tensor", dtype, shape);
}

TEST(BackendCost, ProductsCountByDtypeAndPart) {
  Exec exec = Exec::planner(Device::cuda);
  const View a = take(exec, DType::f32, {3, 5}), b = take(exec, DType::f32, {7, 5}), c = take(exec, DType::f32, {3, 7});
  matmul(exec, c, a, Transpose::no, b, Transpose::yes);
  {
    const CostScope backward(exec, StepPart::backward);
    matmul(exec, take(exec, DType::bf16, {5, 7}), take(exec, DType::bf16, {3, 5}), Transpose::yes,
           take(exec, DType::bf16, {3, 7}), Transpose::no);
    const CostScope half(exec, 0.5);
    matmul(exec, c, a, Transpose::no, b, Transpose::yes);
  }
  matmul(exec, c, a, Transpose::no, b, Transpose::yes);
  EXPECT_EQ(exec.cost().of(StepPart::none).products[f32], 2 * 2 * 3 * 5 * 7);
  EXPECT_EQ(exec.cost().of(StepPart::backward).products[f32], 3 * 5 * 7);
  EXPECT_EQ(exec.cost().of(StepPart::backward).products[bf16], 2 * 3 * 5 * 7);
  EXPECT_EQ(exec.cost().total().flops(), (2 * 2 + 1 + 2) * 3 * 5 * 7);
  EXPECT_EQ(exec.cost().micro_batch().flops(), 3 * 3 * 5 * 7);
}

TEST(BackendCost, BytesCountWhereTheyMove) {
  Exec exec = Exec::planner(Device::cuda);
  const View x = take(exec, DType::f32, {10}), y = take(exec, DType::f32, {10});
  const View there = exec.host().arena().keep(MemoryClass::workspace, "on the host", DType::f32, {10});
  ops::add(exec, y, x);
  copy_to_host(exec, there, x);
  copy_to_device(exec, y, there);
  copy_to_device(exec, y, there);
  ops::add(exec.host(), there, there);
  const Work work = exec.cost().total();
  EXPECT_EQ(work.bytes, 3 * 40);
  EXPECT_EQ(work.to_host, 40);
  EXPECT_EQ(work.to_device, 2 * 40);
  EXPECT_EQ(work.host_bytes, 3 * 40);
}

TEST(BackendCost, ARunCountsNothing) {
  Exec exec = Exec::runner(Device::cpu, 1 << 16);
  const View x = take(exec, DType::f32, {10}), y = take(exec, DType::f32, {10});
  exec.fill_zero(x);
  exec.fill_zero(y);
  ops::add(exec, y, x);
  EXPECT_EQ(exec.cost().total().bytes, 0);
}

}  // namespace
}  // namespace inlay::backend
