#include "study/evaluation_sets.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/text.h"
#include "data/prompts.h"
#include "io/file.h"
#include "train/evaluation.h"
#include "train/generate.h"

namespace inlay::study {

namespace fs = std::filesystem;

namespace {

// Read as the options read what is learned.
EvaluationSet read_set(const std::string& name, const std::vector<std::string>& files,
                       const options::TrainOptions& options, std::int64_t vocab, Console& console) {
  EvaluationSet set{.name = name};
  for (const std::string& file : files) {
    const bool choices = data::holds_choices(file);
    if (choices ? !set.documents.empty() : !set.questions.empty()) {
      user_error("{}: {} choices, unlike the files of {} before it", file, choices ? "has" : "has no", name);
    }
    if (choices) {
      std::vector<data::Question> more = data::read_choices(file, vocab);
      std::move(more.begin(), more.end(), std::back_inserter(set.questions));
    } else {
      std::vector<Document> more = train::read_documents(file, options, vocab, console);
      std::move(more.begin(), more.end(), std::back_inserter(set.documents));
    }
  }
  return set;
}

// Evaluation reads no further than training does. Questions stay whole: a cut one is another question.
void cut(EvaluationSet& set, std::int64_t sequence_len, Console& console) {
  std::int64_t clipped = 0;
  for (Document& document : set.documents) {
    clipped += truncate(document, static_cast<std::size_t>(sequence_len)) ? 1 : 0;
  }
  if (clipped > 0) {
    console.line(fmt::format("{}: {} cut to sequence_len", set.name,
                             counted(clipped, "document of the evaluation was", "documents of the evaluation were")));
  }
}

// Whether the set can be scored by its metric.
void check_metric(const EvaluationSet& set, Metric metric, const std::string& file, const std::string& whose) {
  const bool choices = !set.questions.empty();
  if (choices && (metric == Metric::token_accuracy || metric == Metric::exact_match)) {
    user_error("{}: has choices, but the metric of {} is {}; metric: choice_accuracy scores them", file, whose,
               name_of(metric));
  }
  if (!choices && metric == Metric::choice_accuracy) {
    user_error(
        "{}: has no choices, which the metric of {} (choice_accuracy) needs: {{\"input_ids\": [...], \"choices\": "
        "[[...], [...]], \"answer\": 0}} per line",
        file, whose);
  }
}

void check_judged(const std::string& reference, const data::AnswerRule& rule, const std::string& where) {
  if (data::is_judged_by(reference, rule)) return;
  const bool marked = reference.find(rule.marker) != std::string::npos;  // an empty marker is in every text
  const std::string missing = !marked                                   ? fmt::format("'{}'", rule.marker)
                              : rule.match == data::AnswerMatch::number ? "number"
                                                                        : "text";
  user_error("{}: its answer has no {}{}, which answers are judged by: '{}'", where, missing,
             marked && !rule.marker.empty() ? fmt::format(" after '{}'", rule.marker) : "", reference);
}

// The last exchange of each of the first documents.
std::vector<data::Exchange> exchanges_of(const std::vector<Document>& documents, std::int64_t limit,
                                         const std::string& file) {
  const std::size_t most = limit > 0 ? static_cast<std::size_t>(limit) : documents.size();
  std::vector<data::Exchange> exchanges;
  for (std::size_t d = 0; d < std::min(most, documents.size()); ++d) {
    std::optional<data::Exchange> exchange = data::last_exchange(documents[d]);
    if (!exchange) {
      user_error(
          "{}: row {} is not a prompt followed by an answer, of which only the answer is learned; use "
          "conversations, or rows of instruction and output",
          file, d + 1);
    }
    exchanges.push_back(*std::move(exchange));
  }
  return exchanges;
}

}  // namespace

EvaluationSets::EvaluationSets(const ContinualOptions& options, const model::ModelConfig& config, Console& console)
    : options_(options), config_(config) {
  const auto wants_text = [](const auto& set) { return set.metric == Metric::exact_match; };
  if (std::ranges::any_of(options.tasks, wants_text) || std::ranges::any_of(options.held, wants_text) ||
      std::ranges::any_of(options.held, [](const HeldSet& held) { return held.own_temperature.has_value(); })) {
    tokenizer_ = data::Tokenizer::load(options.base_model);
    stops_ = data::stop_tokens(options.base_model, *tokenizer_);
  }
  const auto check_prompts = [](const options::TrainOptions& reading, const std::string& whose) {
    if (!reading.train_on_inputs) return;
    user_error(
        "{}: a model cannot be asked with train_on_inputs: if prompts are learned too, nothing shows where the "
        "answer begins",
        whose);
  };
  for (const ContinualTask& task : options.tasks) {
    if (task.metric == Metric::exact_match) check_prompts(task.evaluation, "task " + task.name);
    EvaluationSet set = read_set(task.name, task.eval, task.evaluation, config.vocab, console);
    check_metric(set, task.metric, task.eval[0], "task " + task.name);
    if (!set.questions.empty() && task.metric == Metric::loss) {
      user_error("{}: has choices, but the metric of task {} is loss; metric: choice_accuracy scores them",
                 task.eval[0], task.name);
    }
    if (task.metric == Metric::exact_match) add_answers(set, task.answering, task.eval[0]);
    cut(set, task.evaluation.sequence_len, console);
    tasks_.push_back(std::move(set));
  }
  for (const HeldSet& held : options.held) {
    if (held.metric == Metric::exact_match || held.own_temperature) {
      check_prompts(options.evaluation, "held " + held.name);
    }
    EvaluationSet set = read_set(held.name, held.data, options.evaluation, config.vocab, console);
    if (held.own_temperature) {
      if (!set.questions.empty()) user_error("{}: has choices, but prompts to answer are expected", held.data[0]);
      exchanges_of(set.documents, held.answering.limit, held.data[0]);  // the documents wait for the answers
    } else {
      // Questions may be held without a metric: then their loss is shown.
      check_metric(set, held.metric, held.data[0], "held " + held.name);
      if (held.metric == Metric::exact_match) add_answers(set, held.answering, held.data[0]);
      cut(set, options.evaluation.sequence_len, console);
    }
    held_.push_back(std::move(set));
  }
}

std::string EvaluationSets::text_of(const std::vector<std::int32_t>& answer) const {
  return tokenizer_->decode(std::span(answer.begin(), std::ranges::find_first_of(answer, stops_)));
}

void EvaluationSets::add_answers(EvaluationSet& set, const Answering& answering, const std::string& file) const {
  AnswerSet answers{.answering = answering};
  for (data::Exchange& exchange : exchanges_of(set.documents, answering.limit, file)) {
    answers.references.push_back(text_of(exchange.answer));
    check_judged(answers.references.back(), answering.rule, fmt::format("{}: row {}", file, answers.references.size()));
    answers.prompts.push_back(std::move(exchange.prompt));
  }
  set.answers = std::move(answers);
}

void EvaluationSets::write_own_answers(std::size_t which, const fs::path& file, Console& console) const {
  const HeldSet& held = options_.held[which];
  std::vector<std::vector<std::int32_t>> prompts;
  std::int64_t longest = 0;
  for (data::Exchange& exchange : exchanges_of(held_[which].documents, held.answering.limit, held.data[0])) {
    longest = std::max(longest, static_cast<std::int64_t>(exchange.prompt.size()) + held.answering.max_new_tokens);
    prompts.push_back(std::move(exchange.prompt));
  }
  const options::TrainOptions& evaluation = options_.evaluation;
  train::EngineOptions engine_options =
      train::engine_options(train::Purpose::generation, train::resolve_machine(evaluation.device, evaluation.dtype),
                            {.tokens = longest, .document = longest});
  train::plan_answers(engine_options, config_, prompts.size(), longest);
  const auto engine = train::load_engine(options_.base_model, config_, engine_options, console);
  const std::vector<std::vector<std::int32_t>> answers =
      train::answer_all(*engine, prompts,
                        {.count = held.answering.max_new_tokens,
                         .stops = stops_,
                         .keep_stop = true,  // where it ended by itself, how it did is part of what it says
                         .drawing = {.temperature = static_cast<float>(*held.own_temperature)}},
                        console);
  std::string lines;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    std::vector<std::int32_t> ids = prompts[i], labels(ids.size(), ignore_label);
    ids.insert(ids.end(), answers[i].begin(), answers[i].end());
    labels.insert(labels.end(), ids.begin() + static_cast<std::ptrdiff_t>(labels.size()), ids.end());
    const nlohmann::ordered_json json = {{"input_ids", ids}, {"labels", labels}, {"text", text_of(answers[i])}};
    lines += json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  io::write_file_atomic(file, lines);
}

void EvaluationSets::read_own_answers(std::size_t which, const fs::path& file, Console& console) {
  held_[which] = read_set(options_.held[which].name, {file.string()}, options_.evaluation, config_.vocab, console);
  const HeldSet& held = options_.held[which];
  if (held.metric == Metric::exact_match) add_answers(held_[which], held.answering, file.string());
  cut(held_[which], options_.evaluation.sequence_len, console);
}

double EvaluationSets::exact_match(train::Engine& engine, const AnswerSet& set, Console& console) const {
  const std::vector<std::vector<std::int32_t>> answers = train::answer_all(
      engine, set.prompts, {.count = set.answering.max_new_tokens, .stops = stops_, .drawing = {}}, console);
  std::size_t right = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    right += data::agrees(tokenizer_->decode(answers[i]), set.references[i], set.answering.rule) ? 1 : 0;
  }
  return static_cast<double>(right) / static_cast<double>(answers.size());
}

SetScore EvaluationSets::score(train::Engine& engine, const EvaluationSet& set, Console& console) const {
  SetScore score;
  if (!set.questions.empty()) {
    const train::ChoiceEvaluation result = train::evaluate_choices(engine, set.questions);
    score.loss = result.loss;
    score.choice_accuracy = result.accuracy;
    return score;
  }
  const train::Evaluation result = train::evaluate(engine, set.documents);
  score.loss = result.loss;
  score.token_accuracy = result.accuracy;
  if (set.answers) score.exact_match = exact_match(engine, *set.answers, console);
  return score;
}

ScoreRow EvaluationSets::evaluate(const fs::path& folder, const model::ModelConfig& config, Console& console) const {
  const options::TrainOptions& evaluation = options_.evaluation;
  train::BatchBounds bounds{.tokens = evaluation.micro_batch_size * evaluation.sequence_len};
  const auto widen = [&](const Document& document) {
    const auto length = static_cast<std::int64_t>(document.input_ids.size());
    bounds.document = std::max(bounds.document, length);
    bounds.tokens = std::max(bounds.tokens, length);
  };
  bool choices = false;
  std::size_t prompts = 0;
  std::int64_t longest = 0;  // prompt with its answer
  for (const auto* sets : {&tasks_, &held_}) {
    for (const EvaluationSet& set : *sets) {
      choices |= !set.questions.empty();
      for (const Document& d : set.documents) widen(d);
      for (const Document& d : data::choice_documents(set.questions)) widen(d);
      if (!set.answers) continue;
      prompts = std::max(prompts, set.answers->prompts.size());
      for (const std::vector<std::int32_t>& prompt : set.answers->prompts) {
        longest = std::max(longest, static_cast<std::int64_t>(prompt.size()) + set.answers->answering.max_new_tokens);
      }
    }
  }
  train::EngineOptions engine_options =
      train::engine_options(choices ? train::Purpose::choices : train::Purpose::evaluation,
                            train::resolve_machine(evaluation.device, evaluation.dtype), bounds);
  if (prompts > 0) train::plan_answers(engine_options, config, prompts, longest);
  const auto engine = train::load_engine(folder, config, engine_options, console);
  ScoreRow row;
  for (const auto& [sets, scores] : {std::pair(&tasks_, &row.tasks), std::pair(&held_, &row.held)}) {
    for (const EvaluationSet& set : *sets) {
      console.status("evaluating on " + set.name);
      scores->push_back(score(*engine, set, console));
    }
  }
  return row;
}

}  // namespace inlay::study
