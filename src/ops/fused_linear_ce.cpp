#include "ops/fused_linear_ce.h"

#include <algorithm>

#include "ops/kernels.h"
#include "ops/loss_rows.h"
#include "ops/softmax_gradient.h"

namespace inlay::ops {

namespace {

constexpr std::string_view op = "fused_linear_ce";

void check_vector(std::string_view tensor, const ConstView& view, DType dtype, std::int64_t size) {
  if (view.absent()) return;
  check_dtype(op, tensor, view, dtype);
  check_shape(op, tensor, view, {size});
}

void check(const Linear& head, const LossInputs& inputs, const LossOutputs& outputs, const LossOptions& options) {
  const ConstView& hidden = inputs.hidden;
  const DType dtype = hidden.dtype();
  INLAY_ASSERT(hidden.rank() == 2 && hidden.dim(1) == head.in_features(),
               "{}: hidden is {}, the head takes {} features", op, hidden.shape().str(), head.in_features());
  INLAY_ASSERT(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
               "{}: hidden is {}, expected fp32, bf16 or fp16", op, name_of(dtype));
  INLAY_ASSERT(!inputs.targets.absent(), "{}: targets are missing", op);
  const std::int64_t tokens = hidden.dim(0), columns = head.out_features();
  const bool none = options.reduction == Reduction::none;
  const std::int64_t per_loss = none ? tokens : 1;
  check_vector("targets", inputs.targets, DType::i32, tokens);
  if (!inputs.rows.absent()) {
    check_dtype(op, "rows", inputs.rows, DType::i32);
    INLAY_ASSERT(inputs.rows.rank() == 1 && inputs.rows.dim(0) <= tokens, "{}: rows is {} for {} tokens", op,
                 inputs.rows.shape().str(), tokens);
  }
  check_vector("bias", inputs.bias, dtype, columns);
  check_vector("class_weights", inputs.class_weights, DType::f32, columns);
  check_vector("token_weights", inputs.token_weights, DType::f32, tokens);
  check_vector("upstream", inputs.upstream, DType::f32, per_loss);
  check_vector("loss", outputs.loss, DType::f32, per_loss);
  check_vector("z_loss", outputs.z_loss, DType::f32, per_loss);
  check_vector("correct", outputs.correct, DType::i32, 1);
  check_vector("predicted", outputs.predicted, DType::i32, tokens);
  check_vector("dbias", outputs.dbias, DType::f32, columns);
  INLAY_ASSERT(outputs.dbias_mode == Grad::skip || !outputs.dbias.absent(), "{}: dbias is missing", op);
  if (!outputs.dhidden.absent()) {
    check_shape(op, "dhidden", outputs.dhidden, hidden.shape());
    check_dtype(op, "dhidden", outputs.dhidden, dtype);
  }
  if (const OtherModel& other = inputs.other; other.present()) {
    INLAY_ASSERT(inputs.bias.absent() && inputs.class_weights.absent() && !none,
                 "{}: another model with bias, class weights or Reduction::none", op);
    INLAY_ASSERT(options.divergence.temperature > 0, "{}: temperature {}", op, options.divergence.temperature);
    if (other.head != nullptr) {
      check_shape(op, "the other model's hidden", other.hidden, {tokens, other.head->in_features()});
      check_dtype(op, "the other model's hidden", other.hidden, dtype);
      INLAY_ASSERT(other.head->out_features() == columns, "{}: {} columns, and {} of the other model", op, columns,
                   other.head->out_features());
    } else {
      INLAY_ASSERT(other.ids.rank() == 2 && other.ids.dim(0) == tokens, "{}: ids {}", op, other.ids.shape().str());
      check_dtype(op, "ids", other.ids, DType::i32);
      check_shape(op, "log_probs", other.log_probs, other.ids.shape());
      check_dtype(op, "log_probs", other.log_probs, DType::f32);
      INLAY_ASSERT(options.divergence.kind != DivergenceKind::reverse,
                   "{}: the reverse divergence is infinite where probabilities are 0", op);
    }
  }
  check_vector("divergence", outputs.divergence, DType::f32, 1);
  INLAY_ASSERT(options.rule.rule == TokenRule::none || options.normalizer > 0, "{}: a token rule needs a normalizer",
               op);
  INLAY_ASSERT(options.label_smoothing >= 0 && options.label_smoothing < 1, "{}: label smoothing {} is not in [0, 1)",
               op, options.label_smoothing);
  INLAY_ASSERT(options.softcap >= 0 && options.chunk_tokens >= 0, "{}: softcap {} or chunk_tokens {} is negative", op,
               options.softcap, options.chunk_tokens);
}

// Rows of logits at a time, where the caller leaves it to us. On a GPU 2048 rows fill the GEMMs, and more of them save
// passes over the gradient of the head; 128 more than 4096 because batches are often of 2^n tokens, and with slightly
// more than half of them labelled 4096 would take a chunk more. On a CPU the slab should not be far larger than its
// caches, while the same passes over the head's gradient forbid small chunks.
std::int64_t chosen_chunk(Device device, DType dtype, std::int64_t columns) {
  const std::int64_t row_bytes = pad_columns(columns) * static_cast<std::int64_t>(size_of(dtype));
  if (device == Device::cuda) {
    const std::int64_t rows = (std::int64_t{1152} << 20) / row_bytes / 128 * 128;
    return std::clamp<std::int64_t>(rows, 2048, 4096 + 128);
  }
  const std::int64_t rows = (std::int64_t{28} << 20) / row_bytes / 64 * 64;
  return std::clamp<std::int64_t>(rows, 64, 4096);
}

// The chunks are of equal size, so that no small one comes last; whole GEMM tiles where there is room for them.
std::int64_t even_chunk(std::int64_t rows, std::int64_t most) {
  const std::int64_t pieces = (rows + most - 1) / most;
  const std::int64_t even = (rows + pieces - 1) / pieces;
  return std::min(most, (even + 127) / 128 * 128);
}

RowStatistics take_statistics(Exec& exec, std::int64_t rows, bool spread, bool argmax) {
  Arena& arena = exec.arena();
  RowStatistics statistics;
  statistics.max = arena.scratch("loss: max", DType::f32, {rows});
  statistics.log_sum = arena.scratch("loss: log sum", DType::f32, {rows});
  statistics.target = arena.scratch("loss: target logit", DType::f32, {rows});
  if (spread) statistics.spread = arena.scratch("loss: spread", DType::f32, {rows});
  if (argmax) statistics.argmax = arena.scratch("loss: argmax", DType::i32, {rows});
  return statistics;
}

RowStatistics slice(const RowStatistics& all, std::int64_t begin, std::int64_t end) {
  const auto part = [&](const View& view) { return view.absent() ? view : view.slice_rows(begin, end); };
  return {part(all.max), part(all.log_sum), part(all.target), part(all.spread), part(all.argmax)};
}

// The passes by device; nothing is launched when planning.
void loss_scales(Exec& exec, const LossCall& call, float gain) {
  if (exec.planning()) return;
  exec.on_cuda() ? cuda::loss_scales(exec, call, gain) : cpu::kernels().loss_scales(exec, call, gain);
}
void softmax_gradient(Exec& exec, const SoftmaxChunk& chunk) {
  exec.count_bytes({chunk.logits, chunk.gradient ? chunk.logits : View{}});
  if (exec.planning()) return;
  exec.on_cuda() ? cuda::softmax_gradient(exec, chunk) : cpu::kernels().softmax_gradient(exec, chunk);
}
void divergence_gradient(Exec& exec, const DivergenceChunk& chunk) {
  exec.count_bytes({chunk.own.logits, chunk.others, chunk.own.gradient ? chunk.own.logits : View{}});
  if (exec.planning()) return;
  exec.on_cuda() ? cuda::divergence_gradient(exec, chunk) : cpu::kernels().divergence_gradient(exec, chunk);
}
void spread_kept(Exec& exec, View logits, const OtherModel& other, ConstView positions, std::int64_t first) {
  exec.count_bytes({logits});
  if (exec.planning()) return;
  exec.on_cuda() ? cuda::spread_kept(exec, logits, other, positions, first)
                 : cpu::kernels().spread_kept(exec, logits, other, positions, first);
}
void finish_loss(Exec& exec, const LossCall& call) {
  if (exec.planning()) return;
  exec.on_cuda() ? cuda::finish_loss(exec, call) : cpu::kernels().finish_loss(exec, call);
}
void gather_piece(Exec& exec, View to, ConstView from, ConstView positions) {
  exec.count_bytes({to, to});  // and as many rows of from
  if (exec.planning()) return;
  exec.on_cuda() ? cuda::gather_piece(exec, to, from, positions)
                 : cpu::kernels().gather_piece(exec, to, from, positions);
}
void scatter_piece(Exec& exec, View to, ConstView from, ConstView positions, std::int64_t begin, std::int64_t end) {
  exec.count_bytes({from, to.slice_rows(0, end - begin)});
  if (exec.planning()) return;
  exec.on_cuda() ? cuda::scatter_piece(exec, to, from, positions, begin, end)
                 : cpu::kernels().scatter_piece(exec, to, from, positions, begin, end);
}
void column_sums(Exec& exec, View sums, Grad mode, ConstView dz, const float* alpha) {
  exec.count_bytes({dz});
  if (exec.planning()) return;
  exec.on_cuda() ? cuda::column_sums(exec, sums, mode, dz, alpha)
                 : cpu::kernels().column_sums(exec, sums, mode, dz, alpha);
}

// No row carries a label: every gradient is zero, and whoever overwrites on its first write must still write it.
void empty_gradients(Exec& exec, Linear& head, const LossInputs& inputs, const LossOutputs& outputs,
                     bool head_gradient) {
  if (head_gradient) {
    const DType dtype = inputs.hidden.dtype();
    const View dz = exec.arena().scratch(MemoryClass::logits, "logits chunk", dtype, {1, head.out_features()});
    const View x = exec.arena().scratch("loss: rows of a chunk", dtype, {1, head.in_features()});
    exec.fill_zero(dz);
    exec.fill_zero(x);
    head.accumulate(exec, dz, x);
  }
  if (outputs.dbias_mode == Grad::overwrite) exec.fill_zero(outputs.dbias);
  if (!outputs.dhidden.absent() && outputs.dhidden.dim(0) > 0) {
    scatter_piece(exec, outputs.dhidden, {}, inputs.rows, 0, 0);
  }
}

}  // namespace

std::int64_t loss_chunk_rows(Device device, DType dtype, std::int64_t columns, std::int64_t tokens,
                             std::int64_t wanted) {
  return std::min(tokens, wanted > 0 ? wanted : chosen_chunk(device, dtype, columns));
}

namespace {

// The other model's logits of a chunk: as it predicts them now, or as they were kept.
struct OtherLogits {
  OtherModel other;
  bool gathers = false;
  View slab, gathered;

  OtherLogits(Exec& exec, const OtherModel& model, DType dtype, std::int64_t most, std::int64_t columns, bool gather)
      : other(model), gathers(gather) {
    if (!other.present()) return;
    Arena& arena = exec.arena();
    slab = arena.scratch(MemoryClass::logits, "the other model's logits", other.head != nullptr ? dtype : DType::f32,
                         {most, pad_columns(columns)});
    if (other.head != nullptr) {
      gathered = arena.scratch("loss: rows of the other model", dtype, {most, other.head->in_features()});
    }
  }

  View of_rows(Exec& exec, ConstView positions, std::int64_t begin, std::int64_t end, std::int64_t columns) const {
    const std::int64_t rows = end - begin;
    const View logits = slab.slice_rows(0, rows).slice_cols(0, columns);
    if (other.head == nullptr) {
      spread_kept(exec, logits, other, positions, begin);
      return logits;
    }
    ConstView x = other.hidden;
    if (gathers) {
      gather_piece(exec, gathered.slice_rows(0, rows), other.hidden, positions);
      x = gathered.slice_rows(0, rows);
    } else {
      x = other.hidden.slice_rows(begin, end);
    }
    other.head->forward(exec, logits, Grad::overwrite, x);
    return logits;
  }
};

}  // namespace

void fused_linear_ce(Exec& exec, Linear& head, const LossInputs& inputs, const LossOutputs& outputs,
                     const LossOptions& options) {
  check(head, inputs, outputs, options);
  const DType dtype = inputs.hidden.dtype();
  const std::int64_t tokens = inputs.hidden.dim(0), width = inputs.hidden.dim(1), columns = head.out_features();
  const std::int64_t count = inputs.rows.absent() ? tokens : inputs.rows.dim(0);
  const bool head_gradient = outputs.head_gradient && head.trainable();
  const bool bias_gradient = outputs.dbias_mode != Grad::skip;
  const bool input_gradient = !outputs.dhidden.absent();
  const float gain = gradient_gain(dtype);

  ScratchScope scope(exec.arena());
  const bool ruled = options.rule.rule != TokenRule::none;
  LossCall call{inputs, outputs, options, tokens, count, columns, {}, {}};
  call.scales = exec.arena().scratch("loss: scales", DType::f32, {loss_scales_count});
  call.statistics = take_statistics(exec, count, options.label_smoothing > 0,
                                    !outputs.correct.absent() || !outputs.predicted.absent());
  if (inputs.other.present()) call.divergence = exec.arena().scratch("loss: divergence", DType::f32, {count});
  View ruled_weights;
  if (ruled) ruled_weights = exec.arena().scratch("loss: weights by rule", DType::f32, {tokens});
  if (count == 0) {
    loss_scales(exec, call, gain);
    finish_loss(exec, call);
    empty_gradients(exec, head, inputs, outputs, head_gradient);
    return;
  }

  // Memory goes by the tokens and not by how many of them count, so that a plan is right for any labels.
  const std::int64_t most = loss_chunk_rows(exec.device(), dtype, columns, tokens, options.chunk_tokens);
  const bool gathers = count < tokens;
  const View slab = exec.arena().scratch(MemoryClass::logits, "logits chunk", dtype, {most, pad_columns(columns)});
  const View gathered = exec.arena().scratch("loss: rows of a chunk", dtype, {most, width});
  const OtherLogits others(exec, inputs.other, dtype, most, columns, gathers);

  loss_scales(exec, call, gain);
  const float* alpha = call.scales.as<float>() + offsetof(LossScales, alpha) / sizeof(float);
  const std::int64_t step = even_chunk(count, most);
  for (std::int64_t begin = 0; begin < count; begin += step) {
    const std::int64_t end = std::min(count, begin + step), rows = end - begin;
    ConstView positions;
    if (!inputs.rows.absent()) positions = inputs.rows.slice_rows(begin, end);

    ConstView x = inputs.hidden;
    if (gathers) {
      gather_piece(exec, gathered.slice_rows(0, rows), inputs.hidden, positions);
      x = gathered.slice_rows(0, rows);
    } else {
      x = inputs.hidden.slice_rows(begin, end);
    }
    const View z = slab.slice_rows(0, rows).slice_cols(0, columns);
    head.forward(exec, z, Grad::overwrite, x);
    SoftmaxChunk chunk{.logits = z,
                       .positions = positions,
                       .first = begin,
                       .targets = inputs.targets,
                       .bias = inputs.bias,
                       .class_weights = inputs.class_weights,
                       .token_weights = ruled ? ruled_weights : inputs.token_weights,
                       .row_upstream = options.reduction == Reduction::none ? inputs.upstream : ConstView{},
                       .scales = call.scales,
                       .statistics = slice(call.statistics, begin, end),
                       .label_smoothing = options.label_smoothing,
                       .softcap = options.softcap,
                       .gain = gain,
                       .gradient = head_gradient || bias_gradient || input_gradient};
    if (ruled) {
      // The rule must know the row before its gradient is written: logits are read once more.
      SoftmaxChunk first_look = chunk;
      first_look.gradient = false;
      softmax_gradient(exec, first_look);
      token_rule(exec,
                 {.logits = z,
                  .positions = positions,
                  .first = begin,
                  .token_weights = inputs.token_weights,
                  .statistics = chunk.statistics,
                  .softcap = options.softcap,
                  .weights = ruled_weights},
                 options.rule);
    }
    if (inputs.other.present()) {
      divergence_gradient(exec, {.own = chunk,
                                 .others = others.of_rows(exec, positions, begin, end, columns),
                                 .others_softcap = inputs.other.softcap,
                                 .weights = inputs.token_weights,
                                 .divergence = call.divergence.slice_rows(begin, end),
                                 .spec = options.divergence});
    } else {
      softmax_gradient(exec, chunk);
    }
    // From here on z is dZ. The head reads x before dX takes its place.
    const backend::CostScope backward(exec, backend::StepPart::backward);
    const Call products{.device_alpha = alpha, .first_row = begin};
    if (bias_gradient) column_sums(exec, outputs.dbias, begin == 0 ? outputs.dbias_mode : Grad::accumulate, z, alpha);
    if (!input_gradient) {
      if (head_gradient) head.accumulate(exec, z, x, products);
      continue;
    }
    const View dx = gathers ? gathered.slice_rows(0, rows) : outputs.dhidden.slice_rows(begin, end);
    if (head_gradient) {
      head.backward(exec, dx, Grad::overwrite, z, x, products);
    } else {
      head.backward_input(exec, dx, Grad::overwrite, z, products);
    }
    if (gathers) scatter_piece(exec, outputs.dhidden, dx, inputs.rows, begin, end);
  }
  LossInputs weighted = inputs;
  if (ruled) weighted.token_weights = ruled_weights;
  finish_loss(exec, {weighted, outputs, options, tokens, count, columns, call.scales, call.statistics, call.divergence,
                     inputs.token_weights});
}

}  // namespace inlay::ops
