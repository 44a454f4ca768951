#include "weights/quantised.h"

#include <algorithm>

#include "backend/grouped_matmul.h"
#include "weights/dense.h"

namespace inlay::weights {

using backend::grouped_matmul;
using backend::matmul;
using backend::ScratchScope;
using enum backend::Transpose;
using ops::QuantFormat;

QuantisedWeight::QuantisedWeight(Exec& exec, Parameter& parameter, QuantFormat format, DType compute)
    : Weight(parameter), compute_(compute) {
  for (std::size_t i = 0; i < parameter.parts.size(); ++i) {
    const std::string prefix = fmt::format("{}.{}.", parameter.name, i);
    parts_.push_back(ops::make_quantised(
        format, parameter.parts[i].rows, parameter.shape[1], [&](std::string_view name, DType dtype, Shape shape) {
          return exec.arena().keep(MemoryClass::weights, prefix + std::string(name), dtype, shape);
        }));
  }
}

void QuantisedWeight::load(Exec& exec, const Part& part, PartSource* source) {
  const auto index = static_cast<std::size_t>(&part - parameter().parts.data());
  const ops::Quantised& to = parts_.at(index);
  if (source != nullptr) {
    const PartSource::Mxfp4 packed = source->mxfp4();
    if (packed.blocks.absent() != (to.format != QuantFormat::mxfp4)) {
      user_error("{} is {} in the checkpoint and cannot be held as {}", part.label(),
                 packed.blocks.absent() ? "not MXFP4" : "MXFP4", ops::name_of(to.format));
    }
    if (!packed.blocks.absent()) {
      exec.upload(to.codes, packed.blocks.data());
      return exec.upload(to.scales, packed.scales.data());
    }
  }
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  const std::int64_t waiting = ops::quant_pending_scales(to.format, to.rows, to.cols);
  const View pending = waiting > 0 ? arena.scratch("scales", DType::f32, {waiting}) : View();
  for_each_piece(
      parameter(), part,
      [&](std::int64_t begin, std::int64_t end) {
        const ScratchScope piece_scope(arena);
        const ConstView rows = source != nullptr ? source->rows(begin, end) : ConstView();
        const Shape shape{end - begin, to.cols};
        ops::quantise_rows(exec, to, begin, staged_rows(exec, source != nullptr ? &rows : nullptr, shape), pending);
      },
      ops::quant_row_step(to.format, to.cols));
  ops::finish_quantising(exec, to, pending);
}

ConstView QuantisedWeight::opened(Exec& exec) const {
  View matrix = exec.arena().scratch("opened weight", compute_, parameter().shape);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parameter().parts[i];
    ops::dequantise_rows(exec, matrix.slice_rows(part.row, part.row + part.rows), parts_[i], 0);
  }
  return matrix;
}

void QuantisedWeight::read_rows(Exec& exec, View rows, std::int64_t row) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parameter().parts[i];
    const std::int64_t begin = std::max(row, part.row), end = std::min(row + rows.dim(0), part.row + part.rows);
    if (begin < end) {
      ops::dequantise_rows(exec, rows.slice_rows(begin - row, end - row), parts_[i], begin - part.row);
    }
  }
}

void QuantisedWeight::forward(Exec& exec, View y, Grad mode, ConstView x, const ops::Call&) {
  const ScratchScope scope(exec.arena());
  matmul(exec, y, x, no, opened(exec), yes, {.beta = beta_of(mode)});
}

void QuantisedWeight::backward_input(Exec& exec, View dx, Grad mode, ConstView dy, const ops::Call& call) {
  if (mode == Grad::skip) return;
  const ScratchScope scope(exec.arena());
  matmul(exec, dx, dy, no, opened(exec), no, {.beta = beta_of(mode), .device_alpha = call.device_alpha});
}

void QuantisedWeight::lookup(Exec&, View, ConstView) {
  INLAY_ASSERT(false, "{}: an embedding is not quantised", parameter().name);
}

// Experts are opened as many at once as fit into a bounded piece of scratch, and multiplied by together.
class QuantisedGroup final : public WeightGroup {
 public:
  explicit QuantisedGroup(std::vector<QuantisedWeight*> all) : all_(std::move(all)) {}

  void forward(Exec& exec, View y, Grad mode, ConstView x, ConstView offsets, const ops::Call&) override {
    for_each_opened(exec, offsets, [&](std::span<const ConstView> matrices, ConstView at) {
      grouped_matmul(exec, y, x, matrices, yes, at, {.beta = beta_of(mode)});
    });
  }
  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, ConstView offsets, const ops::Call&) override {
    for_each_opened(exec, offsets, [&](std::span<const ConstView> matrices, ConstView at) {
      grouped_matmul(exec, dx, dy, matrices, no, at, {.beta = beta_of(mode)});
    });
  }
  void accumulate(Exec&, ConstView, ConstView, ConstView, const ops::Call&) override {}

 private:
  // body(the matrices of some neighbouring experts, their offsets). A plan does not know whose rows are whose: every
  // expert has as many.
  template <class Body>
  void for_each_opened(Exec& exec, ConstView offsets, const Body& body) const {
    constexpr std::size_t most_bytes = std::size_t{512} << 20;
    const std::size_t fit = std::max<std::size_t>(1, most_bytes / all_.front()->opened_bytes());
    const std::size_t rounds = (all_.size() + fit - 1) / fit, step = (all_.size() + rounds - 1) / rounds;
    for (std::size_t begin = 0; begin < all_.size(); begin += step) {
      const std::size_t count = std::min(step, all_.size() - begin);
      const ScratchScope scope(exec.arena());
      const backend::CostScope cost(exec, static_cast<double>(count) / static_cast<double>(all_.size()));
      const std::vector<ConstView> matrices = open(exec, begin, count);
      body(matrices, offsets.slice(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(begin + count) + 1));
    }
  }

  std::vector<ConstView> open(Exec& exec, std::size_t begin, std::size_t count) const {
    const Parameter& first = all_.front()->parameter();
    const std::int64_t rows = first.rows(), cols = first.shape[1];
    const auto experts = static_cast<std::int64_t>(count);
    View all = exec.arena().scratch("opened experts", all_.front()->compute_, {experts, rows, cols});
    if (all_.front()->parts_.size() == 1) {
      std::vector<ops::Quantised> codes;
      for (std::size_t e = begin; e < begin + count; ++e) codes.push_back(all_[e]->parts_.front());
      ops::dequantise_rows(exec, all, codes, 0);
    }
    std::vector<ConstView> result;
    for (std::int64_t e = 0; e < experts; ++e) {
      const View matrix = all.slice(0, e, e + 1).reshape({rows, cols});
      const QuantisedWeight& weight = *all_[begin + static_cast<std::size_t>(e)];
      for (std::size_t i = 0; weight.parts_.size() > 1 && i < weight.parts_.size(); ++i) {
        const Part& part = weight.parameter().parts[i];
        ops::dequantise_rows(exec, matrix.slice_rows(part.row, part.row + part.rows), weight.parts_[i], 0);
      }
      result.push_back(matrix);
    }
    return result;
  }

  std::vector<QuantisedWeight*> all_;
};

std::unique_ptr<WeightGroup> QuantisedWeight::group(std::span<Weight* const> all) {
  auto mine = all_of<QuantisedWeight>(all);
  const auto differs = [&](const QuantisedWeight* weight) {
    return weight->parts_.front().format != parts_.front().format || weight->parameter().shape != parameter().shape;
  };
  if (mine.empty() || std::any_of(mine.begin(), mine.end(), differs)) return nullptr;
  return std::make_unique<QuantisedGroup>(std::move(mine));
}

std::unique_ptr<Weight> QuantisedKind::make(Exec& exec, Parameter& parameter, const WeightMemory& memory) const {
  INLAY_ASSERT(!parameter.trainable, "{} trains, and cannot be quantised", parameter.name);
  return std::make_unique<QuantisedWeight>(exec, parameter, format_, memory.compute);
}

}  // namespace inlay::weights
