#include "gguf/export.h"

#include <algorithm>

#include "backend/cpu/parallel.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "gguf/tensors.h"
#include "gguf/vocabulary.h"
#include "io/paths.h"
#include "model/families/family.h"
#include "model/weights_io.h"
#include "train/merge.h"

namespace inlay::gguf {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t numbers_at_once = std::int64_t{1} << 22;
constexpr std::uint32_t quantisation_version = 2;

// The model with its adapter's changes, in fp32, for as long as it takes.
class Merged {
 public:
  Merged(const ExportOptions& options, Console& console)
      : folder_(options.output.parent_path() / fmt::format(".{}.merged", options.output.filename().string())) {
    io::remove_all(folder_);
    train::merge({.base = options.model, .adapter = options.adapter, .output = folder_, .dtype = DType::f32}, console);
  }
  ~Merged() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Merged(const Merged&) = delete;
  Merged& operator=(const Merged&) = delete;
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

NumberType type_of(DType dtype) {
  return dtype == DType::bf16 ? NumberType::bf16 : dtype == DType::f16 ? NumberType::f16 : NumberType::f32;
}

// The number of llama.cpp's name for the whole file.
std::uint32_t file_type(NumberType type) {
  switch (type) {
    case NumberType::f32: return 0;
    case NumberType::f16: return 1;
    case NumberType::q8_0: return 7;
    case NumberType::bf16: return 32;
    case NumberType::mxfp4: return 38;
  }
  return 0;
}

void write_tensor(FileWriter& writer, const TensorPlan& plan, const std::function<void()>& after_piece) {
  const TensorEntry& entry = plan.entry;
  // A vector is one row.
  const std::int64_t columns = entry.columns(), rows = entry.count() / columns;
  const std::int64_t step = std::max<std::int64_t>(1, numbers_at_once / columns);
  std::vector<float> numbers;
  std::vector<std::byte> bytes;
  for (std::int64_t begin = 0; begin < rows; begin += step) {
    stop_where_asked("exporting");
    const std::int64_t end = std::min(begin + step, rows);
    bytes.resize(static_cast<std::size_t>(bytes_of(entry.type, (end - begin) * columns)));
    numbers.resize(plan.rows ? static_cast<std::size_t>((end - begin) * columns) : 0);
    const std::int64_t grain = std::max<std::int64_t>(1, 65536 / columns);
    backend::cpu::parallel_for(end - begin, grain, [&](std::int64_t first, std::int64_t last) {
      const auto at = static_cast<std::size_t>(bytes_of(entry.type, columns)) * static_cast<std::size_t>(first);
      const auto size = static_cast<std::size_t>(bytes_of(entry.type, columns * (last - first)));
      const auto to = std::span(bytes).subspan(at, size);
      if (plan.bytes) return plan.bytes(begin + first, begin + last, to);
      float* values = numbers.data() + first * columns;
      plan.rows(begin + first, begin + last, values);
      encode(entry.type, to, {values, static_cast<std::size_t>((last - first) * columns)});
    });
    writer.write(bytes);
    after_piece();
  }
}

}  // namespace

ExportReport export_model(const ExportOptions& options, Console& console) {
  if (io::is_folder(options.output)) user_error("{}: is a folder; give the name of a file", options.output.string());
  if (io::exists(options.output)) {
    user_error("{}: already exists; give a new name, or remove it first", options.output.string());
  }
  const model::ModelConfig config = model::load_config(options.model);
  const Architecture architecture = architecture_of(config);
  std::optional<Merged> merged;
  if (!options.adapter.empty()) {
    install_interrupt_handler();
    merged.emplace(options, console);
  }
  const io::Checkpoint checkpoint(merged ? merged->folder() : options.model);
  model::check_tied_head(config, checkpoint);
  const NumberType type = options.type.value_or(type_of(config.dtype));

  const fs::path title =
      options.model.has_filename() ? options.model.filename() : options.model.parent_path().filename();
  Metadata metadata;
  metadata.set("general.architecture", architecture.name);
  metadata.set("general.type", std::string("model"));
  metadata.set("general.name", options.title.value_or(title.string()));
  metadata.set("general.file_type", file_type(type));
  metadata.set("general.quantization_version", quantisation_version);
  describe(metadata, architecture, config);
  const bool own_text = !options.adapter.empty() && io::exists(options.adapter / "tokenizer.json");
  describe_vocabulary(metadata, {.folder = own_text ? options.adapter : options.model,
                                 .rows = config.vocab,
                                 .glm = config.model_type.starts_with("glm"),
                                 .pre = options.pre});

  const std::vector<TensorPlan> plans = plan_tensors(config, architecture, checkpoint, type);
  std::vector<TensorEntry> entries;
  for (const TensorPlan& plan : plans) entries.push_back(plan.entry);
  FileWriter writer(options.output, metadata, entries);
  ExportReport report{.architecture = architecture.name,
                      .type = type,
                      .tensors = static_cast<std::int64_t>(plans.size()),
                      .bytes = writer.total_bytes(),
                      .notes = architecture.notes};
  if (config.names.embedding.find("language_model.") != std::string::npos) {
    report.notes.emplace_back("only the text model is in the file, not what is for images");
  }
  for (const TensorPlan& plan : plans) {
    write_tensor(writer, plan, [&] { console.progress("exporting", writer.written_bytes(), writer.total_bytes()); });
    for (const std::string& source : plan.sources) checkpoint.drop(source);
  }
  writer.finish();
  if (has_blocks(type)) {
    const auto plain = std::count_if(entries.begin(), entries.end(), [](const TensorEntry& entry) {
      return entry.shape.size() > 1 && entry.type == NumberType::f16;
    });
    if (plain > 0) {
      report.notes.push_back(
          fmt::format("{} matrices have rows that are not whole blocks of {}, and are in f16", plain, block));
    }
  }
  return report;
}

}  // namespace inlay::gguf
