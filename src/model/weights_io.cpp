#include "model/weights_io.h"

#include <algorithm>

#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace inlay::model {

using backend::ScratchScope;
using weights::Parameter;
using weights::Part;

namespace {

constexpr std::int64_t piece_elements = std::int64_t{8} << 20;

// Splits a part into ranges of its parameter's rows of at most piece_elements (but at least one row).
template <class Body>
void for_each_piece(const Parameter& parameter, const Part& part, const Body& body) {
  const std::int64_t columns = parameter.size() / parameter.rows();
  const std::int64_t step = std::max<std::int64_t>(1, piece_elements / columns);
  for (std::int64_t begin = 0; begin < part.rows; begin += step) body(begin, std::min(begin + step, part.rows));
}

Shape piece_shape(const Parameter& parameter, std::int64_t rows) {
  Shape shape = parameter.shape;
  shape[0] = rows;
  return shape;
}

// The file's tensor, checked against what the model's configuration says.
ConstView checked_tensor(const io::Checkpoint& checkpoint, const Parameter& parameter, const Part& part) {
  const Shape expected = part_shape(parameter, part);
  const io::TensorInfo* info = checkpoint.find(part.checkpoint_name);
  if (info == nullptr) {
    user_error("{}: tensor {} is missing; by config.json it should be there with shape {}",
               checkpoint.folder().string(), part.checkpoint_name, expected.str());
  }
  const std::string file = checkpoint.path_of(part.checkpoint_name).string();
  if (info->shape.size() != static_cast<std::size_t>(expected.rank()) || Shape(info->shape) != expected) {
    user_error("{}: tensor {} has shape {}, but by config.json it should be {}", file, part.checkpoint_name,
               info->shape_text(), expected.str());
  }
  if (!info->dtype || !is_floating(*info->dtype) || *info->dtype == DType::f64) {
    user_error("{}: tensor {} is {}; weights must be F32, F16 or BF16", file, part.checkpoint_name, info->format_dtype);
  }
  return checkpoint.tensor(part.checkpoint_name);
}

void load_piece(Exec& device, Parameter& parameter, std::int64_t row, const ConstView* source, const Shape& shape) {
  Exec& exec = parameter.home(device);
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  // On a GPU the file's bytes travel through scratch. The plan does not know the file's dtype and takes the widest.
  ConstView from = source != nullptr ? *source : ConstView(arena.scratch("file piece", DType::f32, shape));
  if (exec.on_cuda() && source != nullptr) {
    View staged = arena.scratch("file piece", source->dtype(), shape);
    exec.upload(staged, source->data());
    from = staged;
  }
  const View value = parameter.value.slice_rows(row, row + shape[0]);
  if (parameter.low.absent()) {
    ops::cast(exec, value, from);
    return;
  }
  View master = arena.scratch("master piece", DType::f32, shape);
  ops::cast(exec, master, from);
  ops::split_master(exec, value, parameter.low.slice_rows(row, row + shape[0]), master);
}

}  // namespace

Shape part_shape(const Parameter& parameter, const Part& part) { return piece_shape(parameter, part.rows); }

void load_weights(Exec& exec, ModelParameters& parameters, const io::Checkpoint* checkpoint, const Progress& progress) {
  INLAY_ASSERT(checkpoint != nullptr || exec.planning(), "weights are loaded from nowhere");
  std::uint64_t done = 0;
  parameters.for_each([&](Parameter& parameter) {
    for (const Part& part : parameter.parts) {
      ConstView tensor;
      if (checkpoint != nullptr) tensor = checked_tensor(*checkpoint, parameter, part);
      for_each_piece(parameter, part, [&](std::int64_t begin, std::int64_t end) {
        const ConstView piece = checkpoint != nullptr ? tensor.slice_rows(begin, end) : ConstView();
        load_piece(exec, parameter, part.row + begin, checkpoint != nullptr ? &piece : nullptr,
                   piece_shape(parameter, end - begin));
      });
      if (checkpoint == nullptr) continue;
      done += tensor.bytes();
      exec.synchronize();
      checkpoint->drop(part.checkpoint_name);
      if (progress) progress(done, checkpoint->total_bytes());
    }
  });
}

namespace {

// The rows of a host tensor, in fp32 on the device. The plan does not know the file's dtype and takes the widest.
void stage(Exec& exec, View to, const ConstView* from) {
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  const DType dtype = from != nullptr ? from->dtype() : DType::f32;
  View staged = exec.on_cuda() || from == nullptr ? arena.scratch("base piece", dtype, to.shape()) : View();
  if (from != nullptr && exec.on_cuda()) exec.upload(staged, from->data());
  ops::cast(exec, to, staged.absent() ? *from : ConstView(staged));
}

// The fp32 values of a piece, in scratch: the trained master, or the base model's tensor and what was learned for it.
View master_piece(Exec& exec, const Parameter& parameter, const ConstView* base, std::int64_t row, const Shape& shape) {
  Arena& arena = exec.arena();
  View master = arena.scratch("master piece", DType::f32, shape);
  if (parameter.trainable) {
    const View value = parameter.value.slice_rows(row, row + shape[0]);
    if (parameter.low.absent()) {
      ops::cast(exec, master, value);
    } else {
      ops::join_master(exec, master, value, parameter.low.slice_rows(row, row + shape[0]));
    }
    return master;
  }
  stage(exec, master, base);
  if (parameter.change) parameter.change(exec, master, row);
  return master;
}

}  // namespace

void load_part(Exec& exec, View to, const Parameter& parameter, const Part& part, const io::Checkpoint* checkpoint) {
  ConstView tensor;
  if (checkpoint != nullptr) tensor = checked_tensor(*checkpoint, parameter, part);
  for_each_piece(parameter, part, [&](std::int64_t begin, std::int64_t end) {
    const ConstView piece = checkpoint != nullptr ? tensor.slice_rows(begin, end) : ConstView();
    stage(exec, to.slice_rows(begin, end), checkpoint != nullptr ? &piece : nullptr);
  });
  if (checkpoint == nullptr) return;
  exec.synchronize();
  checkpoint->drop(part.checkpoint_name);
}

void read_part(Exec& device, const Parameter& parameter, const Part& part, DType dtype, const io::Checkpoint* base,
               const std::function<void(std::span<const std::byte>)>& sink) {
  INLAY_ASSERT(base != nullptr || parameter.trainable || device.planning(), "{} without its base", parameter.name);
  // What trains is read where it lives; what was learned for a frozen one is known to the device.
  Exec& exec = parameter.trainable ? parameter.home(device) : device;
  ConstView tensor;
  if (base != nullptr && !parameter.trainable) tensor = checked_tensor(*base, parameter, part);
  std::vector<std::byte> host;
  for_each_piece(parameter, part, [&](std::int64_t begin, std::int64_t end) {
    const ScratchScope scope(exec.arena());
    const Shape shape = piece_shape(parameter, end - begin);
    const ConstView base_piece = tensor.absent() ? ConstView() : tensor.slice_rows(begin, end);
    View converted = exec.arena().scratch("file piece", dtype, shape);
    const View master = master_piece(exec, parameter, tensor.absent() ? nullptr : &base_piece, part.row + begin, shape);
    ops::cast(exec, converted, master);
    if (exec.planning()) return;
    host.resize(converted.bytes());
    exec.download(host.data(), converted);
    sink(host);
  });
}

std::vector<float> read_gradient(Exec& exec, const Parameter& parameter, const Part& part) {
  const View gradient = parameter.grad.slice_rows(part.row, part.row + part.rows);
  std::vector<float> host(static_cast<std::size_t>(gradient.size()));
  if (parameter.on_host) exec.synchronize();  // it may be on its way
  parameter.home(exec).download(host.data(), gradient);
  return host;
}

}  // namespace inlay::model
