#include "model/decoding.h"
#include "model/rope_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "support/device_tensors.h"
#include "support/fixtures.h"
#include "support/thread_ranks.h"

// Decoding over cached keys and values against the whole sequence at once, and against transformers.
namespace inlay::testing {
namespace {

constexpr std::int64_t longest = 40;  // tokens; windows are of 6 and 9

class ModelDecoding : public ::testing::TestWithParam<FixtureCase> {
 protected:
  std::unique_ptr<train::Engine> engine(const Fixture& fixture, DType compute, std::int64_t sequences) const {
    return fixture.engine({.device = GetParam().device,
                           .compute = compute,
                           .training = false,
                           .max_tokens = sequences * longest,
                           .max_document = longest,
                           .logit_rows = sequences * longest,
                           .decode_sequences = sequences,
                           .decode_length = longest});
  }
};

Document document_of(const std::vector<std::int32_t>& ids) { return {.input_ids = ids, .labels = ids}; }

// Logits of every position of every document, from one pass over all of them.
std::vector<double> whole_logits(train::Engine& engine, const std::vector<Document>& documents) {
  const PackedBatch batch = pack(documents);
  std::vector<std::int32_t> rows;
  for (std::int32_t i = 0; i < batch.token_count(); ++i) rows.push_back(i);
  const auto values = engine.decoder().logits(engine.exec(), batch, rows);
  return {values.begin(), values.end()};
}

// The same step by step; the documents are of one length.
std::vector<double> step_logits(train::Engine& engine, const std::vector<Document>& documents) {
  backend::Exec& exec = engine.exec();
  model::Decoder& decoder = engine.decoder();
  const auto sequences = static_cast<std::int64_t>(documents.size());
  const auto length = static_cast<std::int64_t>(documents[0].input_ids.size()), vocab = decoder.config().vocab;
  // Where long texts rotate otherwise, all of one does, from its first token on.
  const std::int64_t long_texts = model::long_row(decoder.config().rope);
  const model::KvCache cache(exec, decoder.config(), decoder.options().compute, sequences, length,
                             length > long_texts ? long_texts : 0);
  const auto keep = [&](std::string_view name) {
    return exec.arena().keep(MemoryClass::batch, name, DType::i32, {sequences});
  };
  const View ids = keep("ids"), numbers = keep("sequences"), positions = keep("positions");
  std::vector<std::int32_t> order(documents.size());
  std::iota(order.begin(), order.end(), 0);
  exec.upload(numbers, order.data());
  const backend::ScratchScope scope(exec.arena());
  const View logits = exec.arena().scratch("logits", DType::f32, {sequences, vocab});
  std::vector<double> result(static_cast<std::size_t>(sequences * length * vocab));
  for (std::int64_t position = 0; position < length; ++position) {
    std::vector<std::int32_t> tokens;
    for (const Document& d : documents) tokens.push_back(d.input_ids[static_cast<std::size_t>(position)]);
    exec.upload(ids, tokens.data());
    exec.upload(positions, std::vector(documents.size(), static_cast<std::int32_t>(position)).data());
    decoder.decode(exec, logits, {ids, {numbers, positions}}, cache);
    std::vector<float> values(static_cast<std::size_t>(logits.size()));
    exec.download(values.data(), logits);
    for (std::int64_t s = 0; s < sequences; ++s) {
      std::copy_n(values.begin() + s * vocab, vocab, result.begin() + (s * length + position) * vocab);
    }
  }
  return result;
}

std::vector<Document> random_documents(std::int64_t count, std::int64_t length, std::int64_t vocab) {
  std::vector<Document> documents;
  for (std::int64_t d = 0; d < count; ++d) {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < length; ++i) {
      ids.push_back(static_cast<std::int32_t>(random_below(
          Philox{8}, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(d), static_cast<std::uint64_t>(vocab))));
    }
    documents.push_back(document_of(ids));
  }
  return documents;
}

TEST_P(ModelDecoding, StepsGiveTheLogitsOfTheWholeSequence) {
  const Fixture fixture(GetParam().folder);
  const auto engine = this->engine(fixture, DType::f32, 3);
  const auto documents = random_documents(3, longest - 1, fixture.config.vocab);
  // As close as inlay is to PyTorch in fp32: sums in another order.
  EXPECT_LE(relative_error(step_logits(*engine, documents), whole_logits(*engine, documents)), 1e-5);
}

TEST_P(ModelDecoding, StepsGiveTransformersLogits) {
  const Fixture fixture(GetParam().folder);
  for (const DType compute : {DType::f32, DType::bf16}) {
    if (compute == DType::bf16 && !fixture.expected.contains("bf16")) continue;
    const auto engine = this->engine(fixture, compute, 1);
    // In bf16 twice PyTorch's own error, as in the tests of the forward pass.
    const auto allowed = [&](const std::string& key) {
      if (compute == DType::f32) return 1e-5;
      const auto& theirs = fixture.expected.at("bf16");
      return 2.0 * std::max(theirs.at("logits").get<double>(), theirs.at(key).get<double>()) + 1e-4;
    };
    for (std::size_t d = 0; d < fixture.documents.size(); ++d) {
      const std::string key = "logits." + std::to_string(d);
      EXPECT_LE(relative_error(step_logits(*engine, {fixture.documents[d]}), fixture.tensor(key)), allowed(key)) << key;
    }
  }
}

TEST_P(ModelDecoding, GreedySamplesAreTheLikeliestTokens) {
  const Fixture fixture(GetParam().folder);
  const auto engine = this->engine(fixture, DType::f32, 2);
  for (const std::int32_t start : {0, 1, 5}) {
    const auto texts = model::sample(engine->exec(), engine->decoder(),
                                     {.sequences = 2, .length = longest, .start_token = start, .temperature = 0.0f});
    ASSERT_EQ(texts.size(), 2u);
    EXPECT_EQ(texts[0], texts[1]);
    ASSERT_EQ(texts[0].size(), static_cast<std::size_t>(longest));
    EXPECT_EQ(texts[0][0], start);
    const auto whole = whole_logits(*engine, {document_of(texts[0])});
    const auto vocab = fixture.config.vocab;
    const std::int64_t long_texts = model::long_row(fixture.config.rope);
    for (std::int64_t position = 0; position + 1 < longest; ++position) {
      // A text that was short when a token was made rotated otherwise than the whole.
      const bool was_short = position + 1 <= long_texts && longest > long_texts;
      const auto logits =
          was_short ? whole_logits(*engine, {document_of({texts[0].begin(), texts[0].begin() + position + 1})}) : whole;
      const auto row = logits.begin() + position * vocab;
      EXPECT_EQ(std::max_element(row, row + vocab) - row, texts[0][static_cast<std::size_t>(position) + 1]) << position;
    }
  }
}

// Texts of different lengths, more tokens than pass at once among them, go on together as each does alone.
TEST_P(ModelDecoding, PromptsOfAnyLengthsGoOnTogether) {
  const Fixture fixture(GetParam().folder);
  const std::int64_t capacity = 200, count = 6;
  if (model::long_row(fixture.config.rope) > 0) return;  // then a text's length decides how it rotates
  const auto engine = fixture.engine({.device = GetParam().device,
                                      .compute = DType::f32,
                                      .training = false,
                                      .max_document = capacity,
                                      .decode_sequences = 4,
                                      .decode_length = capacity});
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::int64_t length : {3, 190, 1, 40}) {
    prompts.push_back(random_documents(1, length, fixture.config.vocab)[0].input_ids);
  }
  const model::WritingOptions options = {.count = count};
  const auto together = model::continue_texts(engine->exec(), engine->decoder(), prompts, options);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto alone = model::continue_texts(engine->exec(), engine->decoder(), std::span(&prompts[i], 1), options);
    EXPECT_EQ(alone[0], together[i]) << i;
    EXPECT_EQ(alone[0].size(), static_cast<std::size_t>(count));
  }
}

// What is given in two parts, with something in between that is taken back, is what is given at once.
TEST_P(ModelDecoding, ATextGoesOnFromWhereItWasTakenBackTo) {
  const Fixture fixture(GetParam().folder);
  if (model::long_row(fixture.config.rope) > 0) return;
  const auto engine = this->engine(fixture, DType::f32, 1);
  backend::Exec& exec = engine->exec();
  const auto ids = random_documents(1, 20, fixture.config.vocab)[0].input_ids;
  using Texts = std::vector<std::vector<std::int32_t>>;
  const auto draw = [&](model::Continuation& text, int count) {
    std::vector<std::int32_t> made;
    for (int i = 0; i < count; ++i) made.push_back(text.next(exec, {})[0]);
    return made;
  };
  std::vector<std::int32_t> expected;
  {
    model::Continuation text(exec, engine->decoder(), 1, longest - 1);
    text.give(exec, Texts{ids});
    expected = draw(text, 8);
  }
  model::Continuation text(exec, engine->decoder(), 1, longest - 1);
  text.give(exec, Texts{{ids.begin(), ids.begin() + 12}});
  draw(text, 9);
  EXPECT_EQ(text.text(0).size(), 20u) << "what was drawn last has not joined";
  text.rewind(0, 12);
  text.give(exec, Texts{{ids.begin() + 12, ids.end()}});
  EXPECT_EQ(text.text(0), ids);
  EXPECT_EQ(draw(text, 8), expected);
}

// A text that the model writes by itself is written under the model's own rule.
TEST_P(ModelDecoding, SamplesFollowTheRuleOfAttention) {
  Fixture fixture(GetParam().folder);
  fixture.config.attention.mask = "causal and (q - k) % 3 != 2";
  const auto engine = this->engine(fixture, DType::f32, 2);
  const auto texts = model::sample(engine->exec(), engine->decoder(),
                                   {.sequences = 2, .length = longest, .start_token = 1, .temperature = 0.0f});
  const auto logits = whole_logits(*engine, {document_of(texts[1])});
  const auto vocab = fixture.config.vocab;
  for (std::int64_t position = 0; position + 1 < longest; ++position) {
    const auto row = logits.begin() + position * vocab;
    EXPECT_EQ(std::max_element(row, row + vocab) - row, texts[1][static_cast<std::size_t>(position) + 1]) << position;
  }
}

// Prompts that are longer than what passes at once, beside others that share a pass.
TEST_P(ModelDecoding, LongPromptsPassInChunks) {
  const Fixture fixture(GetParam().folder);
  if (model::long_row(fixture.config.rope) > 0 || !fixture.config.attention.mask.empty()) return;
  const std::int64_t chunk = GetParam().device == Device::cuda ? 8192 : 1024, capacity = chunk + 210;
  const auto engine = fixture.engine({.device = GetParam().device,
                                      .compute = DType::f32,
                                      .training = false,
                                      .max_tokens = capacity,
                                      .max_document = capacity,
                                      .decode_sequences = 5,
                                      .decode_length = capacity});
  backend::Exec& exec = engine->exec();
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::int64_t length : {chunk + 200, std::int64_t{3}, chunk - 3, std::int64_t{1}, chunk}) {
    prompts.push_back(random_documents(1, length, fixture.config.vocab)[0].input_ids);
  }
  const auto together = model::continue_texts(exec, engine->decoder(), prompts, {.count = 2});
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    std::vector<std::int32_t> text = prompts[i];
    for (const std::int32_t made : together[i]) {
      const std::vector<Document> whole = {document_of(text)};
      const PackedBatch batch = pack(whole);
      const auto logits = engine->decoder().logits(exec, batch, {static_cast<std::int32_t>(batch.token_count() - 1)});
      EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), made) << i;
      text.push_back(made);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, ModelDecoding, ::testing::ValuesIn(fixture_cases()), fixture_case_name);

class ModelSampling : public ::testing::TestWithParam<Device> {
 protected:
  ModelSampling() : fixture_(model_fixtures().front()) {}

  std::unique_ptr<train::Engine> engine() const {
    return fixture_.engine(
        {.device = GetParam(), .training = false, .decode_sequences = sequences, .decode_length = longest});
  }

  static constexpr std::int64_t sequences = 12;
  Fixture fixture_;
};

TEST_P(ModelSampling, ASeedIsAText) {
  const auto engine = this->engine();
  const model::SamplingOptions options = {.sequences = sequences, .length = longest, .start_token = 1, .seed = 3};
  std::int64_t calls = 0;
  const auto texts =
      model::sample(engine->exec(), engine->decoder(), options, [&](std::int64_t done, std::int64_t all) {
        EXPECT_EQ(done, ++calls);
        EXPECT_EQ(all, longest - 1);
      });
  EXPECT_EQ(calls, longest - 1);
  EXPECT_EQ(std::set(texts.begin(), texts.end()).size(), static_cast<std::size_t>(sequences)) << "all differ";
  EXPECT_EQ(model::sample(engine->exec(), engine->decoder(), options), texts);

  // The same sequences in two calls. A batch of another size may sum in another order: that can tip a token only where
  // two all but tie, which these do not.
  model::SamplingOptions part = options;
  part.sequences = 5;
  part.first_sequence = 7;
  const auto rest = model::sample(engine->exec(), engine->decoder(), part);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), texts.begin() + 7));
  model::SamplingOptions other = options;
  other.seed = 4;
  EXPECT_NE(model::sample(engine->exec(), engine->decoder(), other), texts);
}

TEST_P(ModelSampling, AStopTokenEndsASequence) {
  const auto engine = this->engine();
  model::SamplingOptions options = {.sequences = sequences, .length = longest, .start_token = 1, .seed = 3};
  const auto whole = model::sample(engine->exec(), engine->decoder(), options);
  // The start token as the stop token: it does not stop where it starts.
  for (const std::int32_t stop : {whole[0][1], whole[0][20], whole[0].back(), std::int32_t{1}}) {
    options.stop_token = stop;
    const auto cut = model::sample(engine->exec(), engine->decoder(), options);
    for (std::size_t s = 0; s < whole.size(); ++s) {
      const auto found = std::find(whole[s].begin() + 1, whole[s].end(), stop);
      EXPECT_EQ(cut[s], std::vector<std::int32_t>(whole[s].begin(), found == whole[s].end() ? found : found + 1));
    }
  }
  // Nobody is left: no further steps.
  options.sequences = 1;
  options.stop_token = whole[0][1];
  std::int64_t steps = 0;
  model::sample(engine->exec(), engine->decoder(), options, [&](std::int64_t, std::int64_t) { ++steps; });
  EXPECT_LT(steps, longest - 1);
}

// Ranks that would draw different tokens, as hosts that round differently do: seeds make them differ at once.
TEST_P(ModelSampling, RanksWriteWhatTheFirstOfThemDraws) {
  if (GetParam() != Device::cpu) GTEST_SKIP() << "ranks are threads, which exchange host memory";
  const std::vector<std::vector<std::int32_t>> prompts = {{1, 5, 9}, {7}, {2, 3}};
  const auto drawing = [](int rank) {
    return model::Drawing{.temperature = 1.0f, .seed = static_cast<std::uint64_t>(rank)};
  };
  const auto first = this->engine();
  model::WritingOptions writing = {.count = 20, .drawing = drawing(0)};
  const auto whole = model::continue_texts(first->exec(), first->decoder(), prompts, writing);
  writing.stops = {whole[0][11], whole[1][3], whole[2][7]};
  const auto alone = model::continue_texts(first->exec(), first->decoder(), prompts, writing);
  run_ranks(3, [&](const std::shared_ptr<parallel::Communicator>& ranks) {
    const auto engine = this->engine();
    model::WritingOptions mine = writing;
    mine.drawing = drawing(ranks->rank());
    mine.ranks = ranks.get();
    std::int64_t steps = 0;
    mine.progress = [&](std::int64_t, std::int64_t) { ++steps; };
    EXPECT_EQ(model::continue_texts(engine->exec(), engine->decoder(), prompts, mine), alone);
    EXPECT_LE(steps, 12);
    // And what was drawn elsewhere is what the next tokens follow from.
    model::Continuation text(engine->exec(), engine->decoder(), 1, longest);
    text.give(engine->exec(), {{{1, 5, 9}}});
    std::vector<std::int32_t> sofar = {1, 5, 9};
    for (int i = 0; i < 4; ++i) sofar.push_back(text.next(engine->exec(), drawing(ranks->rank()), *ranks)[0]);
    const std::int32_t likeliest = text.next(engine->exec(), {})[0];
    const auto expected = model::continue_texts(engine->exec(), engine->decoder(), {{sofar}}, {.count = 1});
    EXPECT_EQ(likeliest, expected[0][0]);
  });
}

TEST_P(ModelSampling, TakesWhatThePlanSays) {
  const auto peak_of = [](const std::vector<PhasePeak>& phases) {
    for (const PhasePeak& peak : phases) {
      if (peak.phase == "sampling") return peak.bytes;
    }
    return std::size_t{0};
  };
  for (const auto& folder : model_fixtures()) {
    const Fixture fixture(folder);
    const train::EngineOptions options = {
        .device = GetParam(), .training = false, .decode_sequences = sequences, .decode_length = longest};
    const auto engine = train::Engine::create(fixture.config, options);
    engine->load(io::Checkpoint(fixture.folder));
    const std::size_t used = engine->exec().arena().used();
    {  // as much as fits, given at once, and after something that is there
      backend::Exec& exec = engine->exec();
      exec.arena().begin_phase("sampling");
      const auto texts = [](std::int64_t length) {
        return std::vector<std::vector<std::int32_t>>(sequences, std::vector<std::int32_t>(length));
      };
      model::Continuation continuation(exec, engine->decoder(), sequences, longest, longest - 1);
      continuation.give(exec, texts(longest));
      for (std::size_t s = 0; s < sequences; ++s) continuation.rewind(s, longest / 2);
      continuation.give(exec, texts(longest / 2 - 1));
      continuation.next(exec, {});
      continuation.next(exec, {});
    }
    EXPECT_EQ(engine->exec().arena().used(), used) << "all is given back";
    EXPECT_EQ(peak_of(engine->exec().arena().phases()), peak_of(train::Engine::plan(fixture.config, options).phases));
    EXPECT_GT(peak_of(engine->exec().arena().phases()), used);
  }
}

INSTANTIATE_TEST_SUITE_P(, ModelSampling, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::testing
