#include "train/self_distillation.h"

#include <algorithm>
#include <limits>

#include "adapter/adapter_file.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "data/prepared.h"
#include "data/prompts.h"
#include "io/file.h"
#include "io/hash.h"
#include "train/generate.h"
#include "train/session.h"

namespace inlay::train {

namespace {

namespace fs = std::filesystem;

std::vector<ShownDocument> apart(const data::Documents& documents) {
  std::vector<ShownDocument> result;
  for (std::int64_t i = 0; i < documents.size(); ++i) result.push_back(train::apart(documents.read(i)));
  return result;
}

// A run in which nothing can be rewritten would be one without sdft, and would not say so.
void check_any_asked(const data::Documents& documents, const options::AnswerWriting& writing) {
  for (std::int64_t i = 0; i < documents.size(); ++i) {
    if (Rewriter::asks(train::apart(documents.read(i)), writing)) return;
  }
  user_error(
      "{}: none of the {} documents has an answer that the model could rewrite: a text that is learned, and that "
      "somebody has asked for",
      writing.key, format_count(documents.size()));
}

// Where answers are all that is learned, those rows that the model can answer within sequence_len.
void keep_what_asks(data::Documents& documents, const options::AnswerWriting& writing, std::int64_t sequence_len,
                    Console& console) {
  data::Corpus::Builder builder = data::Corpus::Builder::in_memory("documents");
  const std::int64_t all = documents.size();
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < all; ++i) {
    const Document shown = documents.read(i);
    const ShownDocument each = train::apart(shown);
    if (!Rewriter::asks(each, writing) || std::ssize(data::last_exchange(each.document)->prompt) >= sequence_len)
      continue;
    builder.add(shown);
    ++kept;
  }
  if (kept == all) return;
  if (kept == 0) {
    user_error("{}: no prompt leaves room for an answer within sequence_len ({}); raise it", writing.key, sequence_len);
  }
  console.line(
      fmt::format("{}: {} left out: they have no answer that somebody asked for, or a prompt that leaves no "
                  "room for one within sequence_len",
                  writing.key, counted(all - kept, "document was", "documents were")));
  documents = {};
  documents.add(std::make_shared<const data::Corpus>(std::move(builder).finish({.rows = kept})));
}

// One by one: there may be more of them than memory holds as documents.
data::Documents without_prompts(const data::Documents& shown) {
  data::Documents documents;
  if (shown.size() == 0) return documents;
  data::Corpus::Builder builder = data::Corpus::Builder::in_memory("documents");
  for (std::int64_t i = 0; i < shown.size(); ++i) builder.add(train::apart(shown.read(i)).document);
  documents.add(std::make_shared<const data::Corpus>(std::move(builder).finish({.rows = shown.size()})));
  return documents;
}

// As the data ends its own answer, in which train_on_eos may leave the end unlearned. A chat template may end its turns
// by a special token that is none of the stops.
AnswerEnd end_of(const Document& document, const data::Exchange& exchange, const std::vector<std::int32_t>& stops,
                 const data::Tokenizer& tokenizer) {
  constexpr std::size_t near = 4;  // templates put a newline or two before it
  const auto stop = [&](std::int32_t id) { return std::ranges::find(stops, id) != stops.end(); };
  const auto may_end = [&](std::int32_t id) { return stop(id) || tokenizer.is_special(id); };
  const std::int32_t last = exchange.answer.back();
  if (stop(last)) return {.token = last, .learned = true};
  const auto rest = std::span(document.input_ids).subspan(exchange.prompt.size() + exchange.answer.size());
  const auto behind = rest.first(std::min(near, rest.size()));
  const auto found = std::ranges::find_if(behind, may_end);
  const bool found_near = found != behind.end();
  if (tokenizer.is_special(last) && !(found_near && stop(*found))) return {.token = last, .learned = true};
  if (found_near) return {.token = *found, .learned = false};
  const auto far = std::ranges::find_if(rest, stop);
  if (far != rest.end()) return {.token = *far, .learned = false};
  return {.token = stops.front(), .learned = true};
}

// The document with another answer, up to the token that ends it.
Document with_answer(const Document& document, std::size_t prompt, const std::vector<std::int32_t>& answer,
                     const AnswerEnd& end) {
  Document result = document;
  truncate(result, prompt);
  for (std::vector<std::int32_t>* to : {&result.input_ids, &result.labels}) {
    to->insert(to->end(), answer.begin(), answer.end());
  }
  result.input_ids.push_back(end.token);
  result.labels.push_back(end.learned ? end.token : ignore_label);
  if (!document.weights.empty()) result.weights.resize(result.labels.size(), document.weights[prompt]);
  return result;
}

class Rewriting {
 public:
  Rewriting(const options::TrainOptions& options, const model::ModelConfig& config, Console& console)
      : options_(options), config_(config), console_(console), rewriter_(options) {}

  std::shared_ptr<const data::Corpus> corpus(const data::Documents& documents) {
    data::ReadContext context;
    context.vocab = config_.vocab;
    context.waiting = [] { stop_where_asked("waiting for rewritten answers"); };
    context.notice = [&](const std::string& message) { console_.line("sdft: " + message); };
    const fs::path kept = kept_path(documents);
    const auto shared = [](data::Corpus corpus) { return std::make_shared<const data::Corpus>(std::move(corpus)); };
    if (!kept.empty()) {
      const io::TurnLock turn = data::turn_to_prepare(kept, "the same answers", context);
      if (auto known = data::open_prepared(kept, context)) {
        console_.line(fmt::format("sdft: rewritten answers from {}", kept.string()));
        return shared(*std::move(known));
      }
      const std::vector<Document> rewritten = all(documents);
      try {
        data::Corpus corpus = built(rewritten, data::Corpus::Builder(kept));
        data::note_as_verified(corpus, kept);
        return shared(std::move(corpus));
      } catch (const data::Corpus::Builder::CannotKeep& reason) {
        console_.line(fmt::format("sdft: {}; answers are rewritten again next time", reason.message));
        return shared(built(rewritten, data::Corpus::Builder::in_memory("rewritten answers")));
      }
    }
    return shared(built(all(documents), data::Corpus::Builder::in_memory("rewritten answers")));
  }

 private:
  static data::Corpus built(const std::vector<Document>& documents, data::Corpus::Builder builder) {
    for (const Document& document : documents) builder.add(document);
    return std::move(builder).finish({.rows = static_cast<std::int64_t>(documents.size())});
  }

  // Its name says everything that the answers depend on.
  fs::path kept_path(const data::Documents& documents) const {
    const fs::path folder = prepared_folder(options_.dataset_prepared_path);
    if (folder.empty()) return {};
    const options::SdftOptions& sdft = options_.sdft;
    const Machine machine = resolve_machine(options_.device, options_.dtype);
    std::string key = fmt::format("{} {:016x} {} {} {} {} {} {} {} {} {}", documents.fingerprint(),
                                  io::Checkpoint(options_.base_model).content_hash(), name_of(machine.device),
                                  name_of(machine.compute), options::value_text(options_, "sdft.match"), sdft.marker,
                                  sdft.max_new_tokens, sdft.temperature, sdft.top_p, fmt::join(rewriter_.stops(), ","),
                                  reading_fingerprint(options_));
    for (const char* option : {"attention.mask", "attention.score", "attention.head_bias"}) {
      key += " " + options::value_text(options_, option);
    }
    std::vector<fs::path> files = {fs::path(options_.base_model) / "config.json"};  // how the model computes
    if (const fs::path begun = options_.adapter.model_dir; !begun.empty()) {
      files.insert(files.end(), {begun / adapter::config_file, begun / adapter::tensors_file});
    }
    for (const fs::path& file : files) {
      key += fmt::format(" {:016x}", io::content_hash(io::MappedFile(file).bytes()));
    }
    return folder / fmt::format("sdft-{:016x}.tokens", io::content_hash(std::as_bytes(std::span(key))));
  }

  std::vector<Document> all(const data::Documents& documents) {
    check_any_asked(documents, options_.answer_writing());
    std::vector<ShownDocument> shown = apart(documents);
    std::size_t asked = 0, longest = 0;
    for (const ShownDocument& each : shown) {
      if (!Rewriter::asks(each, options_.answer_writing())) continue;
      ++asked;
      longest = std::max(longest, each.prompt.size());
    }
    const auto engine = make_engine(asked, static_cast<std::int64_t>(longest) + options_.sdft.max_new_tokens);
    constexpr auto any = std::numeric_limits<std::int64_t>::max();
    const std::int64_t rewritten = rewriter_.rewrite(shown, *engine, any, 0, console_);
    console_.line(fmt::format("sdft: {} of {} answers are in the model's own words", format_count(rewritten),
                              format_count(std::ssize(shown))));
    std::vector<Document> result;
    for (ShownDocument& each : shown) result.push_back(std::move(each.document));
    return result;
  }

  std::unique_ptr<Engine> make_engine(std::size_t answers, std::int64_t most) const {
    EngineOptions engine = engine_options(Purpose::generation, resolve_machine(options_.device, options_.dtype),
                                          {.tokens = most, .document = most});
    plan_answers(engine, config_, answers, most);
    return load_engine(options_.base_model, config_, engine, console_, options_.adapter.model_dir);
  }

  const options::TrainOptions& options_;
  const model::ModelConfig& config_;
  Console& console_;
  Rewriter rewriter_;
};

}  // namespace

ShownDocument apart(Document document) {
  const auto mark = std::ranges::find(document.labels, sequence_mark(SequenceRole::shown));
  const auto length = mark - document.labels.begin();
  ShownDocument result;
  result.prompt.assign(document.input_ids.begin() + length, document.input_ids.end());
  truncate(document, static_cast<std::size_t>(length));
  result.document = std::move(document);
  return result;
}

Rewriter::Rewriter(const options::TrainOptions& options)
    : options_(options),
      writing_(options.answer_writing()),
      tokenizer_(data::Tokenizer::load(options.base_model)),
      stops_(data::stop_tokens(options.base_model, tokenizer_)) {
  const auto add = [&](const std::vector<std::string>& tokens) {
    for (const std::string& token : tokens) {
      if (const auto id = tokenizer_.find_id(token)) stops_.push_back(*id);
    }
  };
  add(options.eot_tokens);
  for (const data::DatasetOptions& dataset : options.datasets) add(dataset.format.eot_tokens);
  if (stops_.empty()) {
    user_error("{}: {} names no token that ends an answer (eos_token in tokenizer_config.json)", writing_.key,
               options.base_model);
  }
}

struct Rewriter::Asked {
  ShownDocument& shown;
  std::vector<std::int32_t> prompt, answer;  // of the document: before its answer, and the data's own
  AnswerEnd end;
};

std::vector<Rewriter::Asked> Rewriter::asked(std::vector<ShownDocument>& documents) const {
  std::vector<Asked> result;
  for (ShownDocument& shown : documents) {
    if (!asks(shown, writing_)) continue;
    data::Exchange exchange = *data::last_exchange(shown.document);
    const AnswerEnd end = end_of(shown.document, exchange, stops_, tokenizer_);
    result.push_back({shown, std::move(exchange.prompt), std::move(exchange.answer), end});
  }
  return result;
}

std::vector<std::vector<std::int32_t>> Rewriter::answers(const std::vector<Asked>& asked,
                                                         const std::vector<std::vector<std::int32_t>>& prompts,
                                                         Engine& engine, std::uint64_t seed, Console& console) const {
  std::vector<std::int32_t> stops = stops_;  // and what ends these answers
  for (const Asked& each : asked) {
    if (std::ranges::find(stops, each.end.token) == stops.end()) stops.push_back(each.end.token);
  }
  return answer_all(engine, prompts,
                    {.count = writing_.max_new_tokens,
                     .stops = stops,
                     .drawing = {.temperature = static_cast<float>(writing_.temperature),
                                 .top_p = static_cast<float>(writing_.top_p),
                                 .seed = seed}},
                    console);
}

std::int64_t Rewriter::rewrite(std::vector<ShownDocument>& documents, Engine& engine, std::int64_t longest,
                               std::uint64_t seed, Console& console) const {
  std::vector<Asked> asking = asked(documents);
  if (asking.empty()) return 0;
  std::vector<std::vector<std::int32_t>> prompts;
  for (Asked& each : asking) prompts.push_back(std::move(each.shown.prompt));  // there may be many: one copy is enough
  const auto said = answers(asking, prompts, engine, seed, console);
  std::int64_t rewritten = 0;
  for (std::size_t i = 0; i < asking.size(); ++i) {
    auto& [shown, prompt, right, end] = asking[i];
    const std::size_t length = prompt.size() + said[i].size() + 1;
    if (static_cast<std::int64_t>(length) > longest) continue;
    if (right.back() == end.token) right.pop_back();
    if (!is_good(said[i], right)) continue;
    shown.document = with_answer(shown.document, prompt.size(), said[i], end);
    ++rewritten;
  }
  return rewritten;
}

void Rewriter::respond(std::vector<ShownDocument>& documents, Engine& engine, std::int64_t longest, std::uint64_t seed,
                       Console& console) const {
  const std::vector<Asked> asking = asked(documents);
  INLAY_ASSERT(asking.size() == documents.size(), "{} of {} documents ask", asking.size(), documents.size());
  std::vector<std::vector<std::int32_t>> prompts;
  for (const Asked& each : asking) prompts.push_back(each.prompt);
  const auto said = answers(asking, prompts, engine, seed, console);
  for (std::size_t i = 0; i < asking.size(); ++i) {
    const auto& [shown, prompt, right, end] = asking[i];
    // Where nothing was said, that it ended is all there is to predict.
    const bool learned = end.learned || said[i].empty();
    Document document = with_answer(shown.document, prompt.size(), said[i], {end.token, learned});
    std::int64_t most = longest;
    if (!ended(said[i])) most = std::min(most, std::ssize(document.input_ids) - 1);  // nothing ended it
    truncate(document, static_cast<std::size_t>(most));
    // Earlier turns are what was said before: the prompt that shows the answer has them in its own words.
    std::fill_n(document.labels.begin(), prompt.size(), ignore_label);
    document.others_prompt = std::move(shown.prompt);
    shown.document = std::move(document);
  }
}

// Within max_new_tokens.
bool Rewriter::ended(const std::vector<std::int32_t>& answer) const {
  return std::ssize(answer) < writing_.max_new_tokens;
}

// It came to an end, and says what the data's answer says.
bool Rewriter::is_good(const std::vector<std::int32_t>& answer, const std::vector<std::int32_t>& right) const {
  const options::SdftOptions& sdft = options_.sdft;
  if (answer.empty() || !ended(answer)) return false;
  if (!sdft.match) return true;
  const auto end = std::ranges::find_first_of(right, stops_);
  return data::agrees(tokenizer_.decode(answer), tokenizer_.decode(std::span(right.begin(), end)),
                      {.match = *sdft.match, .marker = sdft.marker});
}

void check_shared_answers(const options::TrainOptions& options, int processes) {
  if (!options.sdft.enabled || options.sdft.on_policy || processes == 1) return;
  if (!prepared_folder(options.dataset_prepared_path).empty()) return;
  user_error(
      "sdft: {} processes share the answers that the model writes through a folder, and there is none; set "
      "dataset_prepared_path to one that all of them can reach",
      processes);
}

RunData read_rewritten(const options::TrainOptions& options, const model::ModelConfig& config, Console& console) {
  const RunData read = read_run_data(options, config.vocab, console, true);
  RunData result{.test = without_prompts(read.test)};
  result.train.add(Rewriting(options, config, console).corpus(read.train));
  return result;
}

RunData read_to_rewrite(const options::TrainOptions& options, std::int64_t vocab, Console& console) {
  const options::AnswerWriting writing = options.answer_writing();
  RunData read = read_run_data(options, vocab, console, writing.shown);
  check_any_asked(read.train, writing);
  if (writing.predictions) keep_what_asks(read.train, writing, options.sequence_len, console);
  return {.train = without_prompts(read.train), .test = without_prompts(read.test), .shown = std::move(read.train)};
}

}  // namespace inlay::train
