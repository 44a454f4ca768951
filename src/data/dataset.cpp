#include "data/dataset.h"

#include <algorithm>

#include "core/error.h"
#include "core/parallel.h"
#include "data/formats/labels.h"
#include "data/parquet/token_reader.h"
#include "data/prepared.h"
#include "data/row_blocks.h"
#include "data/token_rows.h"

namespace inlay::data {
namespace {

namespace fs = std::filesystem;

// Rows of token ids where they are not lines (read_jsonl reads those, and faster).
class TokensFormat final : public RowFormat {
 public:
  explicit TokensFormat(std::int64_t vocab) : vocab_(vocab) {}

  Document make(const Row& row) const override {
    TokenArrays arrays;
    for (const char* key : {"input_ids", "labels", "attention_mask"}) {
      const auto found = row.find(key);
      if (!found) continue;
      TokenArray& array = *arrays.find(key);
      array.present = true;
      for (const Row& element : found->elements()) {
        const auto value = element.value().integer();
        if (!value || *value < INT32_MIN || *value > INT32_MAX) element.fail("expected a token id");
        array.add(static_cast<std::int64_t>(*value));
      }
    }
    return make_document(std::move(arrays), row.where(), vocab_);
  }

 private:
  std::int64_t vocab_;
};

// What is made of one row on some thread: a document, or why there is none.
struct Outcome {
  Document document;
  std::string error;
};

class Reading {
 public:
  Reading(const DatasetOptions& dataset, const ReadContext& context) : dataset_(dataset), context_(context) {
    std::error_code ignored;
    total_ = fs::file_size(dataset.path, ignored);
  }

  Corpus tokens() {
    const auto on_bad = [&](const std::string& error) { skip(error); };
    const auto documents = read_jsonl(
        dataset_.path, context_.vocab, [&](std::uint64_t done) { progress(done); },
        context_.bad_row == BadRow::skip ? BadLine(on_bad) : BadLine());
    counts_.rows = counts_.skipped + static_cast<std::int64_t>(documents.size());
    for (const Document& document : documents) builder_.add(document);
    return std::move(builder_).finish(counts_);
  }

  Corpus token_rows() { return rows(TokensFormat(context_.vocab), ""); }

  // Nothing where the columns are not as that wants them.
  std::optional<Corpus> token_columns() {
    const io::MappedFile file(dataset_.path);
    const parquet::Metadata metadata = parquet::read_metadata(file.bytes(), dataset_.path);
    if (!parquet::TokenReader::fits(metadata)) return std::nullopt;
    parquet::TokenReader reader(file.bytes(), metadata, dataset_.path);
    while (reader.rows_read() < metadata.rows) {
      Outcome outcome;
      TokenArrays arrays = reader.next();
      try {
        const std::string where = fmt::format("{}: row {}", dataset_.path, reader.rows_read());
        outcome.document = make_document(std::move(arrays), where, context_.vocab);
      } catch (const UserError& error) {
        outcome.error = error.what();
      }
      take(std::move(outcome));
      if (reader.rows_read() % 1024 == 0) {
        progress(total_ * static_cast<std::uint64_t>(reader.rows_read()) / static_cast<std::uint64_t>(metadata.rows));
      }
    }
    if (builder_.size() == 0) nothing_left();
    return std::move(builder_).finish(counts_);
  }

  Corpus texts(const FormatOptions& options) {
    const Tokenizer tokenizer = Tokenizer::load(context_.model);
    check_vocabulary_ = tokenizer.vocab_size() > context_.vocab;
    return rows(*make_format(options, tokenizer, context_.model), options.field);
  }

 private:
  Corpus rows(const RowFormat& format, const std::string& text_field) {
    const std::unique_ptr<RowBlocks> blocks = open_rows(dataset_.path, text_field);
    for (std::vector<RawRow> rows = blocks->next(); !rows.empty(); rows = blocks->next()) {
      std::vector<Outcome> outcomes(rows.size());
      parallel_for(rows.size(), context_.threads, [&](std::size_t i) { outcomes[i] = make(format, rows[i]); });
      for (Outcome& outcome : outcomes) take(std::move(outcome));
      progress(blocks->bytes_read());
    }
    if (builder_.size() == 0) nothing_left();
    return std::move(builder_).finish(counts_);
  }

  Outcome make(const RowFormat& format, const RawRow& raw) const {
    Outcome outcome;
    try {
      const Row row = raw.row();
      row.expect_object();
      outcome.document = format.make(row);
      if (outcome.document.input_ids.empty()) row.fail("there is no text in it");
    } catch (const UserError& error) {
      outcome.error = error.what();
    }
    if (outcome.error.empty() && check_vocabulary_) check(outcome.document, raw.where());
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
    if (!outcome.error.empty()) return skip(outcome.error);
    if (!has_labels(outcome.document)) {
      ++counts_.unlabelled;
      return;
    }
    builder_.add(outcome.document);
  }

  void skip(const std::string& error) {
    if (context_.bad_row == BadRow::raise) user_error("{}", error);
    if (counts_.skipped++ == 0 && context_.notice) context_.notice(error);
    if (first_error_.empty()) first_error_ = error;
  }

  [[noreturn]] void nothing_left() const {
    if (counts_.rows == 0) user_error("{}: holds no rows", dataset_.path);
    if (counts_.skipped > 0) {
      user_error("{}: none of its {} rows can be used; the first: {}", dataset_.path, counts_.rows, first_error_);
    }
    user_error(
        "{}: nothing in its {} rows is to be learned; roles_to_train, train_on_inputs and the rows' own marks decide "
        "that",
        dataset_.path, counts_.rows);
  }

  void progress(std::uint64_t done) const {
    if (context_.progress) context_.progress(done, total_);
  }

  const DatasetOptions& dataset_;
  const ReadContext& context_;
  std::uint64_t total_ = 0;
  bool check_vocabulary_ = false;
  Corpus::Builder builder_;
  RowCounts counts_;
  std::string first_error_;
};

// The first row that can be parsed says what the others are.
std::string type_of(const DatasetOptions& dataset, const ReadContext& context) {
  const FormatOptions& format = dataset.format;
  if (format.type != "auto") return format.type;
  if (fs::path(dataset.path).extension() == ".txt") return "completion";
  const std::unique_ptr<RowBlocks> blocks = open_rows(dataset.path, format.field);
  for (std::vector<RawRow> rows = blocks->next(); !rows.empty(); rows = blocks->next()) {
    for (const RawRow& raw : rows) {
      try {
        const Row row = raw.row();
        if (!format.field_messages.empty() && row.find(format.field_messages)) return "chat_template";
        if (format.field != "text" && row.find(format.field)) return "completion";
        const bool renamed = format.field_instruction != "instruction" || format.field_output != "output";
        if (renamed && row.find(format.field_instruction) && row.find(format.field_output)) return "alpaca";
        return detect_type(row);
      } catch (const UserError&) {
        if (context.bad_row == BadRow::raise) throw;
      }
    }
  }
  user_error("{}: holds no rows", dataset.path);
}

Corpus read(const DatasetOptions& dataset, const ReadContext& context) {
  const std::string type = type_of(dataset, context);
  Reading reading(dataset, context);
  const fs::path extension = fs::path(dataset.path).extension();
  const bool rows = extension == ".json" || extension == ".parquet";
  if (type == "tokens" && extension == ".parquet") {
    if (auto corpus = reading.token_columns()) return *std::move(corpus);
  }
  if (type == "tokens") return rows ? reading.token_rows() : reading.tokens();
  FormatOptions options = dataset.format;
  options.type = type;
  return reading.texts(options);
}

// A cache that cannot be written is a pity, not an error.
bool keep(const Corpus& corpus, const fs::path& path) {
  try {
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    corpus.save(path);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace

std::shared_ptr<const Corpus> read_dataset(const DatasetOptions& dataset, const ReadContext& context) {
  std::error_code ignored;
  if (!fs::exists(dataset.path, ignored)) user_error("{}: no such file", dataset.path);
  if (!fs::is_regular_file(dataset.path, ignored)) user_error("{}: is not a file", dataset.path);
  if (context.prepared.empty()) return std::make_shared<const Corpus>(read(dataset, context));
  const fs::path kept = prepared_path(dataset, context);
  if (fs::exists(kept, ignored)) {
    // A damaged one is made again.
    auto corpus = Corpus::open(kept);
    if (corpus && corpus->within(context.vocab)) return std::make_shared<const Corpus>(*std::move(corpus));
  }
  Corpus corpus = read(dataset, context);
  // From the file from here on: what was made may be larger than memory likes.
  if (keep(corpus, kept)) {
    if (auto mapped = Corpus::open(kept)) return std::make_shared<const Corpus>(*std::move(mapped));
  }
  return std::make_shared<const Corpus>(std::move(corpus));
}

}  // namespace inlay::data
