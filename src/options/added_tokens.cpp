#include "options/added_tokens.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "core/cache.h"
#include "core/dtype.h"
#include "core/error.h"
#include "data/tokenizer/tokenizer.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"
#include "io/safetensors_writer.h"
#include "model/families/family.h"

namespace inlay::options {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* grown_file = "model-grown.safetensors";

Json read_json(const fs::path& file) {
  io::Json::read(file);  // says what is wrong with it
  return Json::parse(io::read_file(file, io::Json::max_file_bytes));
}

void write_json(const fs::path& file, const Json& json) { io::write_file_atomic(file, json.dump(2) + "\n"); }

// The tokens that a tokenizer gets, from which id on, and which of them are special.
struct NewTokens {
  std::vector<std::pair<std::string, bool>> tokens;
  std::int64_t first = 0;

  std::int64_t end() const { return first + static_cast<std::int64_t>(tokens.size()); }
};

NewTokens new_tokens(const fs::path& base, const TokenChanges& changes) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(base);
  NewTokens result;
  result.first = tokenizer.vocab_size();
  const auto add = [&](const std::string& token, bool special) {
    const auto is_it = [&](const auto& known) { return known.first == token; };
    if (tokenizer.find_id(token) || std::ranges::any_of(result.tokens, is_it)) return;
    result.tokens.emplace_back(token, special);
  };
  for (const auto& [name, token] : changes.special) add(token, true);
  for (const std::string& token : changes.added) add(token, false);
  return result;
}

Json added_token(const std::string& text, bool special) {
  return {{"content", text}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false},  {"special", special}};
}

void write_tokenizer(const fs::path& base, const fs::path& folder, const TokenChanges& changes,
                     const NewTokens& added) {
  Json tokenizer = read_json(base / "tokenizer.json");
  const fs::path config_file = base / "tokenizer_config.json", map_file = base / "special_tokens_map.json";
  Json config = io::exists(config_file) ? read_json(config_file) : Json::object();
  for (std::size_t i = 0; i < added.tokens.size(); ++i) {
    const auto& [text, special] = added.tokens[i];
    const std::int64_t id = added.first + static_cast<std::int64_t>(i);
    Json entry = {{"id", id}};
    entry.update(added_token(text, special));
    tokenizer["added_tokens"].push_back(entry);
    if (config.contains("added_tokens_decoder")) {
      config["added_tokens_decoder"][std::to_string(id)] = added_token(text, special);
    }
  }
  for (const auto& [name, token] : changes.special) config[name] = token;
  write_json(folder / "tokenizer.json", tokenizer);
  write_json(folder / "tokenizer_config.json", config);
  if (!io::exists(map_file)) return;
  Json map = read_json(map_file);
  for (const auto& [name, token] : changes.special) map[name] = token;
  write_json(folder / "special_tokens_map.json", map);
}

// The ids of special tokens stand in the model's configuration as well.
void write_config(const fs::path& base, const fs::path& folder, const TokenChanges& changes, std::int64_t vocab) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(folder);
  for (const char* name : {"config.json", "generation_config.json"}) {
    if (!io::exists(base / name)) continue;
    Json whole = read_json(base / name);
    // A model with images says it of its text model.
    Json& config = whole.contains("text_config") ? whole["text_config"] : whole;
    for (const char* token : {"bos_token", "eos_token", "pad_token"}) {
      const auto changed = changes.special.find(token);
      if (changed == changes.special.end()) continue;
      const auto id = tokenizer.find_id(changed->second);
      if (!id) continue;
      const std::string key = std::string(token) + "_id";
      config[key] = *id;
      if (whole.contains(key)) whole[key] = *id;
    }
    // Some files leave it out, being the family's own.
    if (vocab > 0 && std::string_view(name) == "config.json") config["vocab_size"] = vocab;
    write_json(folder / name, whole);
  }
}

// The mean of a matrix's first rows.
template <class Number>
std::vector<std::byte> mean_row_of(const std::byte* at, std::int64_t rows, std::int64_t columns) {
  std::vector<double> sums(static_cast<std::size_t>(columns));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (double& sum : sums) {
      Number value;
      std::memcpy(&value, at, sizeof(value));
      sum += static_cast<double>(static_cast<float>(value));
      at += sizeof(value);
    }
  }
  std::vector<std::byte> row(sums.size() * sizeof(Number));
  for (std::size_t c = 0; c < sums.size(); ++c) {
    const Number mean(static_cast<float>(sums[c] / static_cast<double>(rows)));
    std::memcpy(row.data() + c * sizeof(mean), &mean, sizeof(mean));
  }
  return row;
}

std::vector<std::byte> mean_row(const std::byte* bytes, std::int64_t rows, std::int64_t columns, DType dtype) {
  if (dtype == DType::f32) return mean_row_of<float>(bytes, rows, columns);
  return dtype == DType::bf16 ? mean_row_of<bf16>(bytes, rows, columns) : mean_row_of<f16>(bytes, rows, columns);
}

// The tensors that have a row for each token, with further rows, in a file of their own.
std::vector<std::string> write_grown(const io::Checkpoint& base, const model::NameMap& names, const fs::path& folder,
                                     std::int64_t known, std::int64_t rows) {
  std::vector<io::TensorSpec> specs;
  std::vector<std::string> grown;
  for (const std::string& name : {names.embedding, names.head}) {
    const io::TensorInfo* info = base.find(name);
    if (info == nullptr) continue;
    const bool floats = info->dtype == DType::f32 || info->dtype == DType::bf16 || info->dtype == DType::f16;
    if (info->shape.size() != 2 || !floats) {
      user_error("tokens: {} of {} cannot grow: it is not a matrix of fp32, bf16 or fp16", name,
                 base.folder().string());
    }
    specs.push_back({name, *info->dtype, {rows, info->shape[1]}});
    grown.push_back(name);
  }
  io::widest_first(specs);
  io::SafetensorsWriter writer(folder / grown_file, specs);
  for (const io::TensorSpec& spec : specs) {
    const io::TensorInfo& info = *base.find(spec.name);
    const ConstView tensor = base.tensor(spec.name);
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.data()), info.bytes());
    const std::vector<std::byte> row =
        mean_row(bytes.data(), std::min(known, info.shape[0]), info.shape[1], spec.dtype);
    writer.write_part(spec.name, 0, bytes);
    for (std::int64_t r = info.shape[0]; r < rows; ++r) {
      writer.write_part(spec.name, static_cast<std::uint64_t>(r) * row.size(), row);
    }
    base.drop(spec.name);
  }
  writer.finish();
  return grown;
}

void link(const fs::path& to, const fs::path& name) {
  std::error_code error;
  fs::create_symlink(fs::absolute(to, error), name, error);
  if (error) user_error("{}: cannot be created: {}", name.string(), error.message());
}

// The base's weights under their names, but what has grown.
void write_weights(const fs::path& base, const fs::path& folder, std::int64_t known, std::int64_t rows) {
  const io::Checkpoint checkpoint(base);
  if (rows == 0) {
    for (const fs::path& file : io::entries_of(base)) {
      if (file.extension() == ".safetensors" || file.filename().string().ends_with(".safetensors.index.json")) {
        link(file, folder / file.filename());
      }
    }
    return;
  }
  const std::vector<std::string> grown = write_grown(checkpoint, model::load_config(base).names, folder, known, rows);
  Json map = Json::object();
  for (const std::string& name : checkpoint.names()) {
    const fs::path file = checkpoint.path_of(name);
    const std::string linked = "base-" + file.filename().string();
    const bool is_grown = std::ranges::find(grown, name) != grown.end();
    map[name] = is_grown ? grown_file : linked;
    if (!is_grown && !io::exists(folder / linked)) link(file, folder / linked);
  }
  write_json(folder / "model.safetensors.index.json",
             {{"metadata", {{"total_size", checkpoint.total_bytes()}}}, {"weight_map", map}});
}

bool has_weights(const fs::path& base) {
  return io::exists(base / "model.safetensors") || io::exists(base / "model.safetensors.index.json");
}

// Everything that the folder is made of.
std::string fingerprint(const fs::path& base, const TokenChanges& changes) {
  std::string text = "1 " + io::real_path(base).string() + (has_weights(base) ? " whole" : " bare");
  for (const auto& [name, token] : changes.special) text += fmt::format(" {} {}", name, token.size()) + token;
  for (const std::string& token : changes.added) text += fmt::format(" {}", token.size()) + token;
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"}) {
    if (!io::exists(base / name)) continue;
    text += fmt::format(" {:016x}", io::content_hash(io::MappedFile(base / name).bytes()));
  }
  if (has_weights(base)) text += fmt::format(" {:016x}", io::Checkpoint(base).sampled_hash());
  return fmt::format("{:016x}", io::content_hash(std::as_bytes(std::span(text))));
}

// Without what is so already.
TokenChanges real_changes(const fs::path& base, TokenChanges changes) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(base);
  const auto is = [&](const std::string& name, std::optional<std::int32_t> id) {
    const auto found = changes.special.find(name);
    if (found != changes.special.end() && id && tokenizer.text(*id) == found->second) changes.special.erase(found);
  };
  is("bos_token", tokenizer.bos());
  is("eos_token", tokenizer.eos());
  std::erase_if(changes.added, [&](const std::string& token) { return tokenizer.find_id(token).has_value(); });
  return changes;
}

}  // namespace

ChangedModel change_tokens(const fs::path& base, const TokenChanges& wanted) {
  const TokenChanges changes = real_changes(base, wanted);
  ChangedModel result{.folder = base, .new_tokens = {}, .known = {}};
  for (const std::string& token : wanted.added) {
    if (std::ranges::find(changes.added, token) == changes.added.end()) result.known.push_back(token);
  }
  if (changes.none()) return result;
  const NewTokens added = new_tokens(base, changes);
  const std::int64_t vocab = model::load_config(base).vocab;
  const std::int64_t rows = added.end() > vocab && !added.tokens.empty() ? added.end() : 0;
  result.rows_added = rows > 0 ? rows - vocab : 0;
  for (const auto& [token, special] : added.tokens) result.new_tokens.push_back(token);
  const fs::path cache = cache_folder();
  if (cache.empty()) user_error("special_tokens and tokens need a cache folder; set HOME or XDG_CACHE_HOME");
  const std::string name = fmt::format("{}-{}", base.filename().string(), fingerprint(base, changes));
  result.folder = cache / "models" / name;
  if (io::exists(result.folder)) return result;
  const fs::path made = cache / "models" / fmt::format(".{}.tmp-{}", name, ::getpid());
  io::remove_all(made);
  io::create_folders(made);
  write_tokenizer(base, made, changes, added);
  write_config(base, made, changes, rows);
  if (has_weights(base)) write_weights(base, made, added.first, rows);
  for (const fs::path& file : io::entries_of(base)) {
    if (!io::is_file(file) || io::exists(made / file.filename())) continue;
    const std::string extension = file.extension();
    if (extension == ".safetensors" || file.filename().string().ends_with(".safetensors.index.json")) continue;
    link(file, made / file.filename());
  }
  std::error_code error;  // another process may have been faster
  fs::rename(made, result.folder, error);
  if (error && !io::exists(result.folder))
    user_error("{}: cannot be created: {}", result.folder.string(), error.message());
  if (error) io::remove_all(made);
  return result;
}

}  // namespace inlay::options
