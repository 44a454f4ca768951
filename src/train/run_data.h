#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/console.h"
#include "data/sampler.h"
#include "options/train_options.h"

// The documents that the options name, and the batches they make.
namespace inlay::train {

// The documents of datasets, as the options want them read, for a model with that vocabulary. Says what was left out.
data::Documents read_datasets(const std::vector<data::DatasetOptions>& datasets, const options::TrainOptions& options,
                              std::int64_t vocab, Console& console);
// Where dataset_prepared_path says that prepared data is kept; empty: nowhere.
std::filesystem::path prepared_folder(const std::string& option);
// What a run learns from, and what it is evaluated on: test_datasets, or val_set_size of the documents.
struct RunData {
  data::Documents train, test;
  data::Documents shown;  // those to train on, followed by prompts that show their answers; empty: not asked for
};
// shown: documents to train on are followed by prompts that show their answers (data/formats/format.h).
RunData read_run_data(const options::TrainOptions& options, std::int64_t vocab, Console& console, bool shown = false);
// Of one file alone, as the options read datasets.
std::vector<Document> read_documents(const std::string& file, const options::TrainOptions& options, std::int64_t vocab,
                                     Console& console);
// Of a dataset alone, to measure texts: with nothing but the tokenizer and the template of a model folder.
std::vector<Document> read_documents(const data::DatasetOptions& dataset, const std::string& model, std::int64_t vocab,
                                     Console& console);
data::BatchOptions batch_options(const options::TrainOptions& options);

// The most tokens and the longest document that a micro-batch may have, whatever the epoch's order.
struct BatchBounds {
  std::int64_t tokens = 0, document = 0;
  std::int64_t kept = 0;  // predictions of another model, for each token
  // Answers that the model writes at once before a step, and the longest with its prompt; 0: it writes none.
  std::int64_t answers = 0, answer_length = 0;
  // Where another model sees other prompts: the tokens that it sees of a micro-batch and of a document.
  std::int64_t others_tokens = 0, others_document = 0;
};
BatchBounds bounds_of(const data::BatchSampler& sampler);
// Without documents at hand: by the configuration alone.
BatchBounds bounds_of(const options::TrainOptions& options);

// A file of osft.calibration.data: plain text by the base model's tokenizer, anything else as datasets are read.
std::vector<Document> read_calibration_text(const std::string& file, const options::TrainOptions& options,
                                            std::int64_t vocab, Console& console);
// Everything that decides how a file becomes documents, but the file.
std::string reading_fingerprint(const options::TrainOptions& options);

}  // namespace inlay::train
