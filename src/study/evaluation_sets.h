#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/answers.h"
#include "data/choices.h"
#include "data/tokenizer/tokenizer.h"
#include "study/options.h"
#include "train/session.h"

namespace inlay::study {

// Prompts that a model answers, and how its answers are judged.
struct AnswerSet {
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::string> references;
  Answering answering;
};

// What a model is evaluated on: documents, or questions with choices; perhaps with prompts out of the documents.
struct EvaluationSet {
  std::string name;
  std::vector<Document> documents;
  std::vector<data::Question> questions;
  std::optional<AnswerSet> answers;
};

// All that is evaluated after every task: the tasks' own data and the held sets.
class EvaluationSets {
 public:
  // Reads all but what the base model is to write, with every mistake that can be seen before anything is trained.
  EvaluationSets(const ContinualOptions& options, const model::ModelConfig& config, Console& console);

  // The prompts of a held set, where the base model has yet to answer them into this file; and reading that file.
  bool wants_answers(std::size_t held) const { return options_.held[held].own_temperature.has_value(); }
  void write_own_answers(std::size_t held, const std::filesystem::path& file, Console& console) const;
  void read_own_answers(std::size_t held, const std::filesystem::path& file, Console& console);

  const std::vector<EvaluationSet>& tasks() const { return tasks_; }
  const std::vector<EvaluationSet>& held() const { return held_; }

  // The scores of the model in a folder. Ctrl-C throws Interrupted.
  ScoreRow evaluate(const std::filesystem::path& folder, const model::ModelConfig& config, Console& console) const;

 private:
  // Up to the token that ends it.
  std::string text_of(const std::vector<std::int32_t>& answer) const;
  // Takes prompts and right answers out of the set's documents, which must be whole yet.
  void add_answers(EvaluationSet& set, const Answering& answering, const std::string& file) const;
  SetScore score(train::Engine& engine, const EvaluationSet& set, Console& console) const;
  double exact_match(train::Engine& engine, const AnswerSet& set, Console& console) const;

  const ContinualOptions& options_;
  model::ModelConfig config_;
  std::vector<EvaluationSet> tasks_, held_;
  std::optional<data::Tokenizer> tokenizer_;  // where answers are texts
  std::vector<std::int32_t> stops_;
};

}  // namespace inlay::study
