#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/exec.h"
#include "parallel/row_cut.h"

// A tensor of the model as training sees it: its value in the compute dtype, what completes it to fp32, its gradient.
namespace inlay::weights {

using backend::Exec;
using backend::Grad;

class Weight;       // weights/weight.h
class Fp8Products;  // weights/products.h

// A checkpoint tensor that makes up some rows of a parameter. Query, key and value share one matrix here, and so do
// gate and up: one GEMM instead of three.
struct Part {
  std::string checkpoint_name;
  std::int64_t row = 0, rows = 0;
  std::int64_t of_rows = 0;  // how many the tensor has, where only the first of them are taken; 0: these alone
  // Where one tensor, [stacked, in, out], has the matrices of so many experts: which of them this is.
  std::int64_t stacked = 0, index = 0;

  // How a user can call it: a part of a stacked tensor has no name of its own in the checkpoint.
  std::string label() const { return stacked > 0 ? checkpoint_name + "." + std::to_string(index) : checkpoint_name; }
};

// What is projected. Changes add up over a run, so what is left of them outside must be smaller.
enum class Projected : std::uint8_t { gradient, change };

// What a parameter is for. Whoever treats some of them differently asks for this, never for a name.
enum class Role : std::uint8_t { embedding, head, norm, bias, sinks, qkv, attention_output, gate_up, down, router };

struct Parameter {
  std::string name;  // ours, for messages and plans: "layers.3.attention.qkv"
  Role role = Role::norm;
  std::int64_t layer = -1;   // -1: outside the layers
  std::int64_t expert = -1;  // of a mixture; -1: no expert's own
  std::vector<Part> parts;   // in order, covering all rows
  Shape shape;
  bool trainable = true;
  bool vectors = false;  // no matrix although it has rows: a bias for every expert
  bool on_host = false;  // lives in memory of the host and comes to the device for use (weights/traffic.h)

  View value;  // compute dtype
  View low;    // int16: bf16 value + low = fp32 master, exactly (ops/adamw.h); absent where value is fp32 or frozen
  View grad;   // fp32; absent where frozen
  std::shared_ptr<Fp8Products> fp8;  // of a matrix whose products are made in fp8

  // In a run of many processes: who changes which rows, and keeps what completes them (low, the optimizer's state).
  // Null: all processes do the same with all of them.
  std::shared_ptr<const parallel::RowCut> cut;
  int rank = 0;            // this process's place in the cut
  bool first_copy = true;  // of the processes that have the same rows, the one that writes them
  // Whether the whole exists only while it is used (weights/traffic.h); between uses this process holds its rows alone.
  bool holds_value = false, holds_grad = false;
  View held_value, held_grad;
  std::int64_t first_row() const { return cut != nullptr ? cut->begin(rank) : 0; }
  std::int64_t end_row() const { return cut != nullptr ? cut->end(rank) : rows(); }
  Shape my_shape() const { return shape.with_rows(end_row() - first_row()); }
  View my_value() const { return holds_value ? held_value : my_rows(value); }
  View my_grad() const { return holds_grad ? held_grad : my_rows(grad); }

  // The weight that the layers multiply by in its place, or that it is a part of; null for vectors of the model.
  Weight* owner = nullptr;
  bool projected = false;  // only some changes are allowed: its owner projects gradients and changes
  bool decays = true;      // weight decay may reach it; not where rows must stay as they are

  // Where value, low and gradient are between uses.
  Exec& home(Exec& exec) const { return on_host ? exec.host() : exec; }
  std::int64_t rows() const { return shape[0]; }
  std::int64_t size() const { return shape.size(); }
  bool is_matrix() const { return shape.rank() > 1 && !vectors; }
  bool trains() const { return trainable && (holds_grad || !grad.absent()); }
  bool in_feed_forward() const { return role == Role::gate_up || role == Role::down || role == Role::router; }

  // The mode of the next write to grad: the first one of a step overwrites, so that nobody has to clear it.
  Grad next_grad_mode() {
    if (grad.absent()) return Grad::skip;
    return std::exchange(grad_written_, true) ? Grad::accumulate : Grad::overwrite;
  }
  bool grad_written() const { return grad_written_; }
  // A step in which nobody wrote the gradient has a gradient of zero.
  void ensure_grad(Exec& exec) {
    if (!grad.absent() && !std::exchange(grad_written_, true)) home(exec).fill_zero(grad);
  }
  void forget_grad() { grad_written_ = false; }

 private:
  View my_rows(const View& whole) const {
    return cut == nullptr || whole.absent() ? whole : whole.slice_rows(first_row(), end_row());
  }

  bool grad_written_ = false;
};

// Takes memory for the values of a parameter, and, where it is to be trained, for the rest: all of it, or the rows that
// this process holds.
void allocate_value(Exec& exec, Parameter& parameter, DType compute);
void allocate_training_state(Exec& exec, Parameter& parameter);
void allocate_gradient(Exec& exec, Parameter& parameter, const std::string& suffix = ".grad");

}  // namespace inlay::weights
