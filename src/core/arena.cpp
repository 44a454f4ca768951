#include "core/arena.h"

#include <algorithm>
#include <array>

namespace inlay {

namespace {

// Where a planning arena pretends to be: aligned, never null, never touched.
std::byte* imaginary_base() { return reinterpret_cast<std::byte*>(std::uintptr_t{1} << 44); }

std::size_t align_up(std::size_t bytes) { return (bytes + Arena::alignment - 1) / Arena::alignment * Arena::alignment; }

}  // namespace

std::string_view name_of(MemoryClass memory_class) {
  static constexpr std::array<std::string_view, memory_class_count> names = {
      "weights", "master", "gradients", "bases", "optimizer", "activations", "logits", "workspace", "batch"};
  return names[static_cast<std::size_t>(memory_class)];
}

std::string format_bytes(std::size_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 0x1p30) return fmt::format("{:.2f} GiB", value / 0x1p30);
  if (value >= 0x1p20) return fmt::format("{:.1f} MiB", value / 0x1p20);
  if (value >= 0x1p10) return fmt::format("{:.1f} KiB", value / 0x1p10);
  return fmt::format("{} B", bytes);
}

Arena::Arena(std::string name, std::size_t capacity)
    : name_(std::move(name)),
      base_(imaginary_base()),
      capacity_(capacity),
      planning_(true),
      phases_{{.phase = "setup"}} {}

Arena::Arena(std::string name, void* base, std::size_t capacity)
    : name_(std::move(name)),
      base_(static_cast<std::byte*>(base)),
      capacity_(capacity / alignment * alignment),
      planning_(false),
      phases_{{.phase = "setup"}} {}

Arena::Block Arena::account(MemoryClass memory_class, std::string_view name, DType dtype, const Shape& shape) {
  // An empty tensor still gets an address of its own, so that "absent" and "empty" stay different things.
  const std::size_t bytes = align_up(std::max<std::size_t>(static_cast<std::size_t>(shape.size()) * size_of(dtype), 1));
  Block block{std::string(name), memory_class, bytes};
  if (bytes > capacity_ - used()) out_of_memory(block, shape, dtype);
  live_[static_cast<std::size_t>(memory_class)] += bytes;
  const std::size_t total = used() + bytes;
  if (total > peak_) {
    peak_ = total;
    peak_by_class_ = live_;
  }
  note_phase(total);
  return block;
}

void Arena::note_phase(std::size_t total) {
  PhasePeak& phase = phases_[phase_];
  if (total <= phase.bytes) return;
  phase.bytes = total;
  phase.classes = live_;
}

View Arena::keep(MemoryClass memory_class, std::string_view name, DType dtype, Shape shape) {
  bottom_.push_back(account(memory_class, name, dtype, shape));
  std::byte* address = base_ + bottom_bytes_;
  bottom_bytes_ += bottom_.back().bytes;
  return View(address, dtype, shape);
}

View Arena::scratch(MemoryClass memory_class, std::string_view name, DType dtype, Shape shape) {
  top_.push_back(account(memory_class, name, dtype, shape));
  top_bytes_ += top_.back().bytes;
  return View(base_ + (capacity_ - top_bytes_) / alignment * alignment, dtype, shape);
}

void Arena::release_to(std::size_t mark) {
  INLAY_ASSERT(mark <= bottom_.size(), "release past the bottom of arena {}", name_);
  while (bottom_.size() > mark) {
    bottom_bytes_ -= bottom_.back().bytes;
    live_[static_cast<std::size_t>(bottom_.back().memory_class)] -= bottom_.back().bytes;
    bottom_.pop_back();
  }
}

void Arena::release_top(std::size_t mark) {
  while (top_.size() > mark) {
    top_bytes_ -= top_.back().bytes;
    live_[static_cast<std::size_t>(top_.back().memory_class)] -= top_.back().bytes;
    top_.pop_back();
  }
}

void Arena::begin_phase(std::string_view phase) {
  const auto found = std::find_if(phases_.begin(), phases_.end(), [&](const PhasePeak& p) { return p.phase == phase; });
  phase_ = static_cast<std::size_t>(found - phases_.begin());
  if (found == phases_.end()) phases_.push_back({.phase = std::string(phase)});
  note_phase(used());
}

void Arena::out_of_memory(const Block& wanted, const Shape& shape, DType dtype) const {
  std::string held;
  for (std::size_t index = 0; index < memory_class_count; ++index) {
    if (live_[index] == 0) continue;
    held += fmt::format("{}{} {}", held.empty() ? "" : ", ", name_of(static_cast<MemoryClass>(index)),
                        format_bytes(live_[index]));
  }
  user_error("out of {} memory: {} ({} {}, {}) needs {}, but {} of {} is in use: {}", name_, wanted.name,
             name_of(dtype), shape.str(), name_of(wanted.memory_class), format_bytes(wanted.bytes),
             format_bytes(used()), format_bytes(capacity_), held.empty() ? "nothing" : held);
}

}  // namespace inlay
