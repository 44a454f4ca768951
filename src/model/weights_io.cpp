#include "model/weights_io.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "model/host_transpose.h"
#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace inlay::model {

using backend::ScratchScope;
using weights::for_each_piece;
using weights::Parameter;
using weights::Part;

namespace {

Shape piece_shape(const Parameter& parameter, std::int64_t rows) {
  Shape shape = parameter.shape;
  shape[0] = rows;
  return shape;
}

}  // namespace

void check_tied_head(const ModelConfig& config, const io::Checkpoint& checkpoint) {
  const std::string &head_name = config.names.head, &embedding_name = config.names.embedding;
  if (!config.tied_embeddings || !checkpoint.contains(head_name) || !checkpoint.contains(embedding_name)) return;
  const ConstView head = checkpoint.tensor(head_name), embedding = checkpoint.tensor(embedding_name);
  const bool same = head.dtype() == embedding.dtype() && head.shape() == embedding.shape() &&
                    std::memcmp(head.data(), embedding.data(), head.bytes()) == 0;
  checkpoint.drop(head_name);
  if (same) return;
  user_error(
      "{}: {} differs from {}, but config.json ties them; set tie_word_embeddings to false, or remove the tensor",
      checkpoint.path_of(head_name).string(), head_name, embedding_name);
}

namespace {

// Calls done() with the bytes of each part.
void load_parts(Exec& exec, Parameter& parameter, const io::Checkpoint* checkpoint,
                const std::function<void(std::uint64_t)>& done) {
  for (const Part& part : parameter.parts) {
    std::optional<PartReader> reader;
    if (checkpoint != nullptr) reader.emplace(*checkpoint, parameter, part);
    PartReader* source = reader ? &*reader : nullptr;
    if (parameter.owner != nullptr) {
      parameter.owner->load(exec, part, source);
    } else {
      weights::load_value(exec, parameter, part, source);
    }
    if (!reader) continue;
    exec.synchronize();
    reader->drop();
    done(reader->file_bytes());
  }
}

}  // namespace

void load_weights(Exec& exec, ModelParameters& parameters, const io::Checkpoint* checkpoint, const Progress& progress) {
  INLAY_ASSERT(checkpoint != nullptr || exec.planning(), "weights are loaded from nowhere");
  std::uint64_t done = 0;
  parameters.for_each([&](Parameter& parameter) {
    load_parts(exec, parameter, checkpoint, [&](std::uint64_t bytes) {
      done += bytes;
      if (progress) progress(done, checkpoint->total_bytes());
    });
  });
}

void load_parameter(Exec& exec, Parameter& parameter, const io::Checkpoint& checkpoint) {
  load_parts(exec, parameter, &checkpoint, [](std::uint64_t) {});
}

namespace {

// The rows of a host tensor, in fp32 on the device.
void stage(Exec& exec, View to, const ConstView* from) {
  const ScratchScope scope(exec.arena());
  ops::cast(exec, to, weights::staged_rows(exec, from, to.shape()));
}

// master = the fp32 values of the rows from `row` on: the trained master, or the base model's tensor and what was
// learned for it.
void read_master(Exec& exec, View master, const Parameter& parameter, const ConstView* base, std::int64_t row) {
  if (parameter.trainable) {
    const std::int64_t begin = row - parameter.first_row(), end = begin + master.dim(0);
    const View value = parameter.my_value().slice_rows(begin, end);
    if (parameter.low.absent()) {
      ops::cast(exec, master, value);
    } else {
      ops::join_master(exec, master, value, parameter.low.slice_rows(begin, end));
    }
    return;
  }
  stage(exec, master, base);
  if (parameter.owner != nullptr) parameter.owner->complete(exec, master, row);
}

}  // namespace

void load_part(Exec& exec, View to, const Parameter& parameter, const Part& part, const io::Checkpoint* checkpoint) {
  std::optional<PartReader> reader;
  if (checkpoint != nullptr) reader.emplace(*checkpoint, parameter, part);
  for_each_piece(parameter, part, [&](std::int64_t begin, std::int64_t end) {
    const ConstView piece = reader ? reader->rows(begin, end) : ConstView();
    stage(exec, to.slice_rows(begin, end), reader ? &piece : nullptr);
  });
  if (!reader) return;
  exec.synchronize();
  reader->drop();
}

std::vector<CheckpointTensor> checkpoint_tensors(ModelParameters& parameters) {
  std::vector<CheckpointTensor> tensors;
  std::map<std::string, std::size_t> stacks;
  parameters.for_each([&](Parameter& p) {
    for (const Part& part : p.parts) {
      const auto [found, is_new] = stacks.try_emplace(part.checkpoint_name, tensors.size());
      if (is_new) tensors.push_back({part.checkpoint_name, tensor_shape(p, part), {}});
      tensors[found->second].parts.emplace_back(&p, &part);
    }
  });
  return tensors;
}

bool is_saved_by_rows(const Parameter& p) {
  return p.cut != nullptr && (p.trainable || (p.owner != nullptr && p.owner->changes()));
}

PartRows saved_rows(const Parameter& parameter, const Part& part) {
  if (!is_saved_by_rows(parameter)) return {0, part.rows};
  const std::int64_t begin = std::max(part.row, parameter.first_row());
  const std::int64_t end = std::min(part.row + part.rows, parameter.end_row());
  return begin < end ? PartRows{begin - part.row, end - part.row} : PartRows{};
}

void read_part(Exec& device, const Parameter& parameter, const Part& part, DType dtype, const io::Checkpoint* base,
               const std::function<void(std::span<const std::byte>)>& sink) {
  INLAY_ASSERT(base != nullptr || parameter.trainable || device.planning(), "{} without its base", parameter.name);
  // What trains is read where it lives; what was learned for a frozen one is known to the device.
  Exec& exec = parameter.trainable ? parameter.home(device) : device;
  std::optional<PartReader> reader;
  if (base != nullptr && !parameter.trainable) reader.emplace(*base, parameter, part);
  const PartRows rows = saved_rows(parameter, part);
  const Part mine{.checkpoint_name = {}, .row = part.row + rows.begin, .rows = rows.count()};
  std::vector<std::byte> host;
  std::size_t filled = 0;
  for_each_piece(parameter, mine, [&](std::int64_t begin, std::int64_t end) {
    const ScratchScope scope(exec.arena());
    const Shape shape = piece_shape(parameter, end - begin);
    const ConstView base_piece = reader ? reader->rows(rows.begin + begin, rows.begin + end) : ConstView();
    View converted = exec.arena().scratch("file piece", dtype, shape);
    View master = exec.arena().scratch("master piece", DType::f32, shape);  // a plan knows no dtype: whatever it is
    // A master lies between two numbers of the compute dtype at times, and is rounded in its own way: what was computed
    // with is what is saved.
    if (parameter.trainable && parameter.my_value().dtype() == dtype) {
      const std::int64_t first = mine.row + begin - parameter.first_row();
      ops::cast(exec, converted, parameter.my_value().slice_rows(first, first + shape[0]));
    } else {
      read_master(exec, master, parameter, reader ? &base_piece : nullptr, mine.row + begin);
      ops::cast(exec, converted, master);
    }
    if (exec.planning()) return;
    host.resize(filled + converted.bytes());
    exec.download(host.data() + filled, converted);
    if (part.stacked > 0) {
      filled = host.size();  // to be turned round as a whole
    } else {
      sink(host);
    }
  });
  if (part.stacked == 0 || host.empty() || exec.planning()) return;
  std::vector<std::byte> turned(host.size());
  host_transpose(turned.data(), ConstView(host.data(), dtype, piece_shape(parameter, rows.count())));
  sink(turned);
}

std::vector<float> read_gradient(Exec& exec, const Parameter& parameter, const Part& part) {
  const View gradient = parameter.grad.slice_rows(part.row, part.row + part.rows);
  std::vector<float> host(static_cast<std::size_t>(gradient.size()));
  if (parameter.on_host) exec.synchronize();  // it may be on its way
  parameter.home(exec).download(host.data(), gradient);
  if (part.stacked == 0) return host;
  std::vector<float> turned(host.size());
  host_transpose(reinterpret_cast<std::byte*>(turned.data()), ConstView(host.data(), DType::f32, gradient.shape()));
  return turned;
}

}  // namespace inlay::model
