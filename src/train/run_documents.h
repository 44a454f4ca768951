#pragma once

#include "model/config.h"
#include "train/run_data.h"

namespace inlay::train {

// Everything that a run reads, ready for its loop.
class RunDocuments {
 public:
  // Reads it and says what it is: how much, what was cut or left out.
  RunDocuments(const options::TrainOptions& options, const model::ModelConfig& config, Console& console);

  const data::Documents& train() const { return data_.train; }
  const std::vector<Document>& test() const { return test_; }  // no longer than what is trained on
  std::string test_fingerprint() const { return data_.test.fingerprint(); }
  const data::Documents& shown() const { return data_.shown; }  // where answers are written before each step
  const data::BatchSampler& sampler() const { return sampler_; }
  // Log-probabilities by the reference model, of the sequences of each document.
  void set_reference(std::vector<std::vector<float>> train, const std::vector<std::vector<float>>& test);
  // Others in place of those to train on.
  void replace(const std::vector<Document>& train, const options::TrainOptions& options);
  // Of micro-batches and of evaluation's batches.
  BatchBounds bounds() const;

 private:
  RunData data_;
  std::vector<Document> test_;
  data::BatchSampler sampler_;
  std::int64_t longest_sequence_ = 0;  // where a document has several of them
  BatchBounds written_;                // of answers that are written before each step, and of steps with them
};

}  // namespace inlay::train
