#include "data/prepared.h"

#include <unistd.h>

#include <utility>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/file.h"
#include "io/paths.h"

namespace inlay::data {
namespace {

namespace fs = std::filesystem;

constexpr int version = 6;  // of what reading makes of a row; raise it where that changes

// Calls the context's progress now and then while the bytes of a large file go by.
std::function<void(std::uint64_t)> now_and_then(const ReadContext& context, std::uint64_t total) {
  constexpr std::uint64_t some = std::uint64_t{64} << 20;
  return [&context, total, last = std::uint64_t{0}](std::uint64_t done) mutable {
    if (done - last < some || !context.progress) return;
    last = done;
    context.progress(done, total);
  };
}

std::uint64_t file_hash(const fs::path& path, const ReadContext& context) {
  if (!io::is_file(path) || io::file_bytes(path) == 0) return 0;
  const io::InputFile file(path);
  return io::content_hash(file, 0, file.size(), now_and_then(context, file.size()));
}

std::string described(const FormatOptions& o) {
  nlohmann::ordered_json all = {o.type,
                                o.field_messages,
                                o.field_tools,
                                o.field_system,
                                o.message_property_mappings,
                                o.roles,
                                o.chat_template,
                                o.roles_to_train,
                                o.message_field_training,
                                o.message_field_weight,
                                o.train_on_eos,
                                o.eot_tokens,
                                o.field,
                                o.drop_system_message,
                                o.train_on_inputs,
                                o.field_instruction,
                                o.field_input,
                                o.field_output,
                                o.format,
                                o.no_input_format};
  // Other documents keep the names that they have had.
  if (o.most_tokens > 0) all.push_back({o.most_tokens, static_cast<int>(o.longer), o.learns_prompts});
  if (o.field_chosen != "chosen" || o.field_rejected != "rejected") all.push_back({o.field_chosen, o.field_rejected});
  if (o.learns_chosen) all.push_back("learns chosen");
  if (!o.shown.empty()) all.push_back({"shown", o.shown});
  if (o.reads_predictions) all.push_back({"predictions", o.logprobs_field});
  return all.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

// Where a file that was verified here is noted. Other machines that share the folder have notes of their own.
fs::path note_of(const fs::path& kept) {
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return kept.parent_path() / fmt::format(".{}.verified-{}", kept.filename().string(), host);
}

std::string note_about(const Corpus& corpus) {
  return fmt::format("{} {:016x}\n", corpus.file().identity(), corpus.digest());
}

bool is_noted(const Corpus& corpus, const fs::path& kept) {
  try {
    return io::read_file(note_of(kept), 1024) == note_about(corpus);
  } catch (const UserError&) {
    return false;
  }
}

// A folder that cannot be looked into has nothing prepared.
bool is_there(const fs::path& kept) {
  try {
    return io::exists(kept);
  } catch (const UserError&) {
    return false;
  }
}

// Nothing where it cannot be read either.
std::optional<Corpus> opened(const fs::path& kept) {
  try {
    return Corpus::open(kept);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

void note_as_verified(const Corpus& corpus, const fs::path& kept) {
  try {
    io::write_file_atomic(note_of(kept), note_about(corpus));
  } catch (const UserError&) {
    // Then it is verified again next time.
  }
}

io::TurnLock turn_to_prepare(const fs::path& kept, const std::string& dataset, const ReadContext& context) {
  std::error_code ignored;  // writing will tell
  fs::create_directories(kept.parent_path(), ignored);
  bool told = false;
  return io::TurnLock(kept.parent_path() / fmt::format(".{}.lock", kept.filename().string()), [&] {
    if (!std::exchange(told, true) && context.notice) {
      context.notice(fmt::format("another process prepares {}; waiting", dataset));
    }
    if (context.waiting) context.waiting();
  });
}

std::optional<Corpus> open_prepared(const fs::path& kept, const ReadContext& context) {
  if (!is_there(kept)) return std::nullopt;
  auto corpus = opened(kept);
  const bool right = corpus && corpus->within(context.vocab);
  if (right && is_noted(*corpus, kept)) return corpus;
  if (right && corpus->verify(now_and_then(context, corpus->file().size()))) {
    note_as_verified(*corpus, kept);
    return corpus;
  }
  if (context.notice) context.notice(fmt::format("{}: is damaged, so it is prepared again", kept.string()));
  return std::nullopt;
}

fs::path prepared_path(const DatasetOptions& dataset, const DatasetFiles& files, const ReadContext& context) {
  std::string key =
      fmt::format("{} {} {} {}", version, described(dataset.format), context.vocab, context.bad_row == BadRow::skip);
  for (const fs::path& file : files.files) {
    key += fmt::format(" {} {:016x}", file.extension().string(), file_hash(file, context));
  }
  if (!files.ds_type.empty() || !files.slice.all()) key += fmt::format(" {} {}", files.ds_type, dataset.split);
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
    key += fmt::format(" {:016x}", file_hash(context.model / name, context));
  }
  if (const auto text = template_text(dataset.format.chat_template, context.model)) {
    key += fmt::format(" {:016x}", io::content_hash(std::as_bytes(std::span(*text))));
  }
  const std::uint64_t digest = io::content_hash(std::as_bytes(std::span(key)));
  return context.prepared / fmt::format("{}-{:016x}.tokens", fs::path(dataset.path).stem().string(), digest);
}

}  // namespace inlay::data
