#include "train/merge.h"

#include <cmath>
#include <map>
#include <set>

#include "core/interrupt.h"
#include "model/families/family.h"
#include "model/part_reader.h"
#include "train/adapters.h"
#include "train/derived_model.h"

namespace inlay::train {

namespace fs = std::filesystem;
using backend::Exec;
using weights::Parameter;
using weights::Part;

namespace {

// What the written numbers hold of what was learned, summed over pieces.
struct Sums {
  double learned = 0, kept = 0, noise = 0;

  void add(std::span<const float> before, std::span<const float> after, std::span<const float> written) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      const double change = double{after[i]} - before[i], got = double{written[i]} - before[i];
      learned += change * change;
      kept += got * change;
      noise += (got - change) * (got - change);
    }
  }
};

// Makes the merged numbers of one part after the other, each in memory that lasts as long as it takes.
class Merger {
 public:
  Merger(const adapter::AdapterFile& file, const model::ModelConfig& config, const fs::path& base)
      : file_(file), start_(adapter::start_from(file)) {
    EngineAdapter adapter{.config = file.config(), .targets = file.targets(), .format = {}, .origin = {}};
    adapter.config.dropout = 0;
    adapters_ = weight_plan(adapter, config);  // over plain matrices: what is beneath comes from base_
    format_ = format_of(file.origin(), base);
    base_ = base_kind(format_);
    for (const adapter::AdaptedPart& part : file.targets().parts) adapted_.insert(part.parameter);
    for (const adapter::SavedPart& part : file.targets().saved) saved_[{part.parameter, part.part}] = &part;
  }

  bool changed(const Parameter& p) const {
    const auto saved = saved_.lower_bound({p.name, 0});
    return adapted_.contains(p.name) || quantised(p) || (saved != saved_.end() && saved->first.first == p.name);
  }
  std::int64_t matrices() const { return static_cast<std::int64_t>(file_.targets().parts.size()); }

  // Of one part, as its tensor lies.
  std::vector<std::byte> numbers(const Parameter& p, const Part& part, DType dtype, const io::Checkpoint& source) {
    const auto index = &part - p.parts.data();
    std::vector<float> before, after;
    if (const auto saved = saved_.find({p.name, index}); saved != saved_.end()) {
      after = as_floats(file_.saved(*saved->second));
    } else {
      before = quantised(p) ? trained_with(p, part, source) : part_numbers(source, p, part);
      after = adapted_.contains(p.name) ? with_adapter(p, part, source, before) : before;
    }
    const Shape shape = part_shape(p, part);
    std::vector<std::byte> written = in_dtype(after, dtype, shape);
    if (adapted_.contains(p.name)) sums_.add(before, after, as_floats(ConstView(written.data(), dtype, shape)));
    return as_tensor(part, std::move(written), dtype, shape);
  }

  // The same in MXFP4, whose matrices lie as ours do.
  PackedPart packed(const Parameter& p, const Part& part, const io::Checkpoint& source) {
    const std::vector<float> before = part_numbers(source, p, part);
    const std::vector<float> after = adapted_.contains(p.name) ? with_adapter(p, part, source, before) : before;
    const Shape shape{part.rows, p.shape[1]};
    PackedPart result;
    std::vector<float> written(after.size());
    Exec exec = Exec::runner(Device::cpu, 0);
    const ops::Quantised to = ops::make_quantised(
        ops::QuantFormat::mxfp4, shape[0], shape[1], [&](std::string_view name, DType dtype, Shape of) {
          std::vector<std::byte>& bytes = name == "codes" ? result.blocks : result.scales;
          bytes.resize(static_cast<std::size_t>(of.size()));
          return View(bytes.data(), dtype, of);
        });
    ops::quantise_rows(exec, to, 0, ConstView(after.data(), DType::f32, shape));
    ops::dequantise_rows(exec, View(written.data(), DType::f32, shape), to, 0);
    // Blocks and scales are asked for one after the other.
    if (adapted_.contains(p.name) && counted_.insert({p.name, part.row}).second) sums_.add(before, after, written);
    return result;
  }

  const Sums& sums() const { return sums_; }

 private:
  // Whether the numbers that were trained with are others than the file's. MXFP4 is what the file has.
  bool quantised(const Parameter& p) const {
    const auto format = format_.of(p);
    return format && *format != ops::QuantFormat::mxfp4;
  }

  // body(exec, weight, its parameter's part) over a weight of this kind: once planning, to know the memory, and once
  // for real.
  template <class Body>
  static void with_weight(const weights::WeightKind& kind, const Parameter& p, const Part& part, const Body& body) {
    const auto index = static_cast<std::size_t>(&part - p.parts.data());
    const auto once = [&](Exec& exec) {
      Parameter mine = p;
      mine.trainable = false;
      const auto weight = kind.make(exec, mine, {.compute = DType::f32, .training = false});
      body(exec, *weight, mine.parts[index]);
    };
    Exec plan = Exec::planner(Device::cpu);
    once(plan);
    Exec exec = Exec::runner(Device::cpu, plan.arena().peak(), plan.host().arena().peak());
    once(exec);
  }

  std::vector<float> trained_with(const Parameter& p, const Part& part, const io::Checkpoint& source) const {
    std::vector<float> rows(static_cast<std::size_t>(part.rows * p.shape[1]));
    with_weight(*base_(p), p, part, [&](Exec& exec, weights::Weight& weight, const Part& mine) {
      model::PartReader reader(source, p, part);
      weight.load(exec, mine, exec.planning() ? nullptr : &reader);
      weight.read_rows(exec, View(rows.data(), DType::f32, {part.rows, p.shape[1]}), part.row);
    });
    return rows;
  }

  std::vector<float> with_adapter(const Parameter& p, const Part& part, const io::Checkpoint& source,
                                  std::vector<float> rows) const {
    with_weight(adapters_->of(p), p, part, [&](Exec& exec, weights::Weight& weight, const Part& mine) {
      model::PartReader reader(source, p, part);
      weight.load(exec, mine, exec.planning() ? nullptr : &reader);
      weight.start(exec, &start_);
      weight.complete(exec, View(rows.data(), DType::f32, {part.rows, p.shape[1]}), part.row);
    });
    return rows;
  }

  const adapter::AdapterFile& file_;
  adapter::AdapterStart start_;
  std::shared_ptr<const weights::WeightPlan> adapters_;
  BaseFormat format_;
  adapter::BaseKind base_;
  std::set<std::string> adapted_;
  std::set<std::pair<std::string, std::int64_t>> counted_;
  std::map<std::pair<std::string, std::int64_t>, const adapter::SavedPart*> saved_;
  Sums sums_;
};

}  // namespace

MergeReport merge(const MergeOptions& options, Console& console) {
  const model::ModelConfig config = model::load_config(options.base);
  const adapter::AdapterFile file(options.adapter, config);
  file.check_base(io::Checkpoint(options.base));
  if (options.mxfp4 && !format_of({}, options.base).mxfp4_experts) {
    user_error("{}: has no experts in MXFP4 that could stay in it; give another dtype", options.base.string());
  }
  Merger merger(file, config, options.base);
  model::ModelParameters parameters(config);
  ReadPacked pack;
  if (options.mxfp4) {
    pack = [&](const Parameter& p, const Part& part, const io::Checkpoint& base) {
      stop_where_asked("merging");
      return merger.packed(p, part, base);
    };
  }
  std::uint64_t done = 0;
  const std::uint64_t total = io::Checkpoint(options.base).total_bytes();
  write_derived_folder(options.output, options.base, [&](const fs::path& folder) {
    return write_model(
        *parallel::single_process(), {.base = options.base, .folder = folder, .dtype = options.dtype}, config,
        parameters, [&](const Parameter& p) { return merger.changed(p); },
        [&](const Parameter& p, const Part& part, DType dtype, const io::Checkpoint& base, const PieceSink& sink) {
          stop_where_asked("merging");
          const std::vector<std::byte> numbers = merger.numbers(p, part, dtype, base);
          sink(numbers);
          done += model::PartReader(base, p, part).file_bytes();
          console.progress("merging", done, total);
        },
        pack);
  });
  const Sums& sums = merger.sums();
  if (sums.learned == 0) return {.matrices = merger.matrices()};
  return {
      .matrices = merger.matrices(), .kept = sums.kept / sums.learned, .noise = std::sqrt(sums.noise / sums.learned)};
}

}  // namespace inlay::train
