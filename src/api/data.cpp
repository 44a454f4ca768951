#include <inlay/data.h>

#include <limits>

#include <yaml-cpp/yaml.h>

#include "core/error.h"
#include "data/dataset.h"
#include "io/paths.h"
#include "model/families/family.h"
#include "options/train_options.h"

namespace inlay {

struct Dataset::Parts {
  std::shared_ptr<const data::Corpus> corpus;
};

namespace {

// By the same table of keys as an entry of `datasets`.
data::DatasetOptions dataset_options(const std::string& path, const Dataset::Options& options) {
  YAML::Node entry;
  try {
    if (!options.format.empty()) entry = YAML::Load(options.format);
  } catch (const YAML::Exception& error) {
    user_error("{}: format: not valid YAML: {}", path, error.msg);
  }
  if (!entry.IsMap() && !entry.IsNull()) user_error("{}: format: expected keys and values", path);
  entry["path"] = path;
  YAML::Node root;
  root["base_model"] = options.model.empty() ? "none" : options.model;
  root["output_dir"] = "none";
  root["learning_rate"] = 1;
  root["datasets"].push_back(entry);
  return options::parse_options(root, path, {}).datasets.front();
}

// The model's; where there is nothing but a tokenizer, that one's.
std::int64_t vocab_of(const std::string& model) {
  if (model.empty()) return std::numeric_limits<std::int32_t>::max();
  if (io::exists(std::filesystem::path(model) / "config.json")) return model::load_config(model).vocab;
  return data::Tokenizer::load(model).vocab_size();
}

const data::Corpus& checked(const data::Corpus& corpus, std::int64_t index) {
  if (index < 0 || index >= corpus.size()) {
    user_error("document {}: there are {}, counted from 0", index, corpus.size());
  }
  return corpus;
}

}  // namespace

Dataset::Dataset(const std::string& path, const Options& options) {
  data::ReadContext context;
  context.model = options.model;
  context.vocab = vocab_of(options.model);
  context.bad_row = options.skip_bad_rows ? data::BadRow::skip : data::BadRow::raise;
  context.threads = options.threads;
  parts_ = std::make_shared<const Parts>(Parts{data::read_dataset(dataset_options(path, options), context)});
}

std::int64_t Dataset::size() const { return parts_->corpus->size(); }
std::int64_t Dataset::length(std::int64_t index) const { return checked(*parts_->corpus, index).length(index); }

TrainingDocument Dataset::read(std::int64_t index) const {
  Document document = checked(*parts_->corpus, index).read(index);
  return {std::move(document.input_ids), std::move(document.labels), std::move(document.weights)};
}

Dataset::Rows Dataset::rows() const {
  const data::RowCounts& counts = parts_->corpus->counts();
  return {.all = counts.rows, .skipped = counts.skipped, .unlabelled = counts.unlabelled};
}

}  // namespace inlay
