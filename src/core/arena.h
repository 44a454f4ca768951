#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/view.h"

namespace inlay {

// What a byte is for. The plan and the out-of-memory message are told in these terms.
enum class MemoryClass : std::uint8_t {
  weights,  // what the layers multiply by, in the compute dtype
  master,   // the low halves that complete bf16 weights to fp32; under OSFT, the weights as they were at the start
  gradients,
  bases,        // directions of OSFT that are frozen, or that the trained ones are measured along
  optimizer,    // AdamW's moments
  activations,  // kept from forward to backward
  logits,       // the one reused slab of the head
  workspace,    // scratch of a single op or block
  batch,        // tokens, labels, positions, tables
};
inline constexpr std::size_t memory_class_count = 9;
std::string_view name_of(MemoryClass memory_class);

// How much each class held at one moment.
using MemoryByClass = std::array<std::size_t, memory_class_count>;

struct PhasePeak {
  std::string phase;
  std::size_t bytes = 0;
  MemoryByClass classes{};  // at that moment
};

// One region of memory used as two stacks that grow towards each other. From the bottom: what lives long (weights,
// optimizer state) and, above it, what a forward pass keeps and the backward pass releases in reverse. From the top:
// scratch, released at the end of the scope that took it. Nothing fragments, and the high-water mark is exact.
// A planning arena has no memory behind it: the same calls give the same addresses, and only the marks are read.
class Arena {
 public:
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max() / 4;
  static constexpr std::size_t alignment = 256;

  // An arena without memory, for planning.
  explicit Arena(std::string name, std::size_t capacity = unlimited);
  // An arena over memory that the caller owns, aligned to 256 bytes.
  Arena(std::string name, void* base, std::size_t capacity);

  // Takes memory from the bottom; released with release_to().
  View keep(MemoryClass memory_class, std::string_view name, DType dtype, Shape shape);
  // Takes memory from the top; released when the enclosing ScratchScope ends.
  View scratch(MemoryClass memory_class, std::string_view name, DType dtype, Shape shape);
  View scratch(std::string_view name, DType dtype, Shape shape) {
    return scratch(MemoryClass::workspace, name, dtype, shape);
  }

  // The bottom stack's height, to come back to.
  std::size_t mark() const { return bottom_.size(); }
  void release_to(std::size_t mark);

  // Peaks are also recorded per phase ("forward", "backward", ...), in order of first appearance.
  void begin_phase(std::string_view phase);

  bool planning() const { return planning_; }
  std::size_t capacity() const { return capacity_; }
  std::size_t used() const { return bottom_bytes_ + top_bytes_; }
  std::size_t peak() const { return peak_; }
  const MemoryByClass& peak_by_class() const { return peak_by_class_; }
  const std::vector<PhasePeak>& phases() const { return phases_; }

  class ScratchScope {
   public:
    explicit ScratchScope(Arena& arena) : arena_(arena), mark_(arena.top_.size()) {}
    ~ScratchScope() { arena_.release_top(mark_); }
    ScratchScope(const ScratchScope&) = delete;
    ScratchScope& operator=(const ScratchScope&) = delete;

   private:
    Arena& arena_;
    std::size_t mark_;
  };

 private:
  struct Block {
    std::string name;
    MemoryClass memory_class;
    std::size_t bytes;
  };

  void note_phase(std::size_t total);
  Block account(MemoryClass memory_class, std::string_view name, DType dtype, const Shape& shape);
  void release_top(std::size_t mark);
  [[noreturn]] void out_of_memory(const Block& wanted, const Shape& shape, DType dtype) const;

  std::string name_;
  std::byte* base_;
  std::size_t capacity_;
  bool planning_;
  std::vector<Block> bottom_, top_;
  std::size_t bottom_bytes_ = 0, top_bytes_ = 0, peak_ = 0;
  MemoryByClass live_{}, peak_by_class_{};
  std::vector<PhasePeak> phases_;
  std::size_t phase_ = 0;
};

// "1.5 GiB", "312.0 MiB", "17 B".
std::string format_bytes(std::size_t bytes);

}  // namespace inlay
