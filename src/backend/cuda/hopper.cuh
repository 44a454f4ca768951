#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/warpgroup.cuh"

// Hopper's own instructions (sm_90a) beside the products of a warpgroup: barriers that count bytes, tensor copies into
// shared memory. Only kernels whose body is compiled for sm_90a alone include this.
namespace inlay::backend::cuda::hopper {

// ---- barriers: a phase ends when all arrivals and all bytes announced have come -------------------------------------

using Barrier = std::uint64_t;

__device__ __forceinline__ void init_barrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// After init_barrier, before others (the copy engine, the rest of the cluster) may use it.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive_expecting(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// At the barrier of the same name in block `rank` of the cluster. Here and in wait() the scope is the default, the
// block's: what is handed over are stages that the copy engine and the tensor cores use, not plain stores, and the
// scope of the cluster would put a barrier of the whole GPU and an invalidation of L1 into every step
// (docs/notes/performance.md).
__device__ __forceinline__ void arrive_in(Barrier* barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}
// Until the phase of this parity has ended.
__device__ __forceinline__ void wait(Barrier* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ int rank_in_cluster() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// ---- tensor copies --------------------------------------------------------------------------------------------------

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// A box from (x, y, z) on, x along the contiguous axis, into shared memory; its bytes count at the barrier.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, Barrier* barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// The same into all blocks of the mask, each at the same place and at its own barrier.
__device__ __forceinline__ void copy_box_to_all(void* to, const CUtensorMap* map, Barrier* barrier, int x, int y, int z,
                                                std::uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(mask)
      : "memory");
}

// ---- registers ------------------------------------------------------------------------------------------------------

template <int count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

}  // namespace inlay::backend::cuda::hopper
