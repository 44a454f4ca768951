#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backend/cpu/gemm_kernels.h"
#include "backend/cpu/gemm_prefetch.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/threads.h"

// The loops around a matrix kernel: blocks for the caches, packing, threads. A Kernel names its types and its register
// block (mr × nr), how far a sum runs before the block is put down (kc), and packs, multiplies and stores:
//
//   In, Packed, Out            elements of A and B, of the packed operands, of C
//   mr, nr                     rows and columns of a register block
//   k_unit                     sums are padded with zeros to a multiple of this
//   kc                         longest inner sum, a multiple of k_unit
//   budget                     bytes of the shared operand as packed, and of sums that are put down
//   pack_a, pack_b             rows begin .. end of op(A), columns of op(B): panels of mr or nr, zeros past the edge
//   steps(depth)               how often multiply() fetches ahead over a sum
//   multiply(sums, a, b, ...)  sums[mr × nr] = or += a · b, fp32, row-major
//   store(args, sums, ...)     C = alpha · sums + beta · C, inside the edges of C
//   Session                    what a thread holds while it works
//
// One operand is packed by all threads together and shared (the one with fewer rows or columns); the other one is
// packed by each task for itself, into its own cache, and the shared one streams past it.
//
// An element of C is summed over k in one fixed order: the places where a block is put down and taken up again, with
// its fp32 bits, depend on k alone. So neither threads nor rows and columns beside it can be seen in the result.
namespace inlay::backend::cpu {

// What the inner loop is told beyond its operands.
struct BlockExtent {
  std::int64_t depth;  // of the sum, padded
  std::int64_t rows, cols;
  bool add;
};

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr std::int64_t pieces(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }

// The kernel seen by the loops: an operand of their own and a shared one, whichever of A and B they are.
template <class Kernel, bool swapped>
struct Roles {
  using Packed = typename Kernel::Packed;
  static constexpr std::int64_t own_unit = swapped ? Kernel::nr : Kernel::mr;
  static constexpr std::int64_t shared_unit = swapped ? Kernel::mr : Kernel::nr;

  static std::int64_t own_extent(const GemmArgs& g) { return swapped ? g.n : g.m; }
  static std::int64_t shared_extent(const GemmArgs& g) { return swapped ? g.m : g.n; }
  static void pack_own(Packed* to, const GemmArgs& g, std::int64_t begin, std::int64_t end, std::int64_t k0,
                       std::int64_t k1) {
    swapped ? Kernel::pack_b(to, g, begin, end, k0, k1) : Kernel::pack_a(to, g, begin, end, k0, k1);
  }
  static void pack_shared(Packed* to, const GemmArgs& g, std::int64_t begin, std::int64_t end, std::int64_t k0,
                          std::int64_t k1) {
    swapped ? Kernel::pack_a(to, g, begin, end, k0, k1) : Kernel::pack_b(to, g, begin, end, k0, k1);
  }
  // The lines that pack_own() will read for rows or columns begin .. end.
  static LineStream own_lines(const GemmArgs& g, std::int64_t begin, std::int64_t end, std::int64_t k0,
                              std::int64_t k1) {
    const auto* const from = static_cast<const typename Kernel::In*>(swapped ? g.b : g.a);
    const std::int64_t ld = swapped ? g.ldb : g.lda;
    const bool along_k = swapped ? g.transpose_b : !g.transpose_a;
    return along_k ? LineStream(from + begin * ld + k0, ld, end - begin, k1 - k0)
                   : LineStream(from + k0 * ld + begin, ld, k1 - k0, end - begin);
  }
};

// Extents of the blocks. Loops from the outside: the shared operand by sc, the own one by os, sums by ks (here the
// shared operand is packed); then tasks of oc × st, each of which runs over its sums by kc.
struct Blocking {
  std::int64_t sc, os, ks, oc, st, kc;
};

// The most of each, before it is rounded to whole register blocks: of sc where sums are cut, of oc, and of st where a
// task puts sums down.
inline constexpr std::int64_t most_sc = 1024, most_oc = 256, most_st = 512;

template <class Kernel, bool swapped>
Blocking choose_blocking(const GemmArgs& g, int threads) {
  using R = Roles<Kernel, swapped>;
  constexpr std::int64_t budget = Kernel::budget;
  constexpr std::int64_t packed = sizeof(typename Kernel::Packed);
  const std::int64_t k = round_up(g.k, Kernel::k_unit), shared = round_up(R::shared_extent(g), R::shared_unit);
  const std::int64_t own = R::own_extent(g);
  Blocking block{};
  // Equal shares, so that the last one is not a stump.
  block.kc = round_up(pieces(k, pieces(k, Kernel::kc)), Kernel::k_unit);
  block.sc = std::min(std::max(budget / (packed * k), most_sc) / R::shared_unit * R::shared_unit, shared);
  const bool cut = packed * block.sc * k > budget;
  block.ks = cut ? std::max<std::int64_t>(budget / (packed * block.sc) / block.kc, 1) * block.kc : k;
  // Where the shared operand fits the second-level cache, little of the own one beside it; else much, for more use of
  // what has to come from further away.
  const bool near = packed * k * shared <= (std::int64_t{3} << 18);
  block.oc = round_up(near ? most_oc / 2 : most_oc, R::own_unit);
  block.os = cut ? std::min(own, round_up(budget / 4 / block.sc, block.oc)) : own;
  // A task that puts sums down keeps them in the second-level cache.
  block.st = block.kc < g.k ? std::min(block.sc, most_st / R::shared_unit * R::shared_unit) : block.sc;
  // Enough tasks for everyone, some to spare for the end.
  while (threads > 1 && pieces(block.os, block.oc) * pieces(block.sc, block.st) < 4 * threads) {
    if (block.oc > 2 * R::own_unit && block.oc >= block.st / 8) {
      block.oc = round_up(block.oc / 2, R::own_unit);
    } else if (block.st > 4 * R::shared_unit) {
      block.st = round_up(block.st / 2, R::shared_unit);
    } else {
      break;
    }
  }
  // The sums of all tasks of a round lie side by side.
  if (cut) {
    const std::int64_t rows = budget / 4 / round_up(block.sc, block.st) / block.oc * block.oc;
    block.os = std::min(block.os, rows);
  }
  return block;
}

// How a product shares out its workspace, in bytes: bounds on what choose_blocking() can ask for, none of which falls
// as an extent grows.
template <class Kernel>
struct GemmMemory {
  std::int64_t shared, partial;   // of the team: the shared operand, and sums between rounds
  std::int64_t own, own_partial;  // of a thread: its own operand, and sums between its steps along k
  int threads;

  explicit GemmMemory(const GemmArgs& g) {
    constexpr std::int64_t packed = sizeof(typename Kernel::Packed), unit = std::max(Kernel::mr, Kernel::nr);
    constexpr double worth_a_team = 2e6;  // multiply-adds
    static_assert(4 * (most_oc + unit) * (most_sc + most_st) <= Kernel::budget);
    static_assert(packed * most_sc * Kernel::kc <= Kernel::budget);
    const double terms = static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
    const std::int64_t k = round_up(g.k, Kernel::k_unit);
    const std::int64_t short_side = std::min(g.m, g.n), long_side = std::max(g.m, g.n);
    const std::int64_t rows = std::min(long_side, most_oc) + unit;
    shared = aligned(std::min(packed * (short_side + unit) * k, Kernel::budget));
    // Sums are cut where the shared operand is too large; whole tasks of them lie side by side.
    const std::int64_t cols = std::min(short_side + unit, most_sc);
    const std::int64_t sums = 4 * (long_side + most_oc + unit) * (cols + most_st);
    partial = packed * cols * k > Kernel::budget ? std::min(aligned(sums), Kernel::budget) : 0;
    own = aligned(packed * rows * std::min(k, Kernel::kc));
    own_partial = k > Kernel::kc ? aligned(4 * rows * (std::min(short_side, most_st) + unit)) : 0;
    threads = in_team() || terms < worth_a_team ? 1 : cpu::threads();
  }
  std::int64_t bytes() const { return shared + partial + threads * (own + own_partial); }

 private:
  static constexpr std::int64_t aligned(std::int64_t bytes) { return round_up(bytes, 256); }
};

template <class Kernel>
std::size_t workspace_bytes(const GemmArgs& g) {
  return static_cast<std::size_t>(GemmMemory<Kernel>(g).bytes());
}

// A thread's share of the workspace.
template <class Kernel>
struct ThreadMemory {
  typename Kernel::Packed* own;
  float* partial;
};

// What the threads of one product share.
template <class Kernel>
struct GemmTeam {
  const GemmArgs& args;
  Blocking block;
  bool stream;  // write C past the caches
  bool fetch;   // ask for memory ahead of its use
  int threads;
  GemmMemory<Kernel> memory;
  std::atomic<std::int64_t> next[2] = {0, 0};  // the next task of this round, and of the one after it

  std::byte* at(std::int64_t offset) const { return static_cast<std::byte*>(args.workspace) + offset; }
  typename Kernel::Packed* shared() const { return reinterpret_cast<typename Kernel::Packed*>(at(0)); }
  // Of os × sc; only where ks < k.
  float* partial() const { return reinterpret_cast<float*>(at(memory.shared)); }
  ThreadMemory<Kernel> of(int thread) const {
    std::byte* const mine = at(memory.shared + memory.partial + thread * (memory.own + memory.own_partial));
    return {reinterpret_cast<typename Kernel::Packed*>(mine), reinterpret_cast<float*>(mine + memory.own)};
  }
};

// Own rows or columns o0 .. o1, shared ones s0 .. s1.
struct GemmTask {
  std::int64_t o0, o1, s0, s1;
};

// A shared operand as packed: from shared0 on, sums k0 .. k1.
struct GemmRound {
  std::int64_t shared0, k0, k1;
};

template <class Kernel, bool swapped>
void run_task(const GemmTeam<Kernel>& team, const GemmRound& round, const GemmTask& task, const GemmTask* next,
              const ThreadMemory<Kernel>& mine) {
  using R = Roles<Kernel, swapped>;
  using Packed = typename Kernel::Packed;
  const GemmArgs& g = team.args;
  const std::int64_t kc = team.block.kc, ks = round_up(round.k1 - round.k0, Kernel::k_unit);
  const std::int64_t panels = pieces(task.o1 - task.o0, R::own_unit);
  Packed* const own = mine.own;
  alignas(64) float scratch[Kernel::mr * Kernel::nr];
  for (std::int64_t k0 = round.k0; k0 < round.k1; k0 += kc) {
    const std::int64_t k1 = std::min(k0 + kc, round.k1);
    const std::int64_t depth = round_up(k1 - k0, Kernel::k_unit), steps = Kernel::steps(depth);
    const bool first = k0 == 0, last = k1 == g.k;
    R::pack_own(own, g, task.o0, task.o1, k0, k1);
    // What comes after these sums is fetched while they are computed.
    Ahead ahead;
    if (team.fetch) {
      if (k1 < round.k1) {
        ahead.own = R::own_lines(g, task.o0, task.o1, k1, std::min(k1 + kc, round.k1));
      } else if (next != nullptr) {
        ahead.own = R::own_lines(g, next->o0, next->o1, round.k0, std::min(round.k0 + kc, round.k1));
      }
      ahead.own_rate = ahead.own.rate(pieces(task.s1 - task.s0, R::shared_unit) * panels * steps);
    }
    for (std::int64_t s = task.s0; s < task.s1; s += R::shared_unit) {
      const Packed* const shared = team.shared() + (s - round.shared0) * ks + (k0 - round.k0) * R::shared_unit;
      float* const blocks = first && last ? nullptr : mine.partial + (s - task.s0) * panels * R::own_unit;
      if (team.fetch && s + R::shared_unit < task.s1) {
        ahead.shared = LineStream(shared + ks * R::shared_unit, 0, 1, depth * R::shared_unit);
        ahead.shared_rate = ahead.shared.rate(panels * steps);
      }
      for (std::int64_t i = 0; i < panels; ++i) {
        const std::int64_t o = task.o0 + i * R::own_unit;
        const std::int64_t m = swapped ? s : o, n = swapped ? o : s;
        const Packed* const panel = own + i * R::own_unit * depth;
        const BlockExtent extent{depth, std::min(Kernel::mr, g.m - m), std::min(Kernel::nr, g.n - n), !first};
        float* const sums = first && last ? scratch : blocks + i * Kernel::mr * Kernel::nr;
        if (last && team.fetch && !team.stream) {
          ahead.c =
              LineStream(static_cast<typename Kernel::Out*>(g.c) + m * g.ldc + n, g.ldc, extent.rows, extent.cols);
          ahead.c_rate = ahead.c.rate(steps);
        }
        Kernel::multiply(sums, swapped ? shared : panel, swapped ? panel : shared, extent, ahead);
        if (last) Kernel::store(g, sums, m, n, team.stream);
      }
    }
  }
}

// What every thread of the team does. Barrier is called by all of them in step.
template <class Kernel, bool swapped, class Barrier>
void run_thread(GemmTeam<Kernel>& team, int thread, const Barrier& barrier) {
  using R = Roles<Kernel, swapped>;
  const GemmArgs& g = team.args;
  const Blocking& block = team.block;
  [[maybe_unused]] const typename Kernel::Session session;
  const std::int64_t own_extent = R::own_extent(g), shared_extent = R::shared_extent(g);
  int parity = 0;
  for (std::int64_t s0 = 0; s0 < shared_extent; s0 += block.sc) {
    const std::int64_t s1 = std::min(s0 + block.sc, shared_extent);
    for (std::int64_t o0 = 0; o0 < own_extent; o0 += block.os) {
      const std::int64_t o1 = std::min(o0 + block.os, own_extent);
      for (std::int64_t k0 = 0; k0 < g.k; k0 += block.ks, parity ^= 1) {
        const GemmRound round{s0, k0, std::min(k0 + block.ks, g.k)};
        const std::int64_t ks = round_up(round.k1 - k0, Kernel::k_unit), panels = pieces(s1 - s0, R::shared_unit);
        const auto share = [&](int t) { return std::min(s0 + panels * t / team.threads * R::shared_unit, s1); };
        R::pack_shared(team.shared() + (share(thread) - s0) * ks, g, share(thread), share(thread + 1), k0, round.k1);
        barrier();
        if (thread == 0) team.next[parity ^ 1].store(0, std::memory_order_relaxed);
        const std::int64_t across = pieces(s1 - s0, block.st), tasks = pieces(o1 - o0, block.oc) * across;
        const auto task_at = [&](std::int64_t t) {
          const std::int64_t o = o0 + t / across * block.oc, s = s0 + t % across * block.st;
          return GemmTask{o, std::min(o + block.oc, o1), s, std::min(s + block.st, s1)};
        };
        // One task ahead, so that its operand can be fetched in time.
        const auto claim = [&] { return team.next[parity].fetch_add(1, std::memory_order_relaxed); };
        for (std::int64_t t = claim(), after; t < tasks; t = after) {
          after = claim();
          ThreadMemory<Kernel> mine = team.of(thread);
          if (block.ks < g.k) mine.partial = team.partial() + t * block.oc * block.st;
          const GemmTask task = task_at(t), next = after < tasks ? task_at(after) : GemmTask{};
          run_task<Kernel, swapped>(team, round, task, after < tasks ? &next : nullptr, mine);
        }
        barrier();
      }
    }
  }
}

// C goes past the caches where it is only written, is larger than they are, and consists of whole lines.
template <class Kernel>
bool streams(const GemmArgs& g) {
  constexpr std::int64_t line = 64, large = std::int64_t{4} << 20;
  constexpr std::int64_t size = sizeof(typename Kernel::Out);
  return g.beta == 0.0f && g.m * g.n * size >= large && g.ldc * size % line == 0 &&
         reinterpret_cast<std::uintptr_t>(g.c) % line == 0;
}

// Below this the operands and C lie in the second-level cache together, or soon will.
template <class Kernel>
bool fetches(const GemmArgs& g) {
  constexpr std::int64_t near = std::int64_t{1} << 20;
  return (g.m + g.n) * g.k * static_cast<std::int64_t>(sizeof(typename Kernel::In)) +
             g.m * g.n * static_cast<std::int64_t>(sizeof(typename Kernel::Out)) >
         near;
}

template <class Kernel, bool swapped>
void run_team(const GemmArgs& g) {
  const GemmMemory<Kernel> memory(g);
  const int threads = memory.threads;
  GemmTeam<Kernel> team{
      g, choose_blocking<Kernel, swapped>(g, threads), streams<Kernel>(g), fetches<Kernel>(g), threads, memory};
  if (threads == 1) {
    run_thread<Kernel, swapped>(team, 0, [] {});
    return;
  }
  Barrier barrier(threads);
  run_team(threads, [&](int thread) { run_thread<Kernel, swapped>(team, thread, [&] { barrier.wait(); }); });
}

template <class Kernel>
void run_gemm(const GemmArgs& g) {
  g.n > g.m ? run_team<Kernel, true>(g) : run_team<Kernel, false>(g);
}

}  // namespace inlay::backend::cpu
