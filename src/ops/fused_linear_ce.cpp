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
  LossCall call{inputs, outputs, options, tokens, count, columns, {}, {}};
  call.scales = exec.arena().scratch("loss: scales", DType::f32, {loss_scales_count});
  call.statistics = take_statistics(exec, count, options.label_smoothing > 0,
                                    !outputs.correct.absent() || !outputs.predicted.absent());
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
    softmax_gradient(exec, {.logits = z,
                            .positions = positions,
                            .first = begin,
                            .targets = inputs.targets,
                            .bias = inputs.bias,
                            .class_weights = inputs.class_weights,
                            .token_weights = inputs.token_weights,
                            .row_upstream = options.reduction == Reduction::none ? inputs.upstream : ConstView{},
                            .scales = call.scales,
                            .statistics = slice(call.statistics, begin, end),
                            .label_smoothing = options.label_smoothing,
                            .softcap = options.softcap,
                            .gain = gain,
                            .gradient = head_gradient || bias_gradient || input_gradient});
    // From here on z is dZ. The head reads x before dX takes its place.
    const backend::CostScope backward(exec, backend::StepPart::backward);
    if (head_gradient) head.accumulate(exec, z, x, {.device_alpha = alpha, .first_row = begin});
    if (bias_gradient) column_sums(exec, outputs.dbias, begin == 0 ? outputs.dbias_mode : Grad::accumulate, z, alpha);
    if (!input_gradient) continue;
    if (gathers) {
      const View dx = gathered.slice_rows(0, rows);
      head.backward_input(exec, dx, Grad::overwrite, z, {.device_alpha = alpha, .first_row = begin});
      scatter_piece(exec, outputs.dhidden, dx, inputs.rows, begin, end);
    } else {
      head.backward_input(exec, outputs.dhidden.slice_rows(begin, end), Grad::overwrite, z,
                          {.device_alpha = alpha, .first_row = begin});
    }
  }
  finish_loss(exec, call);
}

}  // namespace inlay::ops
