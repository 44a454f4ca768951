#include "gguf/tensors.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "io/mxfp4.h"

namespace inlay::gguf {

namespace {

using model::ModelConfig;
using model::NameMap;

// Numbers at `at`, `at + step`, ... of a tensor.
template <class T>
void take(float* to, std::int64_t count, const T* from, std::int64_t step) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i * step]);
}

void take(float* to, std::int64_t count, const ConstView& from, std::int64_t at, std::int64_t step = 1) {
  switch (from.dtype()) {
    case DType::f32: return take(to, count, from.as<float>() + at, step);
    case DType::bf16: return take(to, count, from.as<bf16>() + at, step);
    default: return take(to, count, from.as<f16>() + at, step);
  }
}

// to[r][i] = from[i · step + r · between]: rows that are columns there, some at a time, so that what is read together
// lies together.
template <class T>
void take_columns(float* to, std::int64_t rows, std::int64_t columns, const T* from, std::int64_t step,
                  std::int64_t between) {
  for (std::int64_t i = 0; i < columns; ++i) {
    for (std::int64_t r = 0; r < rows; ++r) to[r * columns + i] = static_cast<float>(from[i * step + r * between]);
  }
}

void take_columns(float* to, std::int64_t rows, std::int64_t columns, const ConstView& from, std::int64_t at,
                  std::int64_t step, std::int64_t between) {
  switch (from.dtype()) {
    case DType::f32: return take_columns(to, rows, columns, from.as<float>() + at, step, between);
    case DType::bf16: return take_columns(to, rows, columns, from.as<bf16>() + at, step, between);
    default: return take_columns(to, rows, columns, from.as<f16>() + at, step, between);
  }
}

enum class Part : std::uint8_t { whole, first_half, second_half, even, odd };

// Which row of a tensor of twice the rows is row i of a part of it.
std::int64_t row_of(Part part, std::int64_t i, std::int64_t rows) {
  switch (part) {
    case Part::whole:
    case Part::first_half: return i;
    case Part::second_half: return rows + i;
    case Part::even: return 2 * i;
    case Part::odd: return 2 * i + 1;
  }
  return i;
}

std::string in_layer(const std::string& name, std::int64_t layer) { return fmt::format(fmt::runtime(name), layer); }

class Planner {
 public:
  Planner(const ModelConfig& config, const Architecture& architecture, const io::Checkpoint& checkpoint,
          NumberType type)
      : config_(config), architecture_(architecture), checkpoint_(checkpoint), type_(type) {}

  std::vector<TensorPlan> plan() {
    const NameMap& names = config_.names;
    matrix("token_embd.weight", names.embedding, outside_layers());
    for (const RopeTensor& tensor : rope_tensors(config_.rope)) constant(tensor);
    for (std::int64_t l = 0; l < config_.layer_count(); ++l) layer(l);
    vector("output_norm.weight", names.final_norm, config_.norm_offset);
    if (!config_.tied_embeddings) matrix("output.weight", names.head, outside_layers());
    return std::move(plans_);
  }

 private:
  // ggml's choice where everything else is in four bits.
  NumberType outside_layers() const { return type_ == NumberType::mxfp4 ? NumberType::q8_0 : type_; }
  NumberType in_layers() const { return config_.experts.count > 0 ? outside_layers() : type_; }

  void layer(std::int64_t l) {
    const NameMap& names = config_.names;
    const auto here = [&](const char* name) { return fmt::format("blk.{}.{}", l, name); };
    const auto there = [&](const std::string& name) { return in_layer(name, l); };
    const float offset = config_.norm_offset;
    if (config_.input_norms) vector(here("attn_norm.weight"), there(names.attention_norm), offset);
    if (names.qkv.empty()) {
      linear(here("attn_q"), there(names.q), config_.qkv_bias, architecture_.permutes ? config_.heads : 0);
      linear(here("attn_k"), there(names.k), config_.qkv_bias, architecture_.permutes ? config_.kv_heads : 0);
      linear(here("attn_v"), there(names.v), config_.qkv_bias);
    } else {
      linear(here("attn_qkv"), there(names.qkv), config_.qkv_bias);
    }
    linear(here("attn_output"), there(names.output), config_.output_bias);
    if (config_.qk_norm != model::QkNorm::none) {
      vector(here("attn_q_norm.weight"), there(names.q_norm), offset);
      vector(here("attn_k_norm.weight"), there(names.k_norm), offset);
    }
    if (config_.sinks) vector(here("attn_sinks.weight"), there(names.sinks));
    if (config_.output_norms) {
      vector(here("post_attention_norm.weight"), there(names.attention_output_norm), offset);
      vector(here("post_ffw_norm.weight"), there(names.mlp_output_norm), offset);
    }
    if (config_.input_norms) {
      vector(here(architecture_.mlp_norm_behind ? "post_attention_norm.weight" : "ffn_norm.weight"),
             there(names.mlp_norm), offset);
    }
    config_.layers[static_cast<std::size_t>(l)].experts ? experts(l) : mlp(l);
  }

  void mlp(std::int64_t l) {
    const NameMap& names = config_.names;
    const auto here = [&](const char* name) { return fmt::format("blk.{}.{}", l, name); };
    if (names.gate_up.empty()) {
      linear(here("ffn_gate"), in_layer(names.gate, l), config_.mlp_bias);
      linear(here("ffn_up"), in_layer(names.up, l), config_.mlp_bias);
    } else if (architecture_.fused_gate_up) {
      linear(here("ffn_up"), in_layer(names.gate_up, l), config_.mlp_bias);
    } else {
      const std::string both = in_layer(names.gate_up, l) + ".weight";
      matrix(here("ffn_gate.weight"), both, in_layers(), 0, Part::first_half);
      matrix(here("ffn_up.weight"), both, in_layers(), 0, Part::second_half);
    }
    linear(here("ffn_down"), in_layer(names.down, l), config_.mlp_bias);
  }

  void experts(std::int64_t l) {
    const NameMap& names = config_.names;
    const auto here = [&](const char* name) { return fmt::format("blk.{}.{}", l, name); };
    matrix(here("ffn_gate_inp.weight"), in_layer(names.router, l) + ".weight", NumberType::f32);
    if (config_.experts.router_bias) vector(here("ffn_gate_inp.bias"), in_layer(names.router, l) + ".bias");
    if (!names.experts_stacked) {
      list_of_experts(here("ffn_gate_exps.weight"), names.expert_gate, l);
      list_of_experts(here("ffn_up_exps.weight"), names.expert_up, l);
      list_of_experts(here("ffn_down_exps.weight"), names.expert_down, l);
      return;
    }
    const std::string gate_up = in_layer(names.expert_gate_up, l), down = in_layer(names.expert_down, l);
    const std::int64_t width = config_.experts.intermediate;
    for (const auto& [name, part] : {std::pair("ffn_gate_exps", Part::even), std::pair("ffn_up_exps", Part::odd)}) {
      stack(here(name) + ".weight", gate_up, width, config_.hidden, part);
      if (config_.experts.bias) stacked_bias(here(name) + ".bias", gate_up + "_bias", width, part);
    }
    stack(here("ffn_down_exps.weight"), down, config_.hidden, width, Part::whole);
    if (config_.experts.bias) {
      stacked_bias(here("ffn_down_exps.bias"), down + "_bias", config_.hidden, Part::whole);
    }
  }

  ConstView source(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const io::TensorInfo* info = checkpoint_.find(name);
    if (info == nullptr) user_error("{}: tensor {} is missing", checkpoint_.folder().string(), name);
    const Shape expected{std::span<const std::int64_t>(shape)};
    const ConstView view = checkpoint_.tensor(name);
    if (view.shape() != expected) {
      user_error("{}: tensor {} is {}, expected {}", checkpoint_.path_of(name).string(), name, info->shape_text(),
                 expected.str());
    }
    if (!is_floating(view.dtype()) || view.dtype() == DType::f64) {
      user_error("{}: tensor {} is {}, expected fp32, bf16 or fp16", checkpoint_.path_of(name).string(), name,
                 info->format_dtype);
    }
    return view;
  }

  // What the checkpoint has under this name.
  std::vector<std::int64_t> extents(const std::string& name) const {
    const io::TensorInfo* info = checkpoint_.find(name);
    if (info == nullptr) user_error("{}: tensor {} is missing", checkpoint_.folder().string(), name);
    return info->shape;
  }

  // Rows that are no whole blocks stay in 16 bits.
  static NumberType fitting(NumberType type, std::int64_t columns) {
    return has_blocks(type) && columns % block != 0 ? NumberType::f16 : type;
  }

  void linear(const std::string& name, const std::string& from, bool bias, std::int64_t permuted_heads = 0) {
    matrix(name + ".weight", from + ".weight", in_layers(), permuted_heads);
    if (bias) vector(name + ".bias", from + ".bias", 0, permuted_heads);
  }

  // Row i of a head whose halves become neighbours.
  static std::int64_t permuted(std::int64_t row, std::int64_t rows, std::int64_t heads) {
    if (heads == 0) return row;
    const std::int64_t width = rows / heads, head = row / width, i = row % width;
    return head * width + (i % 2) * (width / 2) + i / 2;
  }

  void matrix(const std::string& name, const std::string& from, NumberType type, std::int64_t permuted_heads = 0,
              Part part = Part::whole) {
    const std::vector<std::int64_t> shape = extents(from);
    if (shape.size() != 2) user_error("{}: tensor {} is not a matrix", checkpoint_.path_of(from).string(), from);
    const std::int64_t rows = part == Part::whole ? shape[0] : shape[0] / 2, columns = shape[1];
    const ConstView view = source(from, shape);
    plans_.push_back({.entry = {name, fitting(type, columns), {rows, columns}},
                      .rows =
                          [=](std::int64_t begin, std::int64_t end, float* to) {
                            for (std::int64_t row = begin; row < end; ++row, to += columns) {
                              const std::int64_t at = row_of(part, permuted(row, rows, permuted_heads), rows);
                              take(to, columns, view, at * columns);
                            }
                          },
                      .bytes = {},
                      .sources = {from}});
  }

  void vector(const std::string& name, const std::string& from, float offset = 0, std::int64_t permuted_heads = 0) {
    const std::vector<std::int64_t> shape = extents(from);
    if (shape.size() != 1) user_error("{}: tensor {} is not a vector", checkpoint_.path_of(from).string(), from);
    const std::int64_t size = shape[0];
    const ConstView view = source(from, shape);
    plans_.push_back({.entry = {name, NumberType::f32, {size}},
                      .rows =
                          [=](std::int64_t, std::int64_t, float* to) {
                            for (std::int64_t i = 0; i < size; ++i) {
                              take(to + i, 1, view, permuted(i, size, permuted_heads));
                              to[i] += offset;
                            }
                          },
                      .bytes = {},
                      .sources = {from}});
  }

  void constant(const RopeTensor& tensor) {
    plans_.push_back({.entry = {tensor.name, NumberType::f32, {static_cast<std::int64_t>(tensor.divisors.size())}},
                      .rows = [tensor](std::int64_t, std::int64_t,
                                       float* to) { std::copy(tensor.divisors.begin(), tensor.divisors.end(), to); },
                      .bytes = {},
                      .sources = {}});
  }

  // A tensor of each expert, one after the other.
  void list_of_experts(const std::string& name, const std::string& pattern, std::int64_t l) {
    std::vector<ConstView> views;
    std::vector<std::string> sources;
    for (std::int64_t e = 0; e < config_.experts.count; ++e) {
      sources.push_back(fmt::format(fmt::runtime(pattern), l, e) + ".weight");
      views.push_back(source(sources.back(), extents(sources.front())));
    }
    const std::int64_t rows = views[0].dim(0), columns = views[0].dim(1);
    plans_.push_back({.entry = {name, fitting(type_, columns), {config_.experts.count, rows, columns}},
                      .rows =
                          [=](std::int64_t begin, std::int64_t end, float* to) {
                            for (std::int64_t row = begin; row < end; ++row, to += columns) {
                              take(to, columns, views[static_cast<std::size_t>(row / rows)], row % rows * columns);
                            }
                          },
                      .bytes = {},
                      .sources = sources});
  }

  // All experts in one tensor, [experts, in, out], or packed, [experts, out, in / 32, 16].
  void stack(const std::string& name, const std::string& from, std::int64_t rows, std::int64_t columns, Part part) {
    const std::int64_t experts = config_.experts.count, all_rows = part == Part::whole ? rows : 2 * rows;
    if (checkpoint_.contains(from + "_blocks")) return packed_stack(name, from, rows, columns, part);
    const ConstView view = source(from, {experts, columns, all_rows});
    plans_.push_back({.entry = {name, fitting(type_, columns), {experts, rows, columns}},
                      .rows =
                          [=](std::int64_t begin, std::int64_t end, float* to) {
                            for (std::int64_t row = begin; row < end;) {
                              const std::int64_t expert = row / rows, column = row_of(part, row % rows, rows);
                              const std::int64_t count = std::min({end, (expert + 1) * rows, row + 32}) - row;
                              take_columns(to, count, columns, view, expert * columns * all_rows + column, all_rows,
                                           all_rows / rows);
                              row += count, to += count * columns;
                            }
                          },
                      .bytes = {},
                      .sources = {from}});
  }

  void packed_stack(const std::string& name, const std::string& from, std::int64_t rows, std::int64_t columns,
                    Part part) {
    const std::int64_t experts = config_.experts.count, all_rows = part == Part::whole ? rows : 2 * rows;
    const std::int64_t blocks_a_row = columns / block;
    const ConstView blocks = checkpoint_.tensor(from + "_blocks"), scales = checkpoint_.tensor(from + "_scales");
    if (blocks.shape() != Shape{experts, all_rows, blocks_a_row, block / 2} ||
        scales.shape() != Shape{experts, all_rows, blocks_a_row}) {
      user_error(
          "{}: tensors {}_blocks and _scales are {} and {}, expected {} rows of {} blocks for each of {} experts",
          checkpoint_.folder().string(), from, blocks.shape().str(), scales.shape().str(), all_rows, blocks_a_row,
          experts);
    }
    plans_.push_back({.entry = {name, NumberType::mxfp4, {experts, rows, columns}},
                      .rows = {},
                      .bytes =
                          [=](std::int64_t begin, std::int64_t end, std::span<std::byte> to) {
                            const auto row_bytes = static_cast<std::size_t>(bytes_of(NumberType::mxfp4, columns));
                            const auto count = static_cast<std::size_t>(blocks_a_row);
                            for (std::int64_t row = begin; row < end; ++row, to = to.subspan(row_bytes)) {
                              const std::int64_t at = row / rows * all_rows + row_of(part, row % rows, rows);
                              repack_mxfp4(
                                  to.first(row_bytes),
                                  {blocks.as<std::uint8_t>() + at * blocks_a_row * (block / 2), count * (block / 2)},
                                  {scales.as<std::uint8_t>() + at * blocks_a_row, count});
                            }
                          },
                      .sources = {from + "_blocks", from + "_scales"}});
  }

  void stacked_bias(const std::string& name, const std::string& from, std::int64_t columns, Part part) {
    const std::int64_t experts = config_.experts.count, all = part == Part::whole ? columns : 2 * columns;
    const ConstView view = source(from, {experts, all});
    plans_.push_back({.entry = {name, NumberType::f32, {experts, columns}},
                      .rows =
                          [=](std::int64_t begin, std::int64_t end, float* to) {
                            for (std::int64_t row = begin; row < end; ++row, to += columns) {
                              take(to, columns, view, row * all + row_of(part, 0, columns), all / columns);
                            }
                          },
                      .bytes = {},
                      .sources = {from}});
  }

  const ModelConfig& config_;
  const Architecture& architecture_;
  const io::Checkpoint& checkpoint_;
  NumberType type_;
  std::vector<TensorPlan> plans_;
};

}  // namespace

std::vector<TensorPlan> plan_tensors(const ModelConfig& config, const Architecture& architecture,
                                     const io::Checkpoint& checkpoint, NumberType type) {
  return Planner(config, architecture, checkpoint, type).plan();
}

}  // namespace inlay::gguf
