#pragma once

#include "data/answers.h"
#include "data/tokenizer/tokenizer.h"
#include "model/config.h"
#include "train/engine.h"
#include "train/run_data.h"

// Answers in the words of the model itself. Self-distillation (SDFT; Yang et al. 2024): it is shown each answer with
// its prompt and asked for one of its own, and what it cannot say stays as the data has it. Or it answers the prompt
// alone, for a teacher to predict it.
namespace inlay::train {

// A document, and the prompt that shows its answer; empty: there is none.
struct ShownDocument {
  Document document;
  std::vector<std::int32_t> prompt;
};
ShownDocument apart(Document document);

// What ends an answer, and whether that is learned.
struct AnswerEnd {
  std::int32_t token;
  bool learned;
};

class Rewriter {
 public:
  explicit Rewriter(const options::TrainOptions& options);  // which must outlive it

  // Gives the documents the engine's answers to their prompts, which are gone then; says how many. Those longer than so
  // many tokens would make a document too long, and are not taken. Ctrl-C throws Interrupted.
  std::int64_t rewrite(std::vector<ShownDocument>& documents, Engine& engine, std::int64_t longest, std::uint64_t seed,
                       Console& console) const;
  // Gives the documents the engine's answers to their own prompts, as long as so many tokens leave room for, to be
  // predicted as they would be behind the prompts that show the data's (Document::others_prompt). All of them must ask.
  void respond(std::vector<ShownDocument>& documents, Engine& engine, std::int64_t longest, std::uint64_t seed,
               Console& console) const;
  // That end any answer, beside what the data ends its own by.
  const std::vector<std::int32_t>& stops() const { return stops_; }
  // Whether an answer is asked for; a text that is learned from its second token on is none.
  static bool asks(const ShownDocument& shown, const options::AnswerWriting& writing) {
    const auto exchange = data::last_exchange(shown.document);
    return exchange && (writing.shown ? !shown.prompt.empty() : exchange->prompt.size() > 1);
  }

 private:
  struct Asked;
  // Those that ask, which must outlive the result.
  std::vector<Asked> asked(std::vector<ShownDocument>& documents) const;
  std::vector<std::vector<std::int32_t>> answers(const std::vector<Asked>& asked,
                                                 const std::vector<std::vector<std::int32_t>>& prompts, Engine& engine,
                                                 std::uint64_t seed, Console& console) const;
  bool ended(const std::vector<std::int32_t>& answer) const;
  bool is_good(const std::vector<std::int32_t>& answer, const std::vector<std::int32_t>& right) const;

  const options::TrainOptions& options_;
  options::AnswerWriting writing_;
  data::Tokenizer tokenizer_;
  std::vector<std::int32_t> stops_;
};

// What a run learns from and is evaluated on, with the answers of the first by the model that the run starts from. Kept
// with the prepared data for runs to come over the same data and model. Ctrl-C throws Interrupted.
RunData read_rewritten(const options::TrainOptions& options, const model::ModelConfig& config, Console& console);
// UserError where so many processes would each write all answers: one writes and keeps them, the others read them.
void check_shared_answers(const options::TrainOptions& options, int processes);
// The same as the data has it, and with the prompts that show its answers where they are shown, for answers that are
// written later.
RunData read_to_rewrite(const options::TrainOptions& options, std::int64_t vocab, Console& console);

}  // namespace inlay::train
