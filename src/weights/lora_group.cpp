#include "backend/grouped_matmul.h"
#include "weights/dense.h"
#include "weights/lora.h"

namespace inlay::weights {

using backend::grouped_matmul;
using backend::grouped_matmul_over_rows;
using backend::ScratchScope;
using enum backend::Transpose;

// The adapters of all experts at once, over whatever their bases do together.
class LoraGroup final : public WeightGroup {
 public:
  LoraGroup(std::vector<LoraWeight*> all, std::unique_ptr<WeightGroup> base)
      : all_(std::move(all)), base_(std::move(base)), layout_(all_.front()->layout_) {}

  void forward(Exec& exec, View y, Grad mode, ConstView x, ConstView offsets, const ops::Call& call) override {
    if (all_.front()->off_) return base_->forward(exec, y, mode, x, offsets, call);
    const ScratchScope scope(exec.arena());
    const View inner = project_input(exec, all_.front()->dropped(exec, x, call), offsets);
    for_each_seen(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t begin, std::int64_t end) {
      grouped_matmul(exec, y.slice_cols(part.row, part.row + part.rows), inner.slice_cols(begin, end), b_values(i), yes,
                     offsets, {.alpha = static_cast<float>(part.scale), .beta = beta_of(mode)});
    });
    base_->forward(exec, y, Grad::accumulate, x, offsets, call);
  }

  void backward_input(Exec& exec, View dx, Grad mode, ConstView dy, ConstView offsets, const ops::Call& call) override {
    const ScratchScope scope(exec.arena());
    multiply_back(exec, dx, mode, dy, project_output(exec, dy, offsets), offsets, call);
  }

  void accumulate(Exec& exec, ConstView dy, ConstView x, ConstView offsets, const ops::Call& call) override {
    const ScratchScope scope(exec.arena());
    add_gradients(exec, dy, project_output(exec, dy, offsets), x, offsets, call);
  }

  void backward(Exec& exec, View dx, Grad mode, ConstView dy, ConstView x, ConstView offsets,
                const ops::Call& call) override {
    const ScratchScope scope(exec.arena());
    const View inner = project_output(exec, dy, offsets);
    add_gradients(exec, dy, inner, x, offsets, call);
    multiply_back(exec, dx, mode, dy, inner, offsets, call);
  }

  std::optional<GroupOperands> fp8() const override {
    auto operands = base_->fp8();
    if (operands) operands->plain = true;
    return operands;
  }

 private:
  void multiply_back(Exec& exec, View dx, Grad mode, ConstView dy, ConstView inner, ConstView offsets,
                     const ops::Call& call) const {
    if (all_.front()->drops_) {
      const ScratchScope scope(exec.arena());
      View seen = exec.arena().scratch("adapter input gradient", dx.dtype(), dx.shape());
      grouped_matmul(exec, seen, inner, a_values(), no, offsets);
      ops::dropout(exec, dx, mode, seen, all_.front()->mask(call));
    } else {
      grouped_matmul(exec, dx, inner, a_values(), no, offsets, {.beta = beta_of(mode)});
    }
    base_->backward_input(exec, dx, Grad::accumulate, dy, offsets, call);
  }

  void add_gradients(Exec& exec, ConstView dy, ConstView inner, ConstView x, ConstView offsets,
                     const ops::Call& call) const {
    if (!all_.front()->training_) return;
    const ScratchScope scope(exec.arena());
    const ConstView seen = all_.front()->dropped(exec, x, call);
    const View projected = project_input(exec, seen, offsets);
    for_each_seen(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t column, std::int64_t) {
      const auto [gradients, mode] = gradients_of([&](LoraWeight& weight) -> Parameter& { return weight.b_[i]; });
      grouped_matmul_over_rows(exec, gradients, mode, dy.slice_cols(part.row, part.row + part.rows),
                               projected.slice_cols(column, column + part.rank), offsets,
                               static_cast<float>(part.scale));
    });
    const auto [gradients, mode] = gradients_of([](LoraWeight& weight) -> Parameter& { return weight.a_; });
    for_each_stretch(
        layout_, [&, gradients = gradients, mode = mode](std::int64_t row, std::int64_t end, std::int64_t column) {
          std::vector<View> rows;
          for (const View& gradient : gradients) rows.push_back(gradient.slice_rows(row, end));
          grouped_matmul_over_rows(exec, rows, mode, inner.slice_cols(column, column + end - row), seen, offsets);
        });
  }

  std::vector<ConstView> a_values() const {
    std::vector<ConstView> result;
    for (const LoraWeight* weight : all_) result.push_back(weight->seen_a());
    return result;
  }
  std::vector<ConstView> b_values(std::size_t part) const {
    std::vector<ConstView> result;
    for (const LoraWeight* weight : all_) result.push_back(weight->seen_b(part));
    return result;
  }

  View project_input(Exec& exec, ConstView x, ConstView offsets) const {
    View inner = exec.arena().scratch("adapter input", x.dtype(), {x.dim(0), layout_.rank() * layout_.copies()});
    grouped_matmul(exec, inner, x, a_values(), yes, offsets);
    return inner;
  }
  View project_output(Exec& exec, ConstView dy, ConstView offsets) const {
    View inner =
        exec.arena().scratch("adapter output gradient", dy.dtype(), {dy.dim(0), layout_.rank() * layout_.copies()});
    for_each_seen(layout_, [&](std::size_t i, const LoraPart& part, std::int64_t begin, std::int64_t end) {
      grouped_matmul(exec, inner.slice_cols(begin, end), dy.slice_cols(part.row, part.row + part.rows), b_values(i), no,
                     offsets, {.alpha = static_cast<float>(part.scale)});
    });
    return inner;
  }
  // Of the same parameter of all experts, and how to write them.
  template <class Own>
  std::pair<std::vector<View>, Grad> gradients_of(const Own& own) const {
    std::pair<std::vector<View>, Grad> result{{}, Grad::skip};
    for (LoraWeight* weight : all_) {
      result.first.push_back(own(*weight).grad);
      result.second = own(*weight).next_grad_mode();
    }
    return result;
  }

  std::vector<LoraWeight*> all_;
  std::unique_ptr<WeightGroup> base_;
  LoraLayout layout_;
};

std::unique_ptr<WeightGroup> LoraWeight::group(std::span<Weight* const> all) {
  auto mine = all_of<LoraWeight>(all);
  if (mine.empty() || layout_.dora || !covers_all_rows()) return nullptr;
  std::vector<Weight*> bases;
  for (LoraWeight* weight : mine) {
    if (!weight->layout_.same_extents(layout_)) return nullptr;
    bases.push_back(weight->base_.get());
  }
  auto base = bases.front()->group(bases);
  return base == nullptr ? nullptr : std::make_unique<LoraGroup>(std::move(mine), std::move(base));
}

}  // namespace inlay::weights
