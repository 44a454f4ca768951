#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>
#include <system_error>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/hub_arguments.h"
#include "core/arena.h"
#include "core/error.h"
#include "data/tokenizer/tokenizer.h"

namespace inlay::cli {

namespace {

struct TokenizeArguments {
  HubArguments hub;
  std::string model, file = "-";
  bool decode = false, no_special = false, json = false;
};

// All of a file, a pipe or standard input.
std::string read_all(const std::string& file) {
  const bool standard = file == "-";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(standard ? nullptr : std::fopen(file.c_str(), "rb"),
                                                               std::fclose);
  if (!standard && !opened) user_error("{}: cannot be opened: {}", file, std::generic_category().message(errno));
  std::FILE* const source = standard ? stdin : opened.get();
  std::string text;
  for (std::size_t got = 1; got > 0;) {
    constexpr std::size_t block = std::size_t{1} << 20;
    const std::size_t before = text.size();
    if (before > 8 * data::Tokenizer::max_text_bytes) user_error("{}: more than {}", file, format_bytes(before));
    text.resize(before + block);
    got = std::fread(text.data() + before, 1, block, source);
    text.resize(before + got);
  }
  if (std::ferror(source) != 0) user_error("{}: cannot be read: {}", file, std::generic_category().message(errno));
  return text;
}

// {"ids": [1, 2]}, [1, 2], or numbers with spaces or commas between them.
std::vector<std::int32_t> parse_ids(const std::string& text, const std::string& file,
                                    const data::Tokenizer& tokenizer) {
  std::vector<std::int64_t> numbers;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && (text[first] == '{' || text[first] == '[')) {
    const io::Json json = io::Json::parse(text, file);
    numbers = json.is_object() ? json.integers("ids") : json.as_integers();
  } else {
    for (std::size_t at = first; at < text.size(); at = text.find_first_not_of(", \t\r\n", at)) {
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
      const std::size_t next = static_cast<std::size_t>(end - text.data());
      const bool ends = next == text.size() || std::string_view(", \t\r\n").find(text[next]) != std::string_view::npos;
      if (error != std::errc() || !ends) {
        user_error("{}: expected token ids, got {}", file, io::in_quotes(text.substr(at, 40)));
      }
      numbers.push_back(number);
      at = next;
    }
  }
  std::vector<std::int32_t> ids;
  for (const std::int64_t number : numbers) {
    const bool known =
        number >= 0 && number < tokenizer.vocab_size() && tokenizer.text(static_cast<std::int32_t>(number)).has_value();
    if (!known) {
      user_error("{}: ids[{}]: {} is not a token of this tokenizer, whose ids go from 0 to {}", file, ids.size(),
                 number, tokenizer.vocab_size() - 1);
    }
    ids.push_back(static_cast<std::int32_t>(number));
  }
  return ids;
}

int run(const TokenizeArguments& arguments) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(arguments.model);
  const std::string input = read_all(arguments.file);
  using Json = nlohmann::ordered_json;
  if (!arguments.decode) {
    const std::vector<std::int32_t> ids = tokenizer.encode(input, !arguments.no_special);
    if (arguments.json) {
      fmt::print("{}\n", Json{{"ids", ids}}.dump());
    } else {
      std::string line;
      for (const std::int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
      fmt::print("{}\n", line);
    }
    return 0;
  }
  const std::string name = arguments.file == "-" ? "standard input" : arguments.file;
  const std::string text = tokenizer.decode(parse_ids(input, name, tokenizer), arguments.no_special);
  if (arguments.json) {
    fmt::print("{}\n", Json{{"text", text}}.dump());
  } else {
    std::fwrite(text.data(), 1, text.size(), stdout);  // exactly, so that it can go into a file
    if (::isatty(STDOUT_FILENO) == 1 && !text.ends_with('\n')) fmt::print("\n");
  }
  return 0;
}

}  // namespace

void add_tokenize(Program& program) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* command = program.app.add_subcommand("tokenize", "Token ids of a text, or the text of token ids");
  command->add_option("model", arguments->model, "Hugging Face model folder, its tokenizer.json, or a name on the hub")
      ->required();
  arguments->hub.add_to(*command);
  command->add_option("file", arguments->file, "Text, or ids with --decode; - is standard input, the default");
  command->add_flag("--decode", arguments->decode, "Ids to text: numbers, [1, 2] or {\"ids\": [1, 2]}");
  command->add_flag("--no-special", arguments->no_special,
                    "Without the special tokens around a text; with --decode, leave special tokens out of the text");
  command->add_flag("--json", arguments->json, "Print one JSON object, {\"ids\": [...]} or {\"text\": \"...\"}");
  command->callback([&program, arguments] {
    program.action = [arguments] {
      arguments->model = arguments->hub.model_folder(arguments->model);
      return run(*arguments);
    };
  });
}

}  // namespace inlay::cli
