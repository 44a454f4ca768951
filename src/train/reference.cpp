#include "train/reference.h"

#include <cmath>
#include <cstring>

#include "core/interrupt.h"
#include "core/text.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/paths.h"
#include "parallel/processes.h"
#include "train/evaluation.h"

namespace inlay::train {

namespace {

namespace fs = std::filesystem;
using LogProbs = std::vector<std::vector<float>>;  // of each document's sequences

// A file of floats, as many for each document as it has sequences; behind them their checksum.
std::optional<LogProbs> opened(const fs::path& path, const data::Documents& documents) {
  if (path.empty() || !io::is_file(path)) return std::nullopt;
  std::string bytes;
  try {
    bytes = io::read_file(path, std::size_t{1} << 40);
  } catch (const UserError&) {
    return std::nullopt;
  }
  std::uint64_t digest = 0;
  if (bytes.size() < sizeof digest) return std::nullopt;
  const std::size_t body = bytes.size() - sizeof digest;
  std::memcpy(&digest, bytes.data() + body, sizeof digest);
  if (io::content_hash(std::as_bytes(std::span(bytes.data(), body))) != digest) return std::nullopt;
  LogProbs result(static_cast<std::size_t>(documents.size()));
  std::size_t at = 0;
  for (std::vector<float>& values : result) {
    std::uint32_t count = 0;
    if (at + sizeof count > body) return std::nullopt;
    std::memcpy(&count, bytes.data() + at, sizeof count);
    at += sizeof count;
    if (count > (body - at) / sizeof(float)) return std::nullopt;
    values.resize(count);
    std::memcpy(values.data(), bytes.data() + at, count * sizeof(float));
    at += count * sizeof(float);
  }
  return at == body ? std::optional(std::move(result)) : std::nullopt;
}

std::string packed(const LogProbs& log_probs) {
  std::string bytes;
  const auto append = [&](const void* from, std::size_t size) { bytes.append(static_cast<const char*>(from), size); };
  for (const std::vector<float>& values : log_probs) {
    const auto count = static_cast<std::uint32_t>(values.size());
    append(&count, sizeof count);
    append(values.data(), values.size() * sizeof(float));
  }
  const std::uint64_t digest = io::content_hash(std::as_bytes(std::span(bytes.data(), bytes.size())));
  append(&digest, sizeof digest);
  return bytes;
}

// What a new adapter makes of the base model before it has learned anything: matrices that train as a whole are not in
// the format of the others.
std::string what_begins(const EngineAdapter& adapter) {
  std::string text = adapter.origin.base_format;
  if (!adapter.format.matrices) return text;
  for (const adapter::SavedPart& part : adapter.targets.saved) text += " " + part.tensor;
  return text;
}

// Its name says everything that the numbers depend on. An adapter to go on from is not in any name: nothing is kept.
fs::path kept_path(const options::TrainOptions& options, const RunEngine& run, const data::Documents& documents) {
  const fs::path folder = prepared_folder(options.dataset_prepared_path);
  if (folder.empty() || !options.adapter.model_dir.empty()) return {};
  const EngineOptions& engine = run.engine->options();
  const fs::path base = options.base_model;
  // Of all weights: where few of them were trained, samples may be the same.
  std::string key = fmt::format(
      "{} {:016x} {:016x} {} {} {}", documents.fingerprint(), io::Checkpoint(base).content_hash(),
      io::content_hash(io::MappedFile(base / "config.json").bytes()),  // how it computes
      name_of(engine.device), arithmetic_text(engine), run.adapter == nullptr ? "" : what_begins(*run.adapter));
  for (const char* option :
       {"attention.mask", "attention.score", "attention.head_bias", "fp8.skip_first", "fp8.skip_last", "fp8.layers"}) {
    key += " " + options::value_text(options, option);
  }
  return folder / fmt::format("reference-{:016x}.bin", io::content_hash(std::as_bytes(std::span(key))));
}

LogProbs computed(Engine& engine, const data::Documents& documents, const EvaluationTeam& team, Console& console) {
  constexpr std::int64_t block = 4096;  // documents in memory at once
  LogProbs result;
  for (std::int64_t first = 0; first < documents.size(); first += block) {
    console.progress("log-probabilities of the reference", static_cast<std::uint64_t>(first),
                     static_cast<std::uint64_t>(documents.size()));
    std::vector<Document> some;
    for (std::int64_t i = first; i < std::min(documents.size(), first + block); ++i) some.push_back(documents.read(i));
    for (std::vector<float>& values : sequence_log_probs(engine, some, team)) result.push_back(std::move(values));
  }
  return result;
}

}  // namespace

void mask_surprising(const options::TrainOptions& options, RunEngine& run, RunDocuments& documents, Console& console) {
  if (options.loss.token_weight != options::TokenWeight::stm) return;
  Engine& engine = *run.engine;
  const EvaluationTeam team{
      .ranks = engine.options().mesh.all, .cost = deal_cost(run.plan), .idle = [&] { engine.idle_evaluation(); }};
  // By pieces as they are trained on: what was cut off is not seen.
  std::vector<Document> pieces = data::read_pieces(documents.sampler(), documents.train(), documents.sampler().kept());
  const std::vector<std::vector<float>> losses = token_losses(engine, pieces, team);
  const double most = std::log(options.loss.stm_perplexity);
  std::int64_t labels = 0, masked = 0;
  for (std::size_t d = 0; d < pieces.size(); ++d) {
    for (std::size_t i = 0; i < pieces[d].labels.size(); ++i) {
      std::int32_t& label = pieces[d].labels[i];
      if (!is_label(label)) continue;
      ++labels;
      if (static_cast<double>(losses[d][i]) <= most) continue;
      label = ignore_label;
      ++masked;
    }
  }
  if (labels == masked) {
    user_error("loss.stm_perplexity: {}: the base model finds every label more surprising than that; raise it",
               options.loss.stm_perplexity);
  }
  console.line(fmt::format("objective: {} of {} labels are masked, being more surprising to the base model than {}",
                           format_count(masked), format_count(labels), options.loss.stm_perplexity));
  documents.replace(pieces, options);
}

void add_reference(const options::TrainOptions& options, RunEngine& run, RunDocuments& documents, Console& console,
                   const std::shared_ptr<parallel::Communicator>& ranks) {
  if (!options.preference.needs_reference()) return;
  Engine& engine = *run.engine;
  const EvaluationTeam team{
      .ranks = engine.options().mesh.all, .cost = deal_cost(run.plan), .idle = [&] { engine.idle_evaluation(); }};
  std::string kept;
  by_leader(*ranks, "the name of the reference's log-probabilities",
            [&] { kept = kept_path(options, run, documents.train()).string(); });
  const fs::path path = ranks->from_leader(kept, "where the reference's log-probabilities are kept");
  std::optional<LogProbs> train;
  together(*ranks, "reading the reference's log-probabilities", [&] { train = opened(path, documents.train()); });
  if (ranks->any(!train, "whether the reference is known")) {
    train = computed(engine, documents.train(), team, console);
    console.line(
        fmt::format("reference: log-probabilities of {} documents computed", format_count(documents.train().size())));
    by_leader(*ranks, "the reference's log-probabilities", [&] {
      if (path.empty()) return;
      try {
        io::write_file_atomic(path, packed(*train));
      } catch (const UserError& error) {
        console.line(fmt::format("reference: {}; it is computed again next time", error.what()));
      }
    });
  } else {
    console.line(fmt::format("reference: log-probabilities from {}", path.string()));
  }
  documents.set_reference(*std::move(train), sequence_log_probs(engine, documents.test(), team));
}

}  // namespace inlay::train
