#include "core/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

namespace inlay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Real memory for an arena of the running kind.
struct Region {
  explicit Region(std::size_t bytes)
      : memory(std::aligned_alloc(Arena::alignment, bytes)), arena("cpu", memory.get(), bytes) {}
  std::unique_ptr<void, Free> memory;
  Arena arena;

  std::size_t offset(View view) const {
    return static_cast<std::size_t>(static_cast<std::byte*>(view.data()) - static_cast<std::byte*>(memory.get()));
  }
};

std::size_t total(const MemoryByClass& classes) {
  return std::accumulate(classes.begin(), classes.end(), std::size_t{0});
}

std::string message_of(auto&& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no UserError was thrown";
}

TEST(CoreArena, KeepsFromTheBottomAndScratchesFromTheTop) {
  Region region(4096);
  Arena& arena = region.arena;
  const View first = arena.keep(MemoryClass::weights, "first", DType::f32, {3, 5});    // 60 bytes, takes 256
  const View second = arena.keep(MemoryClass::weights, "second", DType::bf16, {129});  // 258 bytes, takes 512
  const Arena::ScratchScope scope(arena);
  const View top = arena.scratch("top", DType::f32, {64});      // 256 bytes
  const View below = arena.scratch("below", DType::u8, {257});  // takes 512
  EXPECT_EQ(region.offset(first), 0u);
  EXPECT_EQ(region.offset(second), 256u);
  EXPECT_EQ(region.offset(top), 4096u - 256u);
  EXPECT_EQ(region.offset(below), 4096u - 256u - 512u);
  EXPECT_EQ(arena.used(), 256u + 512u + 256u + 512u);
  EXPECT_EQ(first.shape(), (Shape{3, 5}));
  EXPECT_EQ(second.dtype(), DType::bf16);
  EXPECT_TRUE(first.contiguous());
}

TEST(CoreArena, MarksReleaseTheBottomAndScopesTheTop) {
  Region region(4096);
  Arena& arena = region.arena;
  arena.keep(MemoryClass::weights, "weight", DType::f32, {64});
  const std::size_t mark = arena.mark();
  const View kept = arena.keep(MemoryClass::activations, "kept", DType::f32, {64});
  {
    const Arena::ScratchScope outer(arena);
    const View a = arena.scratch("a", DType::f32, {64});
    {
      const Arena::ScratchScope inner(arena);
      arena.scratch("b", DType::f32, {64});
      // What is kept inside a scratch scope outlives it.
      arena.keep(MemoryClass::activations, "kept inside", DType::f32, {64});
      EXPECT_EQ(arena.used(), 5u * 256u);
    }
    EXPECT_EQ(arena.used(), 4u * 256u);
    const View again = arena.scratch("c", DType::f32, {64});
    EXPECT_EQ(region.offset(again), region.offset(a) - 256u) << "the inner scope's memory is used again";
  }
  EXPECT_EQ(arena.used(), 3u * 256u);
  arena.release_to(mark);
  EXPECT_EQ(arena.used(), 256u);
  EXPECT_EQ(arena.keep(MemoryClass::activations, "next", DType::f32, {1}).data(), kept.data());
  EXPECT_THROW(arena.release_to(arena.mark() + 1), InternalError);
}

TEST(CoreArena, AnEmptyTensorHasAnAddressOfItsOwn) {
  Region region(1024);
  const View empty = region.arena.keep(MemoryClass::batch, "empty", DType::i32, {0});
  const View next = region.arena.keep(MemoryClass::batch, "next", DType::i32, {1});
  EXPECT_FALSE(empty.absent());
  EXPECT_EQ(empty.size(), 0);
  EXPECT_NE(empty.data(), next.data());
}

TEST(CoreArena, CanBeFilledToTheLastByte) {
  Region region(1024);
  const Arena::ScratchScope scope(region.arena);
  region.arena.keep(MemoryClass::weights, "lower", DType::u8, {512});
  region.arena.scratch("upper", DType::u8, {512});
  EXPECT_EQ(region.arena.used(), region.arena.capacity());
  EXPECT_THROW(region.arena.keep(MemoryClass::weights, "one more", DType::u8, {1}), UserError);
  EXPECT_THROW(region.arena.scratch("one more", DType::u8, {0}), UserError);
}

TEST(CoreArena, RemembersWhoHeldThePeak) {
  Arena arena("cpu");
  arena.keep(MemoryClass::weights, "weights", DType::u8, {1024});
  const std::size_t mark = arena.mark();
  arena.keep(MemoryClass::activations, "activations", DType::u8, {2048});
  {
    const Arena::ScratchScope scope(arena);
    arena.scratch(MemoryClass::logits, "logits", DType::u8, {4096});
  }
  arena.release_to(mark);
  arena.keep(MemoryClass::gradients, "gradients", DType::u8, {3072});  // a lower total: the peak stays as it was
  const auto peak = [&](MemoryClass memory_class) {
    return arena.peak_by_class()[static_cast<std::size_t>(memory_class)];
  };
  EXPECT_EQ(arena.peak(), 1024u + 2048u + 4096u);
  EXPECT_EQ(peak(MemoryClass::weights), 1024u);
  EXPECT_EQ(peak(MemoryClass::activations), 2048u);
  EXPECT_EQ(peak(MemoryClass::logits), 4096u);
  EXPECT_EQ(peak(MemoryClass::gradients), 0u);
  EXPECT_EQ(total(arena.peak_by_class()), arena.peak());
  arena.keep(MemoryClass::gradients, "more gradients", DType::u8, {8192});
  EXPECT_EQ(arena.peak(), 1024u + 3072u + 8192u);
  EXPECT_EQ(peak(MemoryClass::gradients), 3072u + 8192u);
  EXPECT_EQ(peak(MemoryClass::logits), 0u);
  EXPECT_EQ(total(arena.peak_by_class()), arena.peak());
}

TEST(CoreArena, RemembersThePeakOfEachPhase) {
  Arena arena("cpu");
  arena.keep(MemoryClass::weights, "weights", DType::u8, {512});
  const std::size_t mark = arena.mark();
  for (int step = 0; step < 2; ++step) {
    arena.begin_phase("forward");
    arena.keep(MemoryClass::activations, "activations", DType::u8, {1024});
    arena.begin_phase("backward");
    {
      const Arena::ScratchScope scope(arena);
      arena.scratch("scratch", DType::u8, {step == 0 ? 256 : 768});
    }
    arena.release_to(mark);
    arena.begin_phase("update");
  }
  std::vector<std::string> names;
  std::vector<std::size_t> bytes;
  for (const PhasePeak& phase : arena.phases()) {
    names.push_back(phase.phase);
    bytes.push_back(phase.bytes);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"setup", "forward", "backward", "update"}));
  EXPECT_EQ(bytes, (std::vector<std::size_t>{512, 1536, 1536 + 768, 512}));
}

TEST(CoreArena, OutOfMemoryNamesTheTensorAndTheHolders) {
  Region region(4096);
  Arena& arena = region.arena;
  arena.keep(MemoryClass::weights, "model.layers.0", DType::u8, {2048});
  const Arena::ScratchScope scope(arena);
  arena.scratch(MemoryClass::logits, "logits", DType::u8, {1024});
  const std::string message = message_of([&] {
    arena.keep(MemoryClass::optimizer, "adam.m of embed_tokens", DType::f32, {40, 10});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("out of cpu memory"), HasSubstr("adam.m of embed_tokens"), HasSubstr("fp32"),
                             HasSubstr("[40, 10]"), HasSubstr("optimizer"), HasSubstr("1.8 KiB")));
  EXPECT_THAT(message, AllOf(HasSubstr("3.0 KiB of 4.0 KiB"), HasSubstr("weights 2.0 KiB"), HasSubstr("logits 1.0 KiB"),
                             Not(HasSubstr("gradients"))));
  // The failed call took nothing: what does fit is still given.
  EXPECT_EQ(arena.used(), 3072u);
  arena.keep(MemoryClass::optimizer, "small", DType::u8, {1024});
  EXPECT_EQ(arena.used(), 4096u);
}

TEST(CoreArena, OutOfMemoryOfAnEmptyArenaSaysSo) {
  Arena arena("cuda", std::size_t{256});
  EXPECT_THAT(message_of([&] {
                arena.scratch("big", DType::f32, {1000, 1000});
              }),
              AllOf(HasSubstr("out of cuda memory"), HasSubstr("big"), HasSubstr("3.8 MiB"), HasSubstr("nothing")));
}

// One code path plans and runs: the same calls must give the same places, and the same marks.
TEST(CoreArena, PlanningAndRunningAgree) {
  constexpr std::size_t capacity = std::size_t{1} << 20;
  const auto exercise = [](Arena& arena) {
    std::vector<const std::byte*> places;
    const auto note = [&](View view) { places.push_back(static_cast<const std::byte*>(view.data())); };
    note(arena.keep(MemoryClass::weights, "w", DType::bf16, {33, 17}));
    for (std::int64_t step = 1; step <= 3; ++step) {
      const std::size_t mark = arena.mark();
      arena.begin_phase("forward");
      for (std::int64_t layer = 0; layer < 3; ++layer) {
        note(arena.keep(MemoryClass::activations, "x", DType::f32, {7 * step, 11}));
        const Arena::ScratchScope scope(arena);
        note(arena.scratch("t", DType::bf16, {13, 101 * step}));
        note(arena.scratch(MemoryClass::logits, "z", DType::f32, {1, layer}));
      }
      arena.begin_phase("backward");
      const Arena::ScratchScope scope(arena);
      note(arena.scratch("d", DType::f32, {step, 1000}));
      arena.release_to(mark);
    }
    return places;
  };
  Region region(capacity);
  Arena plan("cpu", capacity);
  Arena unlimited("cpu");
  EXPECT_TRUE(plan.planning());
  EXPECT_FALSE(region.arena.planning());
  const auto planned = exercise(plan), ran = exercise(region.arena);
  exercise(unlimited);
  ASSERT_EQ(planned.size(), ran.size());
  for (std::size_t i = 0; i < ran.size(); ++i) {
    EXPECT_EQ(planned[i] - planned[0], ran[i] - ran[0]) << "allocation " << i;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(planned[i]) % Arena::alignment, 0u);
  }
  for (const Arena* arena : {&plan, &unlimited}) {
    EXPECT_EQ(arena->peak(), region.arena.peak());
    EXPECT_EQ(arena->peak_by_class(), region.arena.peak_by_class());
    ASSERT_EQ(arena->phases().size(), region.arena.phases().size());
    for (std::size_t i = 0; i < arena->phases().size(); ++i) {
      EXPECT_EQ(arena->phases()[i].bytes, region.arena.phases()[i].bytes) << arena->phases()[i].phase;
    }
  }
}

TEST(CoreArena, FormatsBytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(std::size_t{312} << 20), "312.0 MiB");
  EXPECT_EQ(format_bytes(std::size_t{3} << 29), "1.50 GiB");
}

}  // namespace
}  // namespace inlay
