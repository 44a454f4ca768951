#include "data/formats/kept.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace inlay::data {
namespace {

struct Entry {
  std::int64_t id;
  float log_prob;
};

std::int64_t id_of(const Row& row) {
  if (const io::Integer* integer = row.value().integer()) return static_cast<std::int64_t>(*integer);
  const std::string& text = row.text();
  const std::size_t colon = text.find(':');
  std::int64_t id = -1;
  const char *begin = text.data() + (colon == text.npos ? 0 : colon + 1), *end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(begin, end, id);
  if (error != std::errc() || rest != end) row.fail_expected("\"token_id:NUMBER\"");
  return id;
}

}  // namespace

KeptPredictions read_kept(const Row& row, const std::string& field, std::size_t tokens, std::int64_t vocab) {
  if (!row.find(field)) {
    row.fail(
        fmt::format("has no {}; kd_trainer: true without a kd_teacher learns the log-probabilities that the data "
                    "has: name a kd_teacher, or a dataset with them",
                    field));
  }
  const Row log_probs = row.at(field, "a list of log-probabilities for each token");
  const std::vector<Row> positions = log_probs.elements();
  const auto ids = row.find("target_token_ids");
  const std::vector<Row> id_positions = ids ? ids->elements() : std::vector<Row>{};
  if (ids && id_positions.size() != positions.size()) {
    ids->fail(fmt::format("has {} entries for {} of {}", id_positions.size(), positions.size(), field));
  }
  if (positions.size() > tokens) {
    log_probs.fail(fmt::format("has {} entries for {} tokens", positions.size(), tokens));
  }
  std::vector<std::vector<Entry>> found;
  std::size_t most = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    std::vector<Entry>& entries = found.emplace_back();
    if (positions[i].value().is_null()) continue;
    const std::vector<Row> values = positions[i].elements();
    const std::vector<Row> value_ids = ids ? id_positions[i].elements() : std::vector<Row>{};
    if (ids && value_ids.size() != values.size())
      id_positions[i].fail("has a different length from the log-probabilities");
    for (std::size_t k = 0; k < values.size(); ++k) {
      const Row id = ids ? value_ids[k] : values[k].at("token", "\"token_id:NUMBER\"");
      const Row log_prob = ids ? values[k] : values[k].at("logprob", "a number");
      entries.push_back({id_of(id), static_cast<float>(log_prob.number())});
      if (entries.back().id < 0 || entries.back().id >= vocab) {
        id.fail(fmt::format("token id {} is outside the model's vocabulary, 0 to {}", entries.back().id, vocab - 1));
      }
    }
    most = std::max(most, entries.size());
  }
  if (most == 0) log_probs.fail("holds no log-probabilities");
  KeptPredictions kept{.per_token = static_cast<std::int64_t>(most)};
  kept.ids.assign(tokens * most, -1);
  kept.log_probs.assign(tokens * most, 0.0f);
  const std::size_t first = tokens - positions.size();
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (std::size_t k = 0; k < found[i].size(); ++k) {
      kept.ids[(first + i) * most + k] = static_cast<std::int32_t>(found[i][k].id);
      kept.log_probs[(first + i) * most + k] = found[i][k].log_prob;
    }
  }
  return kept;
}

}  // namespace inlay::data
