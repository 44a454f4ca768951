#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "ops/embedding.h"
#include "ops/linear.h"
#include "weights/parameter.h"

// What a layer multiplies by. A kind of weight is a file of this folder: it knows how it is multiplied by, what of it
// trains, what happens around a step, and what it is loaded from and saved as. Nobody else asks which kind it is.
namespace inlay::weights {

// Rows of one part of a parameter as a checkpoint holds them, in host memory.
class PartSource {
 public:
  // The part's numbers in MXFP4: [rows, in / 32, 16] and [rows, in / 32].
  struct Mxfp4 {
    ConstView blocks, scales;
  };

  virtual ~PartSource() = default;
  // Rows [begin, end) of the part in a floating dtype, contiguous; valid until the next call.
  virtual ConstView rows(std::int64_t begin, std::int64_t end) = 0;
  // As they are in the file; absent where it holds something else.
  virtual Mxfp4 mxfp4() const { return {}; }
};

// What weights start from beside the base model's tensors, by name: directions, adapters. On the host.
class StartTensors {
 public:
  virtual ~StartTensors() = default;
  virtual bool has(const std::string&) const { return true; }
  // Numbers of this dtype and shape; valid until the next call.
  virtual const void* at(const std::string& name, DType dtype, const Shape& shape) const = 0;
};

// Sums of squares: of the part of a change that lies where nothing may, and of all of it.
struct Leak {
  double outside = 0, all = 0;
  double share() const { return all == 0 ? 0 : std::sqrt(outside / all); }
};

// A micro-batch's way through the model: what randomness depends on.
struct PassKey {
  bool training = false;
  bool base = false;  // as if nothing had been learned, where that is kept apart (Weight::keeps_base)
  std::uint64_t step = 0, micro_batch = 0;
};

// What the products of a group read in fp8: rows of x and dy, which may be absent where the call has them so.
struct GroupOperands {
  ops::Fp8Settings settings;
  bool gradients = false;  // accumulate() reads the columns' forms of both
  bool plain = false;      // beside them, x and dy are read as they are
};

// The same matrix of all experts of a layer, as their rows see it: row i belongs to the expert e with
// offsets[e] <= i < offsets[e + 1] (int32 [E + 1] on the device).
class WeightGroup {
 public:
  virtual ~WeightGroup() = default;
  virtual void forward(Exec& exec, View y, Grad mode, ConstView x, ConstView offsets,
                       const ops::Call& call) = 0;  // y = or += x Wᵀ
  virtual void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, ConstView offsets,
                              const ops::Call& call) = 0;  // dx = or += dy W
  virtual void accumulate(Exec& exec, ConstView dy, ConstView x, ConstView offsets,
                          const ops::Call& call) = 0;  // the gradients += dyᵀ x
  // Both of these, accumulate() first: dx may lie where x does.
  virtual void backward(Exec& exec, View dx, Grad mode, ConstView dy, ConstView x, ConstView offsets,
                        const ops::Call& call) {
    accumulate(exec, dy, x, offsets, call);
    backward_input(exec, dx, mode, dy, offsets, call);
  }
  // Absent: everything is read as it is.
  virtual std::optional<GroupOperands> fp8() const { return std::nullopt; }
};

class Weight : public ops::Linear {
 public:
  explicit Weight(Parameter& parameter) : parameter_(&parameter) { parameter.owner = this; }
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  std::int64_t in_features() const override { return parameter_->shape[1]; }
  std::int64_t out_features() const override { return parameter_->shape[0]; }
  // The model's matrix that it stands for.
  Parameter& parameter() { return *parameter_; }
  const Parameter& parameter() const { return *parameter_; }

  // With dy in fp8 where that is what the products read: both forms of it, in one pass.
  void backward(Exec& exec, View dx, Grad mode, ConstView dy, ConstView x, const ops::Call& call = {}) override;

  // Where the matrix is looked up by token instead of multiplied by: an embedding.
  virtual void lookup(Exec& exec, View out, ConstView tokens);
  virtual void accumulate_lookup(Exec& exec, ConstView dout, const ops::TokenGroups& groups) = 0;
  // Of weights like this one, which is the first of them: their products at once. Null where there is no such way.
  virtual std::unique_ptr<WeightGroup> group(std::span<Weight* const> all) = 0;
  // Whether its products are plain ones with the parameter's value: many such can be made at once, whatever trains.
  virtual bool multiplies_plainly() const { return false; }

  // Whether the base model's matrix is there still, whatever was learned, and its products.
  virtual bool keeps_base() const { return !trainable(); }
  virtual ops::Linear& base() { return *this; }

  // What trains beside the model's matrix, or in its place; in a fixed order.
  virtual void for_each_own(const std::function<void(Parameter&)>& /*visit*/) {}
  // What accumulate() writes to: gradients that are sums over everything that a step has seen, on whichever process.
  virtual void for_each_gradient(const std::function<void(Parameter&)>& visit) {
    if (parameter_->trains()) visit(*parameter_);
    for_each_own(visit);
  }

  // The life of a weight, in order. Takes the base model's rows of a part; the source is null in a plan.
  virtual void load(Exec& exec, const Part& part, PartSource* source);
  // All parts were loaded: what it starts from. Null: what needs no tensors.
  virtual void start(Exec&, const StartTensors*) {}
  virtual void begin_pass(const PassKey&) {}
  // Its matrix has come from the host.
  virtual void arrived(Exec&) {}
  // After the last micro-batch: what accumulate() left becomes the gradients of what trains.
  virtual void finish_gradients(Exec&) {}
  // A gradient of what trains, or the optimizer's change, fp32, keeps only what is allowed; for projected parameters.
  virtual void project(Exec&, const Parameter&, View /*rows*/, Projected) {}
  // After the optimizer's step.
  virtual void updated(Exec&) {}

  // Whether what is saved differs from the base model's tensor although that does not train.
  virtual bool changes() const { return false; }
  // rows hold the base model's rows from `row` on, in fp32, and become what was learned. Exactly: from fp32 masters.
  virtual void complete(Exec&, View /*rows*/, std::int64_t /*row*/) {}
  // rows = the matrix's rows from `row` on as the layers multiply by them, in fp32.
  virtual void read_rows(Exec& exec, View rows, std::int64_t row);
  // What one of its adapters is saved as, exactly, in fp32 on the host; only for weights that have them. Waits for the
  // device.
  struct AdapterNumbers {
    std::vector<float> a, b, magnitude;  // [rank, in], [rows, rank], and of DoRA [rows]
  };
  virtual AdapterNumbers read_adapter(Exec& exec, std::size_t part);
  // What was learned, and the part of it that must not be; of the rows that this process has. Waits for the device.
  virtual Leak leak(Exec&) { return {}; }

 protected:
  // Of weights whose products are the parameter's plain ones.
  std::optional<ops::Fp8Operands> plain_fp8() const;

 private:
  Parameter* parameter_;
};

// Makes the weight of a matrix: takes its memory, all of it.
using WeightFactory = std::function<std::unique_ptr<Weight>(Exec&, Parameter&)>;

// Takes a part's rows into the parameter's value and what completes it; the source is null in a plan.
void load_value(Exec& device, Parameter& parameter, const Part& part, PartSource* source);
// Splits a part into ranges of rows of at most so many numbers that none needs much memory (but at least `align` rows).
void for_each_piece(const Parameter& parameter, const Part& part,
                    const std::function<void(std::int64_t begin, std::int64_t end)>& body, std::int64_t align = 1);
// Rows of a checkpoint as the device sees them: themselves, or a copy in scratch. A plan does not know the file's dtype
// and takes the widest.
ConstView staged_rows(Exec& exec, const ConstView* source, const Shape& shape);

}  // namespace inlay::weights
