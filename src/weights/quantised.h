#pragma once

#include <vector>

#include "ops/quantised.h"
#include "weights/kind.h"

namespace inlay::weights {

// A matrix that is kept in a few bits, never trains, and is opened into scratch whenever it is multiplied by. Every
// checkpoint tensor of it is quantised by itself, as whoever quantises a checkpoint would.
class QuantisedWeight final : public Weight {
 public:
  QuantisedWeight(Exec& exec, Parameter& parameter, ops::QuantFormat format, DType compute);

  bool trainable() const override { return false; }
  void forward(Exec& exec, View y, Grad mode, ConstView x, const ops::Call& call = {}) override;
  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const ops::Call& call = {}) override;
  void accumulate(Exec&, ConstView, ConstView, const ops::Call&) override {}
  void lookup(Exec& exec, View out, ConstView tokens) override;
  void accumulate_lookup(Exec&, ConstView, const ops::TokenGroups&) override {}
  std::unique_ptr<WeightGroup> group(std::span<Weight* const> all) override;  // of one format and shape

  // Takes the file's own codes where it has this format; a UserError where it has another one.
  void load(Exec& exec, const Part& part, PartSource* source) override;
  bool changes() const override { return true; }
  // What is trained with is what the codes say, not what the file said.
  void complete(Exec& exec, View rows, std::int64_t row) override { read_rows(exec, rows, row); }
  void read_rows(Exec& exec, View rows, std::int64_t row) override;

 private:
  friend class QuantisedGroup;

  ConstView opened(Exec& exec) const;  // all of it, in scratch
  std::size_t opened_bytes() const { return static_cast<std::size_t>(parameter().size()) * size_of(compute_); }

  DType compute_;
  std::vector<ops::Quantised> parts_;  // one for each part of the parameter
};

class QuantisedKind final : public WeightKind {
 public:
  explicit QuantisedKind(ops::QuantFormat format) : format_(format) {}
  std::unique_ptr<Weight> make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const override;
  std::string describe() const override { return std::string(ops::name_of(format_)); }
  bool may_live_on_host() const override { return false; }
  bool multiplies_value() const override { return false; }

 private:
  ops::QuantFormat format_;
};

}  // namespace inlay::weights
