#include "osft/find_bases.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "core/cache.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "io/hash.h"
#include "io/paths.h"
#include "model/decoding.h"
#include "model/weights_io.h"
#include "osft/decompose_targets.h"
#include "parallel/activity.h"
#include "parallel/owner_layout.h"

namespace inlay::osft {

namespace fs = std::filesystem;

namespace {

constexpr const char* own_text = "sample";
// Of the layers, for adaptive ranks: kept with the directions, because the ranks and routes follow from it.
constexpr const char* importance_name = "layers.importance";

// Whether the model writes some of the text itself.
bool sampled(const CalibrationOptions& calibration) {
  return std::find(calibration.data.begin(), calibration.data.end(), own_text) != calibration.data.end();
}

// Tokens that go through a layer at once. Few enough that many processes find some to do, whatever their number:
// batches that depended on it would be rounded otherwise.
constexpr std::int64_t calibration_batch = 2048;

// Documents of full length that are yet to be written.
std::vector<Document> blank_documents(const CalibrationOptions& calibration, std::size_t sources) {
  const auto length = static_cast<std::size_t>(calibration.length);
  const Document blank{.input_ids = std::vector<std::int32_t>(length),
                       .labels = std::vector<std::int32_t>(length, ignore_label)};
  return std::vector<Document>(sources * static_cast<std::size_t>(calibration.samples), blank);
}

// The first documents of a file, no longer than the calibration asks for.
std::vector<Document> documents_of_file(const std::string& file, const SearchInputs& inputs) {
  const CalibrationOptions& calibration = inputs.osft.calibration;
  std::vector<Document> documents = inputs.read(file);
  if (documents.empty()) user_error("{}: no documents to calibrate on", file);
  documents.resize(std::min(documents.size(), static_cast<std::size_t>(calibration.samples)));
  for (Document& d : documents) {
    truncate(d, static_cast<std::size_t>(calibration.length));
    d.weights.clear();  // nothing is learned; but where a prefix ends shows in the labels
  }
  return documents;
}

// All of the text. What the model is to write comes first, blank.
std::vector<Document> documents_of(const SearchInputs& inputs) {
  const CalibrationOptions& calibration = inputs.osft.calibration;
  std::vector<Document> documents = blank_documents(calibration, sampled(calibration) ? 1 : 0);
  for (const std::string& source : calibration.data) {
    if (source == own_text) continue;
    std::vector<Document> more = documents_of_file(source, inputs);
    std::move(more.begin(), more.end(), std::back_inserter(documents));
  }
  return documents;
}

// 1 for tokens that no document holds: a lookup is a product with a single one, and theirs carries no energy.
BasisStore::Tensor unseen_tokens(const std::vector<Document>& documents, std::int64_t vocab) {
  std::vector<float> free(static_cast<std::size_t>(vocab), 1.0f);
  for (const Document& d : documents) {
    for (const std::int32_t id : d.input_ids) free[static_cast<std::size_t>(id)] = 0.0f;
  }
  const auto bytes = std::as_bytes(std::span(free));
  return {DType::f32, {vocab}, {bytes.begin(), bytes.end()}};
}

// Texts of one process, as others read them.
std::string to_bytes(const std::vector<std::vector<std::int32_t>>& texts) {
  std::string bytes;
  for (const std::vector<std::int32_t>& text : texts) {
    bytes.append(reinterpret_cast<const char*>(text.data()), text.size() * sizeof(std::int32_t));
  }
  return bytes;
}

// Progress, and where Ctrl-C is heard: the search takes minutes on a large model and leaves nothing half done.
void show(Console& console, std::string_view what, std::int64_t done, std::int64_t total) {
  stop_where_asked("finding directions");
  console.progress_count(what, done, total);
}

// A search in the making: one code path that plans and runs.
class Search {
 public:
  Search(const SearchInputs& inputs, const model::ModelConfig& config, Device device, DType compute,
         const StepShape& step)
      : inputs_(inputs),
        config_(config),
        device_(device),
        compute_(compute),
        step_(step),
        targets_(inputs.osft, config, inputs.frozen),
        layout_(nominal_layout(targets_, config, step)) {}

  const OsftLayout& layout() const { return layout_; }

  // As bases that were found have it; UserError where they cannot be this search's.
  OsftLayout layout_of(const BasisStore& bases) const {
    if (!adaptive()) return layout_;
    std::vector<double> importance(static_cast<std::size_t>(config_.layer_count()));
    const BasisStore::Tensor* found = bases.find(importance_name);
    if (found == nullptr || found->dtype != DType::f64 || found->bytes.size() != importance.size() * sizeof(double)) {
      user_error("{} is missing, or belongs to another model", importance_name);
    }
    std::memcpy(importance.data(), found->bytes.data(), found->bytes.size());
    return nominal_layout(targets_, config_, step_, importance);
  }
  void take_layout(const BasisStore& bases) { layout_ = layout_of(bases); }

  // Memory for the largest text that the options allow.
  std::size_t plan() {
    const CalibrationOptions& calibration = inputs_.osft.calibration;
    return plan(blank_documents(calibration, calibration.data.size()));
  }

  // Returns the memory it took on the device. Where ranks agree on errors (together), no exchange is made within: what
  // goes wrong on one of them between two exchanges ends the run on that one, and is never taken for what others ask.
  std::size_t run(BasisStore& store, Console& console) {
    std::vector<Document> documents;
    std::size_t bytes = 0;
    std::optional<Exec> exec;
    std::optional<io::Checkpoint> checkpoint;
    parallel::together(*inputs_.ranks, "what finding directions needs", [&] {
      if (needs_text()) documents = documents_of(inputs_);
      // Of the very documents: ragged ones need other scratch than those of one length.
      bytes = plan(documents);
      if (bytes > inputs_.device_budget) {
        user_error(
            "finding directions needs {} of {} memory, but only {} is free; lower osft.calibration.samples or length",
            format_bytes(bytes), name_of(device_), format_bytes(inputs_.device_budget));
      }
      exec.emplace(Exec::runner(device_, bytes));
      checkpoint.emplace(inputs_.base_model);
    });
    exec->set_messages(backend::messages_to(console));
    run(*exec, &*checkpoint, std::move(documents), store, &console);
    return bytes;
  }

 private:
  bool adaptive() const { return inputs_.osft.ranks == Ranks::adaptive; }
  bool needs_text() const { return targets_.on_activations() || adaptive(); }

  std::size_t plan(std::vector<Document> documents) {
    Exec exec = Exec::planner(device_);
    BasisStore nothing;
    run(exec, nullptr, std::move(documents), nothing, nullptr);
    return exec.arena().peak();
  }

  void run(Exec& exec, const io::Checkpoint* checkpoint, std::vector<Document> documents, BasisStore& store,
           Console* console) {
    if (needs_text()) {
      const std::size_t mark = exec.arena().mark();
      calibrate(exec, checkpoint, std::move(documents), store, console);
      exec.arena().release_to(mark);
    }
    if (targets_.on_activations()) return;
    const auto decompose = [&] {
      decompose_targets(
          exec, layout_, config_, checkpoint, store,
          [&](std::int64_t done, std::int64_t total) { show(*console, "decomposing weights", done, total); }, team());
    };
    exec.planning() ? decompose() : parallel::together(*inputs_.ranks, "decomposing weights", decompose);
  }

  // Targets are divided by the work of decomposing.
  SearchTeam team() const {
    std::vector<std::string> names;
    std::vector<double> costs;
    model::ModelParameters parameters(config_);
    parameters.for_each([&](const weights::Parameter& p) {
      if (layout_.find(p.name) == nullptr) return;
      const auto rows = static_cast<double>(p.rows()), columns = static_cast<double>(p.shape[1]);
      names.push_back(p.name);
      costs.push_back(targets_.on_activations() ? columns * columns * columns
                                                : rows * columns * std::min(rows, columns));
    });
    const parallel::OwnerLayout layout = parallel::assign_owners(costs, inputs_.ranks->size());
    SearchTeam team{.ranks = *inputs_.ranks, .owners = {}};
    for (std::size_t i = 0; i < names.size(); ++i) team.owners[names[i]] = layout.owners[i];
    return team;
  }

  void load(Exec& exec, model::Decoder& decoder, const io::Checkpoint* checkpoint, Console* console) {
    const auto work = [&] {
      model::load_weights(exec, decoder.parameters(), checkpoint, [&](std::uint64_t done, std::uint64_t total) {
        stop_where_asked("loading weights");
        console->progress("loading weights", done, total);
      });
    };
    exec.planning() ? work() : parallel::together(*inputs_.ranks, "loading weights", work);
  }

  void calibrate(Exec& exec, const io::Checkpoint* checkpoint, std::vector<Document> documents, BasisStore& store,
                 Console* console) {
    const CalibrationOptions& c = inputs_.osft.calibration;
    weights_.clear();
    const auto plan = std::make_shared<weights::WeightPlan>();
    plan->others = std::make_shared<weights::ObservedKind>(weights_);
    model::Decoder decoder(
        exec, config_,
        {.compute = compute_, .max_positions = c.length, .deterministic_attention = true, .weights = plan});
    load(exec, decoder, checkpoint, console);
    if (sampled(c)) sample_documents(exec, decoder, documents, console);
    Calibration::Text text{.tokens = {}, .experts = std::max<std::int64_t>(config_.experts.chosen, 1)};
    std::vector<PackedBatch> batches;  // of this process
    for (PackedBatch& batch : batches_in_order(documents, calibration_batch)) {
      const int reader = Calibration::Text::reader(text.count(), inputs_.ranks->size());
      text.tokens.push_back(batch.token_count());
      if (reader == inputs_.ranks->rank()) batches.push_back(std::move(batch));
    }
    if (adaptive()) {
      LayerImportance importance(config_.layer_count());
      decoder.observe(exec, batches, importance);
      if (!exec.planning()) {
        const std::vector<double> relative = importance.relative(*inputs_.ranks);
        const auto bytes = std::as_bytes(std::span(relative));
        store.put(importance_name,
                  {DType::f64, {static_cast<std::int64_t>(relative.size())}, {bytes.begin(), bytes.end()}});
        take_layout(store);
      }
    }
    if (!targets_.on_activations()) return;
    Calibration observer(
        layout_, std::move(text), weights_, store,
        [&](std::int64_t done, std::int64_t total) { show(*console, "finding directions", done, total); }, team());
    decoder.observe(exec, batches, observer);
    if (!exec.planning()) store.put("tokens.free", unseen_tokens(documents, config_.vocab));
  }

  // The base model writes the first documents itself, so that no old data is needed. Every process writes some, and
  // gets those of the others.
  void sample_documents(Exec& exec, model::Decoder& decoder, std::vector<Document>& documents, Console* console) {
    const CalibrationOptions& c = inputs_.osft.calibration;
    if (config_.bos < 0) {
      user_error(
          "{}: config.json has no bos_token_id, so the model cannot write text; give "
          "osft.calibration.data a text or JSONL file instead",
          inputs_.base_model);
    }
    parallel::Communicator& ranks = *inputs_.ranks;
    // Where they cannot be divided evenly, the first process, for which plans are made, has one more.
    const auto first = [&](int rank) { return (c.samples * rank + ranks.size() - 1) / ranks.size(); };
    const std::int64_t begin = first(ranks.rank()), end = first(ranks.rank() + 1);
    std::vector<std::vector<std::int32_t>> texts;
    if (begin < end) {
      texts = model::sample(exec, decoder,
                            {.sequences = end - begin,
                             .length = c.length,
                             .start_token = static_cast<std::int32_t>(config_.bos),
                             .temperature = static_cast<float>(c.temperature),
                             .seed = inputs_.seed,
                             .first_sequence = begin},
                            [&](std::int64_t done, std::int64_t total) {
                              if (console == nullptr) return;
                              show(*console, "writing calibration text, tokens", done, total);
                            });
    }
    if (exec.planning()) return;
    std::string ids;
    for (const std::string& some : ranks.exchange(to_bytes(texts), "calibration text that the model wrote"))
      ids += some;
    INLAY_ASSERT(ids.size() == static_cast<std::size_t>(c.samples * c.length) * sizeof(std::int32_t),
                 "{} bytes of calibration text", ids.size());
    std::vector<std::int32_t> text(static_cast<std::size_t>(c.length));
    for (std::size_t i = 0; i < static_cast<std::size_t>(c.samples); ++i) {
      const std::size_t bytes = text.size() * sizeof(std::int32_t);
      std::memcpy(text.data(), ids.data() + i * bytes, bytes);
      documents[i] = {.input_ids = text, .labels = text};
      documents[i].labels.front() = ignore_label;
    }
  }

  const SearchInputs& inputs_;
  const model::ModelConfig& config_;
  Device device_;
  DType compute_;
  StepShape step_;
  OsftTargets targets_;
  OsftLayout layout_;
  Calibration::Weights weights_;  // of the decoder at work
};

// Where the cache is, or an empty path: nowhere.
fs::path cache_of(const OsftOptions& osft) {
  if (osft.cache == "off") return {};
  return osft.cache == "auto" ? cache_folder() : fs::path(osft.cache);
}

// Everything that decides the outcome.
std::uint64_t cache_key(const SearchInputs& inputs, const model::AttentionText& attention, const OsftLayout& layout,
                        Device device, DType compute, const StepShape& step) {
  constexpr int version = 5;  // of the search and of the file
  io::Hasher hasher;
  const auto add = [&](const std::string& text) {
    hasher.update(std::as_bytes(std::span(text)));
    hasher.update(std::as_bytes(std::span("|")));
  };
  const OsftOptions& o = inputs.osft;
  add(fmt::format("{} {} {} {} {}", version, name_of(o.basis), name_of(device), name_of(compute),
                  o.ranks == Ranks::adaptive ? "adaptive" : "uniform"));
  // The cheapest route of ranks that are not known yet depends on the step.
  if (o.ranks == Ranks::adaptive) {
    add(fmt::format("{} {} {} {}", o.adaptive_floor, step.tokens, step.micro_batches, step.mlp_tile));
  }
  for (const auto& [name, ranks] : layout.targets) {
    if (const auto* input = std::get_if<weights::InputLayout>(&ranks)) {
      add(fmt::format("{} {} {}", name, input->free, input->frozen));
      continue;
    }
    const auto& factors = std::get<weights::FactorLayout>(ranks);
    for (const auto& part : factors.parts) add(fmt::format("{} {} {}", name, part.free, part.frozen));
    add(factors.route == weights::Route::factored ? "factored" : "dense");
  }
  if (o.basis == BasisKind::activations || o.ranks == Ranks::adaptive) {
    add(fmt::format("{} {} {}", o.calibration.samples, o.calibration.length, o.calibration.temperature));
    const auto add_file = [&](const fs::path& file) {
      add(io::exists(file) ? fmt::format("{:016x}", io::content_hash(io::MappedFile(file).bytes())) : "");
    };
    for (const std::string& source : o.calibration.data) {
      if (source == own_text) {
        add(fmt::format("{} {}", source, inputs.seed));
      } else {
        add_file(source);
      }
    }
    // How the model computes, and how it reads texts.
    add_file(fs::path(inputs.base_model) / "config.json");
    add(inputs.reading);
    add(fmt::format("{} {}", attention.mask, attention.score));
    for (const float bias : attention.head_bias) add(fmt::format("{}", bias));
  }
  add(fmt::format("{:016x}", io::Checkpoint(inputs.base_model).content_hash()));
  return hasher.digest();
}

// What an earlier run left, or nothing. A damaged file is as good as none.
std::optional<BasisStore> cached(const fs::path& file, const Search& search, Console& console) {
  try {
    if (!io::exists(file)) return std::nullopt;
    BasisStore bases = BasisStore::load(file);
    check_bases(search.layout_of(bases), bases);
    console.line(fmt::format("directions: {} from {}", format_bytes(bases.bytes()), file.string()));
    return bases;
  } catch (const UserError& error) {
    console.line(fmt::format("directions are searched for again, as those in {} cannot be used: {}", file.string(),
                             error.what()));
    return std::nullopt;
  }
}

}  // namespace

std::size_t plan_bases(const SearchInputs& inputs, const model::ModelConfig& config, Device device, DType compute,
                       const StepShape& step) {
  return Search(inputs, config, device, compute, step).plan();
}

FoundBases find_bases(const SearchInputs& inputs, const model::ModelConfig& config, Device device, DType compute,
                      const StepShape& step, Console& console) {
  parallel::Communicator& ranks = *inputs.ranks;
  std::optional<Search> made;
  parallel::together(ranks, "which directions to find", [&] { made.emplace(inputs, config, device, compute, step); });
  Search& search = *made;
  FoundBases found;
  const fs::path folder = cache_of(inputs.osft);
  fs::path file;
  bool known = false;
  // The leader keeps the cache: others may not see its folder.
  if (ranks.leads() && !folder.empty()) {
    file = folder / fmt::format("osft-{:016x}.safetensors",
                                cache_key(inputs, config.attention, search.layout(), device, compute, step));
    if (auto bases = cached(file, search, console)) {
      found.bases = *std::move(bases);
      known = true;
    }
  }
  if (ranks.any(known, "directions in the cache")) {
    found.bases.share(ranks);
    search.take_layout(found.bases);
    found.layout = found_layout(search.layout(), found.bases);
    return found;
  }
  const auto began = std::chrono::steady_clock::now();
  {
    const parallel::LongWork patience;  // layers take their time, and not the same on all ranks
    found.device_peak = search.run(found.bases, console);
  }
  found.bases.share(ranks);
  found.layout = found_layout(search.layout(), found.bases);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  console.line(fmt::format("directions: {} for {} targets found in {:.1f} s", format_bytes(found.bases.bytes()),
                           found.layout.targets.size(), seconds));
  if (!file.empty()) {
    try {
      io::create_folders(folder);
      io::remove_stale_temporaries(folder);
      found.bases.save(file);
    } catch (const UserError& error) {  // a full disk must not stop the run
      console.line(fmt::format("directions are not cached: {}", error.what()));
    }
  }
  return found;
}

}  // namespace inlay::osft
