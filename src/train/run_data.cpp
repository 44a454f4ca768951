#include "train/run_data.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "core/cache.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "data/text_documents.h"
#include "io/hash.h"
#include "io/paths.h"

namespace inlay::train {

namespace {

// Of Yang et al. 2024.
constexpr const char* published_template =
    "Below are an instruction that describes a task along with a reference answer. Using the reference answer as a "
    "guide, write your own response.\n\n### Instruction:\n{instruction}\n\n### Reference Answer:\n{response}\n\n### "
    "Response:";

// What the options say about all datasets, where the dataset itself says nothing.
data::DatasetOptions completed(data::DatasetOptions dataset, const options::TrainOptions& options) {
  data::FormatOptions& format = dataset.format;
  if (format.chat_template == "tokenizer_default") format.chat_template = options.chat_template;
  if (format.eot_tokens.empty()) format.eot_tokens = options.eot_tokens;
  format.train_on_inputs = format.train_on_inputs || options.train_on_inputs;
  format.reads_predictions = options.distillation.enabled && options.distillation.teacher.empty();
  if (options.preference.enabled()) {
    format.most_tokens = options.sequence_len;
    format.longer = options.excess_length_strategy == data::Oversized::raise  ? data::Longer::raise
                    : options.excess_length_strategy == data::Oversized::drop ? data::Longer::leave_out
                                                                              : data::Longer::cut;
    format.learns_prompts = options.preference.rl == options::Rl::orpo;
    format.learns_chosen = format.learns_prompts || options.preference.rpo_alpha > 0;
  }
  return dataset;
}

void describe_rows(const std::string& file, const data::RowCounts& counts, Console& console) {
  if (counts.skipped > 0) {
    console.line(fmt::format("data: {}: {} of {} rows are bad and were skipped", file, format_count(counts.skipped),
                             format_count(counts.rows)));
  }
  if (counts.unlabelled > 0) {
    console.line(fmt::format("data: {}: {} of {} rows hold nothing to learn and were left out", file,
                             format_count(counts.unlabelled), format_count(counts.rows)));
  }
}

// What a corpus consists of, by its first document.
enum class RowKind { texts, pairs, judged };
RowKind kind_of(const data::Corpus& corpus) {
  const std::int32_t first = corpus.read_labels(0, 0, 1).front();
  if (!marks_sequence(first)) return RowKind::texts;
  return marked_role(first) == SequenceRole::chosen ? RowKind::pairs : RowKind::judged;
}
constexpr const char* text_of(RowKind kind) {
  return kind == RowKind::pairs ? "pairs of answers, one chosen and one rejected" : "judged answers";
}

// Preferences are learned from rows that have them, and nothing else is.
void check_kind(const data::Corpus& corpus, const std::string& file, const options::TrainOptions& options) {
  const RowKind kind = kind_of(corpus);
  const std::string rl = options::value_text(options, "rl");
  if (!options.preference.enabled()) {
    if (kind != RowKind::texts) {
      user_error("{}: its rows are {}; set rl: {} to learn by preference (docs/objectives.md){}", file, text_of(kind),
                 kind == RowKind::pairs ? "dpo" : "kto",
                 kind == RowKind::pairs
                     ? ", or learn the chosen ones alone: type: chat_template with field_messages: chosen, or type: "
                       "prompt_completion with field_output: chosen"
                     : "");
    }
  } else if (options.preference.rl == options::Rl::kto) {
    if (kind != RowKind::judged) user_error("{}: rl: kto learns from rows with prompt, completion and label", file);
  } else if (kind != RowKind::pairs) {
    user_error("{}: rl: {} learns from rows with prompt, chosen and rejected", file, rl);
  }
}

// Where there is no configuration, nothing can be said about preferences.
void check_texts(const data::Corpus& corpus, const std::string& file, const options::TrainOptions&) {
  const RowKind kind = kind_of(corpus);
  if (kind == RowKind::texts) return;
  user_error(
      "{}: its rows are {}, but this measures texts: give rows of prompt and completion, such as the {} answers alone; "
      "how a model tells answers apart is measured by a run with rl on its test_datasets (docs/objectives.md)",
      file, text_of(kind), kind == RowKind::pairs ? "chosen" : "good");
}

// To each answer its prompt with the answer of the document before it, from which KTO estimates how far the model has
// gone. That is the same one in every epoch, so that the reference is computed once.
std::shared_ptr<const data::Corpus> with_mismatched(const data::Corpus& corpus, std::int64_t most_tokens) {
  auto builder = data::Corpus::Builder::in_memory("judged answers");
  const std::int64_t count = corpus.size();
  if (count < 2) user_error("rl: kto compares answers with each other: it needs at least two rows");
  for (std::int64_t i = 0; i < count; ++i) {
    Document document = corpus.read(i);
    const Document before = corpus.read((i + count - 1) % count);
    const auto answer_of = [](const Document& d) {
      return std::ranges::find_if(d.labels, is_label) - d.labels.begin();
    };
    const std::ptrdiff_t prompt = answer_of(document), theirs = answer_of(before);
    Document other{.input_ids = {document.input_ids.begin(), document.input_ids.begin() + prompt},
                   .labels = {document.labels.begin(), document.labels.begin() + prompt}};
    other.input_ids.insert(other.input_ids.end(), before.input_ids.begin() + theirs, before.input_ids.end());
    other.labels.insert(other.labels.end(), before.labels.begin() + theirs, before.labels.end());
    truncate(other, static_cast<std::size_t>(most_tokens));
    other.labels.front() = sequence_mark(SequenceRole::mismatched);
    document.input_ids.insert(document.input_ids.end(), other.input_ids.begin(), other.input_ids.end());
    document.labels.insert(document.labels.end(), other.labels.begin(), other.labels.end());
    builder.add(document);
  }
  return std::make_shared<const data::Corpus>(std::move(builder).finish(corpus.counts()));
}

}  // namespace

std::filesystem::path prepared_folder(const std::string& option) {
  if (option == "off") return {};
  const std::filesystem::path cache = cache_folder();
  if (option == "auto") return cache.empty() ? cache : cache / "data";
  return option;
}

namespace {

using CheckCorpus = void (*)(const data::Corpus&, const std::string& file, const options::TrainOptions&);

data::Documents read_checked(const std::vector<data::DatasetOptions>& datasets, const options::TrainOptions& options,
                             std::int64_t vocab, Console& console, CheckCorpus check) {
  data::Documents documents;
  io::remove_stale_temporaries(prepared_folder(options.dataset_prepared_path));
  for (const data::DatasetOptions& dataset : datasets) {
    data::ReadContext context;
    context.model = options.base_model;
    context.vocab = vocab;
    context.bad_row = options.on_bad_row;
    context.prepared = prepared_folder(options.dataset_prepared_path);
    context.progress = [&](std::uint64_t done, std::uint64_t total) {
      stop_where_asked("reading " + dataset.path);
      console.progress("reading " + dataset.path, done, total);
    };
    context.waiting = [&] { stop_where_asked("waiting for " + dataset.path); };
    context.notice = [&](const std::string& message) { console.line("data: " + message); };
    const auto corpus = data::read_dataset(completed(dataset, options), context);
    describe_rows(dataset.path, corpus->counts(), console);
    check(*corpus, dataset.path, options);
    const bool judged = options.preference.rl == options::Rl::kto;
    documents.add(judged ? with_mismatched(*corpus, options.sequence_len) : corpus, dataset.weight,
                  static_cast<std::uint64_t>(options.seed));
  }
  return documents;
}

}  // namespace

data::Documents read_datasets(const std::vector<data::DatasetOptions>& datasets, const options::TrainOptions& options,
                              std::int64_t vocab, Console& console) {
  return read_checked(datasets, options, vocab, console, check_kind);
}

RunData read_run_data(const options::TrainOptions& options, std::int64_t vocab, Console& console, bool shown) {
  std::vector<data::DatasetOptions> datasets = options.datasets;
  for (data::DatasetOptions& dataset : datasets) {
    if (shown) dataset.format.shown = options.sdft.shown.empty() ? published_template : options.sdft.shown;
  }
  RunData data{.train = read_datasets(datasets, options, vocab, console),
               .test = read_datasets(options.test_datasets, options, vocab, console)};
  if (options.val_set_size > 0) {
    data.test = data.train.take_out(options.val_set_size, static_cast<std::uint64_t>(options.seed));
  }
  return data;
}

std::vector<Document> read_documents(const std::string& file, const options::TrainOptions& options, std::int64_t vocab,
                                     Console& console) {
  options::TrainOptions here = options;
  here.dataset_prepared_path = "off";
  return read_datasets({{.path = file, .format = {}}}, here, vocab, console).read_all();
}

std::vector<Document> read_documents(const data::DatasetOptions& dataset, const std::string& model, std::int64_t vocab,
                                     Console& console) {
  options::TrainOptions options;
  options.base_model = model;
  options.dataset_prepared_path = "off";
  return read_checked({dataset}, options, vocab, console, check_texts).read_all();
}

// A document of preferences has two sequences, each of which sequence_len bounds already.
data::BatchOptions batch_options(const options::TrainOptions& options) {
  return {.sequence_len = options.sequence_len * (options.preference.enabled() ? 2 : 1),
          .micro_batch_size = options.micro_batch_size,
          .sample_packing = options.sample_packing,
          .seed = static_cast<std::uint64_t>(options.seed),
          .shuffle = options.shuffle,
          .oversized = options.excess_length_strategy};
}

BatchBounds bounds_of(const data::BatchSampler& sampler) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t epoch_batch = 0; epoch_batch < sampler.batches_per_epoch(0); ++epoch_batch) {
    for (const std::int64_t document : sampler.documents_of(0, epoch_batch))
      lengths.push_back(sampler.length_of(document));
  }
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  const std::int64_t rows = sampler.options().micro_batch_size;
  BatchBounds bounds{.tokens = 0, .document = lengths.front()};
  if (sampler.options().sample_packing) {
    bounds.tokens = std::min(sampler.max_tokens(), sampler.tokens_per_epoch());
  } else {
    const auto count = std::min<std::size_t>(static_cast<std::size_t>(rows), lengths.size());
    bounds.tokens =
        std::accumulate(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(count), std::int64_t{0});
  }
  return bounds;
}

BatchBounds bounds_of(const options::TrainOptions& options) {
  const std::int64_t tokens = options.micro_batch_size * batch_options(options).sequence_len;
  return {.tokens = tokens, .document = options.sequence_len};
}

namespace {

// Plain text is read with the base model's own tokenizer.
std::vector<Document> read_plain_text(const std::string& file, const options::TrainOptions& options,
                                      std::int64_t vocab) {
  const osft::CalibrationOptions& calibration = options.osft.calibration;
  std::vector<Document> documents =
      data::read_text(file, data::Tokenizer::load(options.base_model), calibration.length, calibration.samples);
  for (const Document& d : documents) {
    const std::int32_t largest = *std::max_element(d.input_ids.begin(), d.input_ids.end());
    if (largest >= vocab) {
      user_error("{}: its tokenizer.json has token {}, but the model has only {} tokens", options.base_model, largest,
                 vocab);
    }
  }
  return documents;
}

}  // namespace

std::vector<Document> read_calibration_text(const std::string& file, const options::TrainOptions& options,
                                            std::int64_t vocab, Console& console) {
  if (std::filesystem::path(file).extension() == ".txt") return read_plain_text(file, options, vocab);
  return read_documents(file, options, vocab, console);
}

std::string reading_fingerprint(const options::TrainOptions& options) {
  const std::filesystem::path base = options.base_model;
  std::string text = fmt::format("{} {} {}", options.train_on_inputs, options.on_bad_row == data::BadRow::skip,
                                 io::is_file(options.chat_template) ? "" : options.chat_template);
  for (const std::filesystem::path& file :
       {base / "tokenizer.json", base / "tokenizer_config.json", base / "chat_template.jinja",
        std::filesystem::path(options.chat_template)}) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) continue;
    text += fmt::format(" {} {:016x}", file.filename().string(), io::content_hash(io::MappedFile(file).bytes()));
  }
  return text;
}

}  // namespace inlay::train
