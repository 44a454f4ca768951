#include "train/on_policy.h"

#include <algorithm>

#include "train/generate.h"
#include "train/session.h"

namespace inlay::train {

namespace {

// The longest prompts: of the documents, and those that show their answers.
struct Prompts {
  std::int64_t own = 1, shown = 1;
};

BatchBounds with_room(const options::TrainOptions& options, const model::ModelConfig& config, std::size_t answers,
                      const Prompts& longest) {
  const options::AnswerWriting writing = options.answer_writing();
  BatchBounds bounds = bounds_of(options);
  bounds.answer_length = (writing.predictions ? longest.own : longest.shown) + writing.max_new_tokens;
  bounds.answers =
      answers_at_once(resolve_machine(options.device, options.dtype), config, answers, bounds.answer_length);
  if (writing.predictions && writing.shown) {
    bounds.others_document = longest.shown + writing.max_new_tokens + 1;  // and what ends the answer
    bounds.others_tokens = options.sample_packing ? std::max(bounds.tokens, bounds.others_document)
                                                  : options.micro_batch_size * bounds.others_document;
  }
  return bounds;
}

}  // namespace

std::vector<Document> OnPolicyAnswers::write(Engine& engine, std::int64_t step,
                                             std::span<const data::BatchSampler::Piece> pieces,
                                             std::vector<Document> documents) {
  const std::uint64_t seed =
      static_cast<std::uint64_t>(options_.seed) * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(step);
  const bool predictions = options_.answer_writing().predictions;
  std::vector<ShownDocument> shown;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    ShownDocument whole = apart(shown_.read(pieces[i].document));
    if (predictions) {
      shown.push_back(std::move(whole));
      continue;
    }
    // One that was cut is learned as the data has it: its answer may be missing.
    if (pieces[i].begin != 0 || pieces[i].length != std::ssize(whole.document.input_ids)) whole.prompt.clear();
    shown.push_back({.document = std::move(documents[i]), .prompt = std::move(whole.prompt)});
  }
  if (predictions) {
    rewriter_.respond(shown, engine, options_.sequence_len, seed, console_);
  } else {
    const std::int64_t rewritten = rewriter_.rewrite(shown, engine, options_.sequence_len, seed, console_);
    share_ = static_cast<double>(rewritten) / static_cast<double>(shown.size());
    say_where_none(rewritten);
  }
  for (std::size_t i = 0; i < shown.size(); ++i) documents[i] = std::move(shown[i].document);
  return documents;
}

// A run whose answers are never taken is one without sdft, which nobody should find out from its metrics.
void OnPolicyAnswers::say_where_none(std::int64_t rewritten) {
  constexpr int patience = 5;
  if (rewritten > 0) any_ = true;
  if (any_ || ++steps_without_ != patience) return;
  console_.line(fmt::format(
      "sdft: none of the answers of {} steps was taken, and the data's own are learned, as without sdft; an answer is "
      "taken where it ends within sdft.max_new_tokens ({}) and fits into sequence_len{}",
      patience, options_.sdft.max_new_tokens, options_.sdft.match ? ", and sdft.match agrees" : ""));
}

BatchBounds on_policy_bounds(const options::TrainOptions& options, const model::ModelConfig& config,
                             const data::Documents& shown) {
  Prompts longest;
  for (std::int64_t i = 0; i < shown.size(); ++i) {
    const ShownDocument each = apart(shown.read(i));
    longest.shown = std::max(longest.shown, std::ssize(each.prompt));
    if (const auto exchange = data::last_exchange(each.document)) {
      longest.own = std::max(longest.own, std::ssize(exchange->prompt));
    }
  }
  return with_room(options, config, static_cast<std::size_t>(shown.size()), longest);
}

BatchBounds on_policy_bounds(const options::TrainOptions& options, const model::ModelConfig& config) {
  constexpr std::size_t many = 1024;
  const std::int64_t length = options.sequence_len;
  return with_room(options, config, many,
                   {.own = length, .shown = 2 * length});  // a document, and the answer once more
}

}  // namespace inlay::train
