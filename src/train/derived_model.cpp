#include "train/derived_model.h"

#include "io/paths.h"
#include "model/host_transpose.h"
#include "model/part_reader.h"
#include "ops/elementwise.h"

namespace inlay::train {

namespace fs = std::filesystem;
using backend::Exec;

namespace {

void convert(View to, ConstView from) {
  Exec exec = Exec::runner(Device::cpu, 0);
  ops::cast(exec, to, from);
}

}  // namespace

std::vector<float> as_floats(ConstView view) {
  std::vector<float> values(static_cast<std::size_t>(view.size()));
  convert(View(values.data(), DType::f32, view.shape()), view);
  return values;
}

std::vector<std::byte> in_dtype(const std::vector<float>& numbers, DType dtype, const Shape& shape) {
  std::vector<std::byte> result(numbers.size() * size_of(dtype));
  convert(View(result.data(), dtype, shape), ConstView(numbers.data(), DType::f32, shape));
  return result;
}

std::vector<float> part_numbers(const io::Checkpoint& source, const weights::Parameter& parameter,
                                const weights::Part& part) {
  model::PartReader reader(source, parameter, part);
  return as_floats(reader.rows(0, part.rows));
}

Shape part_shape(const weights::Parameter& parameter, const weights::Part& part) {
  Shape shape = parameter.shape;
  shape[0] = part.rows;
  return shape;
}

std::vector<std::byte> as_tensor(const weights::Part& part, std::vector<std::byte> numbers, DType dtype,
                                 const Shape& shape) {
  if (part.stacked == 0) return numbers;
  std::vector<std::byte> turned(numbers.size());
  model::host_transpose(turned.data(), ConstView(numbers.data(), dtype, shape));
  return turned;
}

void write_derived_folder(fs::path output, const fs::path& base,
                          const std::function<SavedFiles(const fs::path& folder)>& write) {
  if (!output.has_filename()) output = output.parent_path();  // "folder/"
  if (io::exists(output)) user_error("{}: already exists; give a new folder", output.string());
  const fs::path partial = output.parent_path() / fmt::format(".{}.partial", output.filename().string());
  io::remove_all(partial);
  io::create_folders(partial);
  try {
    SavedFiles written = write(partial);
    copy_companions(base, partial, Companions::of_model, written.sums);
    io::rename(partial, output);
    io::sync_folder(output.has_parent_path() ? output.parent_path() : fs::path("."));
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(partial, ignored);
    throw;
  }
}

}  // namespace inlay::train
