#include "model/part_reader.h"

#include "backend/cpu/parallel.h"
#include "io/mxfp4.h"
#include "model/host_transpose.h"

namespace inlay::model {

using weights::Parameter;
using weights::Part;

namespace {

// The file's tensor, checked against what the model's configuration says.
ConstView checked_tensor(const io::Checkpoint& checkpoint, const std::string& name,
                         const std::vector<std::int64_t>& expected, bool bytes) {
  const auto text = [](const std::vector<std::int64_t>& shape) {
    io::TensorInfo info;
    info.shape = shape;
    return info.shape_text();
  };
  const io::TensorInfo* info = checkpoint.find(name);
  if (info == nullptr) {
    user_error("{}: tensor {} is missing; config.json expects it with shape {}", checkpoint.folder().string(), name,
               text(expected));
  }
  const std::string file = checkpoint.path_of(name).string();
  if (info->shape != expected) {
    user_error("{}: tensor {} has shape {}, but config.json expects {}", file, name, info->shape_text(),
               text(expected));
  }
  if (bytes && info->dtype != DType::u8) {
    user_error("{}: tensor {} is {}; MXFP4 numbers and scales must be U8", file, name, info->format_dtype);
  }
  if (!bytes && (!info->dtype || !is_floating(*info->dtype) || *info->dtype == DType::f64)) {
    user_error("{}: tensor {} is {}; weights must be F32, F16 or BF16", file, name, info->format_dtype);
  }
  return checkpoint.tensor(name);
}

// The index-th of the matrices that a tensor stacks.
ConstView matrix_of(const ConstView& tensor, std::int64_t index) {
  std::vector<std::int64_t> extents = tensor.shape().extents();
  extents.erase(extents.begin());
  return tensor.slice(0, index, index + 1).reshape(Shape(extents));
}

}  // namespace

bool is_mxfp4(const io::Checkpoint& checkpoint, const std::string& name) {
  return !checkpoint.contains(name) && checkpoint.contains(name + "_blocks");
}

Shape tensor_shape(const Parameter& parameter, const Part& part) {
  if (part.stacked > 0) return {part.stacked, parameter.shape[1], part.rows};
  Shape shape = parameter.shape;
  shape[0] = part.of_rows > 0 ? part.of_rows : part.rows;
  return shape;
}

PartReader::PartReader(const io::Checkpoint& checkpoint, const Parameter& parameter, const Part& part)
    : checkpoint_(&checkpoint), parameter_(&parameter), part_(&part) {
  if (part.stacked == 0) {
    open_plain();
  } else if (is_mxfp4(checkpoint, part.checkpoint_name)) {
    open_mxfp4();
  } else {
    open_stacked();
  }
}

void PartReader::open_plain() {
  const Shape shape = tensor_shape(*parameter_, *part_);
  tensor_ = checked_tensor(*checkpoint_, part_->checkpoint_name, shape.extents(), false);
  file_bytes_ = tensor_.bytes();
}

void PartReader::open_stacked() {
  const Shape shape = tensor_shape(*parameter_, *part_);
  tensor_ = matrix_of(checked_tensor(*checkpoint_, part_->checkpoint_name, shape.extents(), false), part_->index);
  file_bytes_ = tensor_.bytes();
}

// Numbers lie as this project wants them, [out, in]; transformers turns them round when it decodes them.
void PartReader::open_mxfp4() {
  const std::int64_t in = parameter_->shape[1], out = part_->rows;
  if (in % io::mxfp4_block != 0) {
    user_error("{}: tensor {}_blocks: rows of {} numbers cannot be MXFP4, which comes in blocks of {}",
               checkpoint_->path_of(part_->checkpoint_name + "_blocks").string(), part_->checkpoint_name, in,
               io::mxfp4_block);
  }
  const std::int64_t blocks = in / io::mxfp4_block;
  const std::string& name = part_->checkpoint_name;
  blocks_ = matrix_of(
      checked_tensor(*checkpoint_, name + "_blocks", {part_->stacked, out, blocks, io::mxfp4_block_bytes}, true),
      part_->index);
  scales_ =
      matrix_of(checked_tensor(*checkpoint_, name + "_scales", {part_->stacked, out, blocks}, true), part_->index);
  file_bytes_ = blocks_.bytes() + scales_.bytes();
}

ConstView PartReader::rows(std::int64_t begin, std::int64_t end) {
  if (!blocks_.absent()) return decoded_rows(begin, end);
  return part_->stacked > 0 ? transposed_rows(begin, end) : tensor_.slice_rows(begin, end);
}

ConstView PartReader::transposed_rows(std::int64_t begin, std::int64_t end) {
  const std::int64_t in = tensor_.dim(0);
  buffer_.resize(static_cast<std::size_t>((end - begin) * in) * size_of(tensor_.dtype()));
  host_transpose(buffer_.data(), tensor_.slice_cols(begin, end));
  return ConstView(buffer_.data(), tensor_.dtype(), {end - begin, in});
}

ConstView PartReader::decoded_rows(std::int64_t begin, std::int64_t end) {
  const std::int64_t in = parameter_->shape[1], blocks = scales_.dim(1);
  buffer_.resize(static_cast<std::size_t>((end - begin) * in) * sizeof(bf16));
  auto* to = reinterpret_cast<bf16*>(buffer_.data());
  backend::cpu::parallel_for(end - begin, 16, [&](std::int64_t first, std::int64_t last) {
    const auto count = static_cast<std::size_t>((last - first) * blocks);
    const std::int64_t block = (begin + first) * blocks;
    io::mxfp4_decode(
        std::span(to + first * in, count * io::mxfp4_block),
        std::span(blocks_.as<std::uint8_t>() + block * io::mxfp4_block_bytes, count * io::mxfp4_block_bytes),
        std::span(scales_.as<std::uint8_t>() + block, count));
  });
  return ConstView(buffer_.data(), DType::bf16, {end - begin, in});
}

void PartReader::drop() const {
  if (part_->stacked > 0 && part_->index + 1 < part_->stacked) return;
  if (blocks_.absent()) return checkpoint_->drop(part_->checkpoint_name);
  checkpoint_->drop(part_->checkpoint_name + "_blocks");
  checkpoint_->drop(part_->checkpoint_name + "_scales");
}

}  // namespace inlay::model
