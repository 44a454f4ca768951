#include "data/dataset.h"

#include <algorithm>

#include "core/error.h"
#include "core/ordered_work.h"
#include "core/text.h"
#include "data/byte_source.h"
#include "data/dataset_files.h"
#include "data/formats/kept.h"
#include "data/formats/labels.h"
#include "data/formats/roles.h"
#include "data/prepared.h"
#include "data/row_blocks.h"
#include "data/token_rows.h"
#include "io/paths.h"

namespace inlay::data {
namespace {

namespace fs = std::filesystem;

// Of rows that are under way. What they become takes a few times that.
constexpr std::size_t most_bytes = std::size_t{64} << 20;

// What is made of one row on some thread: a document, or why there is none.
struct Outcome {
  Document document;
  std::string error;
  std::vector<Doubt> doubts;
};

// What is right where all rows have it, in the order of the rows.
class Doubts {
 public:
  // Why a row cannot be used that has what those before it have not; empty: it can. Where it lacks what they have, they
  // were wrong, and it is too late to leave them out.
  std::string take(std::vector<Doubt> row) {
    if (!shared_) {
      shared_ = std::move(row);
      return {};
    }
    const auto has = [](const std::vector<Doubt>& doubts, const Doubt& wanted) {
      return std::ranges::find(doubts, wanted.what, &Doubt::what) != doubts.end();
    };
    for (const Doubt& doubt : row) {
      if (!has(*shared_, doubt)) return doubt.error;
    }
    for (const Doubt& doubt : *shared_) {
      if (!has(row, doubt)) user_error("{}", doubt.error);
    }
    return {};
  }

 private:
  std::optional<std::vector<Doubt>> shared_;  // by all rows so far
};

class Reading {
 public:
  Reading(const DatasetOptions& dataset, const DatasetFiles& files, const ReadContext& context, Corpus::Builder builder)
      : dataset_(dataset), files_(files), context_(context), builder_(std::move(builder)) {
    for (const fs::path& file : files.files) total_ += io::file_bytes(file);
  }

  // What a tokenizer made already; there are no texts, and documents without labels stay.
  Corpus tokens() {
    keep_unlabelled_ = true;
    // Token columns have no room for predictions: rows with these are read as any others.
    return rows("", !dataset_.format.reads_predictions, [&](const RowBlocks& blocks, RawRow& raw, std::vector<Doubt>&) {
      if (auto* arrays = std::get_if<std::unique_ptr<TokenArrays>>(&raw.content)) {
        return token_document(std::move(**arrays), blocks.where(raw), context_.vocab);
      }
      TokenArrays arrays;
      const auto* line = std::get_if<std::string_view>(&raw.content);
      if (!dataset_.format.reads_predictions && line != nullptr && read_token_line(*line, arrays)) {
        return token_document(std::move(arrays), blocks.where(raw), context_.vocab);
      }
      const io::Value value = blocks.value(raw);
      const Row row(value, blocks.where(raw));
      return with_predictions(token_document(token_arrays(row), row.where(), context_.vocab), row);
    });
  }

  Corpus texts(const FormatOptions& options) {
    const Tokenizer tokenizer = Tokenizer::load(context_.model);
    check_vocabulary_ = tokenizer.vocab_size() > context_.vocab;
    const std::unique_ptr<RowFormat> format = make_format(options, tokenizer, context_.model);
    read_as_ = options;
    if (const std::string remark = format->remark(); context_.notice && !remark.empty()) {
      context_.notice(fmt::format("{}: {}", dataset_.path, remark));
    }
    return rows(options.field, false, [&](const RowBlocks& blocks, RawRow& raw, std::vector<Doubt>& doubts) {
      const io::Value value = blocks.value(raw);
      const Row row(value, blocks.where(raw), &doubts);
      row.expect_object();
      Document document = format->make(row);
      if (document.input_ids.empty()) row.fail("there is no text in it");
      if (!options.shown.empty()) append_shown(document, format->make_shown(row));
      return with_predictions(std::move(document), row);
    });
  }

 private:
  static void append_shown(Document& document, const std::vector<std::int32_t>& prompt) {
    if (prompt.empty()) return;
    const std::size_t begin = document.labels.size();
    append(document, prompt, false);
    document.labels[begin] = sequence_mark(SequenceRole::shown);
    if (!document.weights.empty()) document.weights.resize(document.labels.size(), 0.0f);
  }

  Document with_predictions(Document document, const Row& row) const {
    const FormatOptions& format = dataset_.format;
    if (!format.reads_predictions) return document;
    document.kept = read_kept(row, format.logprobs_field, document.input_ids.size(), context_.vocab);
    return document;
  }

  using Make = std::function<Document(const RowBlocks& blocks, RawRow& row, std::vector<Doubt>& doubts)>;

  // Rows are read here, become documents on other threads, and are written here in their order: what is under way is
  // bounded, whatever the size of the file, and the result does not depend on the number of threads.
  Corpus rows(const std::string& text_field, bool tokens, const Make& make) {
    const std::unique_ptr<RowBlocks> blocks = open_rows(files_, text_field, tokens);
    struct Job {
      RowBlock block;
      std::vector<Outcome> outcomes;
    };
    OrderedWork<Job> work(context_.threads, [&](Job& job, const std::atomic<bool>& stopped) {
      job.outcomes.reserve(job.block.rows.size());
      for (RawRow& row : job.block.rows) {
        if (stopped) return;
        job.outcomes.push_back(outcome_of(make, *blocks, row));
      }
    });
    std::uint64_t done = 0;
    for (bool more = true;;) {
      while (more && (work.empty() || work.bytes() < most_bytes)) {
        auto block = blocks->next();
        more = block.has_value();
        if (!more) break;
        const std::size_t bytes = block->bytes;
        work.give({*std::move(block), {}}, bytes);
      }
      if (work.empty()) break;
      while (!work.wait(std::chrono::milliseconds(100))) progress(done);
      Job job = work.take();
      for (Outcome& outcome : job.outcomes) take(std::move(outcome));
      done = job.block.end;
      progress(done);
    }
    if (builder_.size() == 0) nothing_left();
    return std::move(builder_).finish(counts_);
  }

  Outcome outcome_of(const Make& make, const RowBlocks& blocks, RawRow& row) const {
    Outcome outcome;
    try {
      outcome.document = make(blocks, row, outcome.doubts);
    } catch (const UserError& error) {
      outcome.error = error.what();
    }
    if (outcome.error.empty() && check_vocabulary_) check(outcome.document, blocks.where(row));
    return outcome;
  }

  // Never a bad row: with the wrong tokenizer all of them would be.
  void check(const Document& document, const std::string& where) const {
    const std::int32_t largest = *std::ranges::max_element(document.input_ids);
    if (largest < context_.vocab) return;
    user_error(
        "{}: the tokenizer of {} makes token {} of it, but the model's vocabulary ends at {}: this tokenizer.json "
        "belongs to another model, or tokens were added to it and not to the model",
        where, context_.model.string(), largest, context_.vocab - 1);
  }

  void take(Outcome outcome) {
    ++counts_.rows;
    if (outcome.error.empty()) outcome.error = doubts_.take(std::move(outcome.doubts));
    if (!outcome.error.empty()) return skip(outcome.error);
    if (!keep_unlabelled_ && !has_labels(outcome.document)) {
      ++counts_.unlabelled;
      return;
    }
    builder_.add(outcome.document);
  }

  void skip(const std::string& error) {
    if (context_.bad_row == BadRow::raise) user_error("{}", error);
    if (counts_.skipped++ == 0 && context_.notice) context_.notice("skipped: " + error);
    if (first_error_.empty()) first_error_ = error;
  }

  [[noreturn]] void nothing_left() const {
    if (counts_.rows == 0) user_error("{}: holds no rows", dataset_.path);
    if (counts_.skipped > 0) {
      user_error("{}: none of its {} can be used; the first: {}", dataset_.path, counted(counts_.rows, "row"),
                 first_error_);
    }
    if (dataset_.format.of_preferences()) {
      user_error(
          "{}: there is nothing to learn in its {}: answers, with their prompts, are longer than sequence_len, or the "
          "two of a pair are the same",
          dataset_.path, counted(counts_.rows, "row"));
    }
    user_error(
        "{}: there is nothing to learn in its {}: no text, or none of a role that is learned; roles_to_train, "
        "train_on_inputs and the rows' own marks decide that{}",
        dataset_.path, counted(counts_.rows, "row"), speakers());
  }

  // For a message: who speaks in the first row.
  std::string speakers() const {
    if (!read_as_) return {};
    const std::unique_ptr<RowBlocks> blocks = open_rows(files_, read_as_->field);
    auto block = blocks->next();
    if (!block) return {};
    const io::Value value = blocks->value(block->rows.front());
    const std::string found = Roles(*read_as_).described(Row(value, blocks->where(block->rows.front())), *read_as_);
    return found.empty() ? "" : "; the first has " + found;
  }

  void progress(std::uint64_t done) const {
    if (context_.progress) context_.progress(done, total_);
  }

  const DatasetOptions& dataset_;
  const DatasetFiles& files_;
  const ReadContext& context_;
  std::uint64_t total_ = 0;
  bool check_vocabulary_ = false, keep_unlabelled_ = false;
  Corpus::Builder builder_;
  RowCounts counts_;
  Doubts doubts_;
  std::string first_error_;
  std::optional<FormatOptions> read_as_;  // of texts
};

// The first row that can be parsed says what the others are.
FormatOptions format_of(const DatasetOptions& dataset, const DatasetFiles& files, const ReadContext& context) {
  FormatOptions format = dataset.format;
  if (format.type == "prompt_completion" || format.type == "question_answer") {
    const bool prompts = format.type == "prompt_completion";
    if (format.field_instruction == "instruction") format.field_instruction = prompts ? "prompt" : "question";
    if (format.field_output == "output") format.field_output = prompts ? "completion" : "answer";
  }
  if (format.type != "auto") return format;
  if (content_extension(files.files.front()) == ".txt" || files.ds_type == "text") {
    format.type = "completion";
    return format;
  }
  const std::unique_ptr<RowBlocks> blocks = open_rows(files, format.field);
  while (auto block = blocks->next()) {
    for (RawRow& raw : block->rows) {
      try {
        const io::Value value = blocks->value(raw);
        const Row row(value, blocks->where(raw));
        row.expect_object();
        DetectedFormat found = detect_format(format, row);
        if (context.notice && !found.said.empty()) {
          context.notice(fmt::format("{}: its rows are {}", dataset.path, found.said));
        }
        return found.options;
      } catch (const UserError&) {
        if (context.bad_row == BadRow::raise) throw;
      }
    }
  }
  user_error("{}: holds no rows", dataset.path);
}

Corpus read(const DatasetOptions& dataset, const DatasetFiles& files, const ReadContext& context,
            Corpus::Builder builder) {
  const FormatOptions format = format_of(dataset, files, context);
  Reading reading(dataset, files, context, std::move(builder));
  if (format.type != "tokens") return reading.texts(format);
  if (!format.shown.empty()) user_error("{}: has tokens, but sdft needs rows of texts", dataset.path);
  return reading.tokens();
}

}  // namespace

std::shared_ptr<const Corpus> read_dataset(const DatasetOptions& dataset, const ReadContext& context) {
  const DatasetFiles files = find_files(dataset);
  const auto shared = [](Corpus corpus) { return std::make_shared<const Corpus>(std::move(corpus)); };
  if (!context.prepared.empty()) {
    const fs::path kept = prepared_path(dataset, files, context);
    if (auto corpus = open_prepared(kept, context)) return shared(*std::move(corpus));
    const io::TurnLock turn = turn_to_prepare(kept, dataset.path, context);
    // Somebody may have done it meanwhile. What was wrong with an earlier one was said.
    ReadContext again = context;
    again.notice = {};
    if (auto corpus = open_prepared(kept, again)) return shared(*std::move(corpus));
    try {
      Corpus corpus = read(dataset, files, context, Corpus::Builder(kept));
      note_as_verified(corpus, kept);
      return shared(std::move(corpus));
    } catch (const Corpus::Builder::CannotKeep& reason) {
      // A cache that cannot be written is a pity, not an error.
      if (context.notice) context.notice(fmt::format("{}; the documents stay in memory", reason.message));
    }
  }
  return shared(read(dataset, files, context, Corpus::Builder::in_memory(dataset.path)));
}

}  // namespace inlay::data
