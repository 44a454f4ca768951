#include "backend/cuda/grouped_hopper.cuh"
#include "backend/cuda/grouped_matmul.h"

// Grouped products of bf16 on Hopper.
namespace inlay::backend::cuda {

namespace {

using namespace grouped;

// The three products of a weight: by groups with B [N, K] or [K, N], and over rows.
enum class Product { forward, backward_input, over_rows };

// B is the larger half of what is fetched, but where the blocks of a cluster share it row tiles come in twos; measured,
// that pays for one of the three.
template <Product product, int columns>
using LayoutOf = Layout<columns, 64, product == Product::over_rows, product != Product::over_rows,
                        product == Product::forward, product == Product::backward_input>;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Rows of A from `count` on belong to the next group: they count as zero. `a` is this warpgroup's box, read by it
// alone.
__device__ __forceinline__ void clear_rows(std::byte* a, int count, int which) {
  uint4* lines = reinterpret_cast<uint4*>(a + count * line_bytes);
  for (int i = static_cast<int>(threadIdx.x) % warpgroup; i < (64 - count) * 8; i += warpgroup) {
    lines[i] = make_uint4(0, 0, 0, 0);
  }
  publish_to_warpgroup(which);
}

#endif

template <Product product, int columns>
struct Kind : LayoutOf<product, columns> {
  using K = LayoutOf<product, columns>;
  using Task = grouped::Task;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static __device__ __forceinline__ void multiply(float (&sums)[columns / 8][4], Shared<Kind>& shared, const Task&,
                                                  const Tile& tile, Ring& ring, int which) {
    constexpr int group = 1024, k_step = 16;
#pragma unroll
    for (int i = 0; i < columns / 2; ++i) sums[i / 4][i % 4] = 0.0f;
    hopper::Barrier* previous = nullptr;
    for (int k = tile.k; k < tile.k_end; k += K::depth, ring.advance()) {
      hopper::wait(&shared.full[ring.stage], ring.parity);
      std::byte* a = shared.a[ring.stage] + which * box_bytes;
      const std::byte* b = shared.b[ring.stage];
      if (K::over_rows && tile.k_end - k < K::depth) clear_rows(a, tile.k_end - k, which);
      hopper::pin(sums);
      hopper::begin_products();
#pragma unroll
      for (int i = 0; i < K::depth / k_step; ++i) {
        // k_step elements further: within the line, or so many lines.
        const std::uint64_t left = hopper::describe(
            hopper::shared_address(a + i * k_step * (K::along_k_a ? 2 : line_bytes)), box_bytes, group);
        const std::uint64_t right = hopper::describe(
            hopper::shared_address(b + i * k_step * (K::along_k_b ? 2 : line_bytes)), box_bytes, group);
        hopper::wgmma<K::along_k_a ? 0 : 1, K::along_k_b ? 0 : 1>(sums, left, right);
      }
      hopper::end_products();
      hopper::pin(sums);
      hopper::await_products<1>();  // those of the stage before are done
      if (previous != nullptr) release(previous);
      previous = &shared.empty[ring.stage];
    }
    hopper::await_products<0>();
    hopper::pin(sums);
    if (previous != nullptr) release(previous);
  }
#endif
};

template <Product product>
void launch(Exec& exec, const ConstView& a, const Right& b, const Task& task) {
  launch_fitting<Kind<product, 240>, Kind<product, 256>>(exec, a, b, task);
}

// The copy engine wants 16-byte strides, and every stored vector lies inside or outside of C as a whole.
bool fits(const ConstView& view) { return vectors_fit(8, view) && view.size() > 0; }

bool on_hopper(Exec& exec, const ConstView& a) {
#ifdef INLAY_BUILT_FOR_SM90A
  return a.dtype() == DType::bf16 && gpu(exec).properties().major == 9;
#else
  (void)exec, (void)a;
  return false;
#endif
}

}  // namespace

bool grouped_hopper(Exec& exec, View c, ConstView a, std::span<const ConstView> b, Transpose transpose_b,
                    ConstView offsets, MatmulScale scale) {
  if (!on_hopper(exec, a) || !fits(a) || !fits(c) || !fits(b[0])) return false;
  for (const ConstView& matrix : b) {
    if (matrix.ld() != b[0].ld()) return false;
  }
  const std::int64_t stride =
      even_stride(b.size(), sizeof(bf16_t), b[0].dim(0) * b[0].ld(), [&](std::size_t g) { return b[g].data(); });
  if (stride == 0 || !whole_sixteens(stride, sizeof(bf16_t))) return false;
  Task task = task_of(offsets, b.size(), scale.beta != 0, scale.alpha);
  task.n = static_cast<int>(c.dim(1));
  task.k = static_cast<int>(a.dim(1));
  task.c = pointer<bf16_t>(c);
  task.ldc = c.ld();
  const Right right{b[0], static_cast<std::int64_t>(b.size()), stride};
  transpose_b == Transpose::yes ? launch<Product::forward>(exec, a, right, task)
                                : launch<Product::backward_input>(exec, a, right, task);
  return true;
}

bool grouped_hopper_over_rows(Exec& exec, std::span<const View> c, Grad mode, ConstView a, ConstView b,
                              ConstView offsets, float alpha) {
  if (!on_hopper(exec, a) || !fits(a) || !fits(b)) return false;
  for (const View& matrix : c) {
    if (!matrix.absent() && !vectors_fit(8, matrix)) return false;
  }
  Task task = task_of(offsets, c.size(), mode == Grad::accumulate, alpha);
  task.m = static_cast<int>(a.dim(1));
  task.n = static_cast<int>(b.dim(1));
  task.results = group_pointers<float>(c);
  task.ldc = common_ld(c);
  launch<Product::over_rows>(exec, a, {b, 1, b.dim(0) * b.ld()}, task);
  return true;
}

}  // namespace inlay::backend::cuda
