#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/edited_lines.h"
#include "cli/model_arguments.h"
#include "cli/prompts.h"
#include "cli/typed_lines.h"
#include "core/interrupt.h"
#include "core/terminal.h"
#include "core/text.h"
#include "data/formats/format.h"
#include "data/tokenizer/text_stream.h"
#include "io/paths.h"
#include "model/families/family.h"

namespace inlay::cli {

namespace {

struct ChatArguments : ModelArguments {
  ChatArguments() { dtype = "auto"; }

  std::string system;
  DrawingArguments drawing;
  std::int64_t count = 1024, context = 4096;
};

class Conversation {
 public:
  Conversation(const ChatArguments& arguments, train::Engine& engine, const data::Tokenizer& tokenizer)
      : arguments_(arguments),
        exec_(engine.exec()),
        tokenizer_(tokenizer),
        template_(data::load_template(format_of(arguments), tokenizer, arguments.text_folder())),
        drawing_(arguments.drawing.or_of_model(arguments.model)),
        stops_(data::stop_tokens(arguments.model, tokenizer)),
        text_(exec_, engine.decoder(), 1, engine.options().decode_length) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!arguments_.system.empty()) messages_.push_back({"system", arguments_.system});
  }

  // Whether the last answer did not come to its end by itself.
  bool was_cut() const { return cut_; }

  // False: the conversation does not fit any more, and the message was not taken.
  bool say(const std::string& message) {
    messages_.push_back({"user", message});
    const std::vector<std::int32_t> prompt = rendered();
    if (static_cast<std::int64_t>(prompt.size()) >= text_.capacity()) {
      messages_.pop_back();
      return false;
    }
    // What the cache holds of the same beginning stays; at least one token must pass for there to be a next one.
    const std::vector<std::int32_t>& held = text_.text(0);
    const auto differs = std::mismatch(held.begin(), held.end(), prompt.begin(), prompt.end()).first;
    const auto same = std::min(static_cast<std::size_t>(differs - held.begin()), prompt.size() - 1);
    text_.rewind(0, same);
    const std::vector<std::vector<std::int32_t>> rest = {
        {prompt.begin() + static_cast<std::ptrdiff_t>(same), prompt.end()}};
    text_.give(exec_, rest);
    messages_.push_back({"assistant", answer(prompt)});
    return true;
  }

 private:
  struct Message {
    std::string role, content;
  };

  static data::FormatOptions format_of(const ChatArguments& arguments) {
    data::FormatOptions format;
    if (!arguments.chat_template.empty()) format.chat_template = arguments.chat_template;
    return format;
  }

  std::vector<std::int32_t> rendered() const {
    std::vector<jinja::Value> values;
    for (const Message& message : messages_) values.push_back(jinja::message(message.role, message.content));
    const auto text =
        template_.render(jinja::make_list(nullptr, std::move(values)), {.add_generation_prompt = true}).text;
    return tokenizer_.encode(text, false);
  }

  // Printed as it comes, until it ends or somebody has heard enough.
  std::string answer(const std::vector<std::int32_t>& prompt) {
    data::TextStream stream(tokenizer_, prompt);
    std::string whole;
    const auto print = [&](const std::string& part) {
      whole += part;
      fmt::print("{}", part);
      std::fflush(stdout);
    };
    const std::int64_t room = text_.capacity() - static_cast<std::int64_t>(prompt.size()) + 1;
    const std::int64_t most = std::min(arguments_.count, room);
    cut_ = true;
    for (std::int64_t i = 0; i < most && !interrupt_requested(); ++i) {
      const std::int32_t id = text_.next(exec_, drawing_)[0];
      cut_ = std::find(stops_.begin(), stops_.end(), id) == stops_.end();
      if (!cut_) break;
      print(stream.add(id));
    }
    print(stream.finish(cut_));
    fmt::print("\n");
    std::fflush(stdout);
    return whole;
  }

  const ChatArguments& arguments_;
  backend::Exec& exec_;
  const data::Tokenizer& tokenizer_;
  jinja::ChatTemplate template_;
  model::Drawing drawing_;
  std::vector<std::int32_t> stops_;
  model::Continuation text_;
  std::vector<Message> messages_;
  bool cut_ = false;
};

// Where messages come from: a person at a prompt, or lines as they are.
class MessageLines {
 public:
  MessageLines() {
    if (is_terminal(STDIN_FILENO) && is_terminal(STDOUT_FILENO)) edited_.emplace();
  }

  bool person() const { return edited_.has_value(); }
  std::optional<std::string> next(std::string_view prompt) { return person() ? edited_->next(prompt) : plain_.next(); }
  bool lost_some() { return plain_.lost_some(); }
  void forget() { person() ? edited_->forget() : plain_.forget(); }
  void remember(const std::string& message) {
    if (person()) edited_->remember(message);
  }
  // A message of what was typed while nobody asked; nothing where no line of it was finished.
  std::optional<std::string> typed_ahead(std::string_view prompt);

 private:
  TypedLines plain_;
  std::optional<EditedLines> edited_;
};

// A message of several lines stands between these; any other line is a message.
constexpr std::string_view quotes = "\"\"\"";

// The rest of a message that began with quotes; nothing where the input ends before it does.
std::optional<std::string> quoted_message(const std::string& first, MessageLines& lines) {
  std::string message = first.substr(quotes.size());
  std::size_t end = message.find(quotes);
  while (end == std::string::npos) {
    const std::optional<std::string> line = lines.next("… ");
    if (!line) return lines.person() ? std::nullopt : std::optional(message);
    const std::size_t from = message.size();
    message += "\n" + *line;
    end = message.find(quotes, from);
  }
  message.resize(end);
  return message.starts_with('\n') ? message.substr(1) : message;
}

// Whether a line can be part of a message of several.
bool is_text(std::string_view line) { return !line.starts_with('/') && !line.starts_with(quotes); }

// Lines that were typed while an answer was printed were not typed in answer to another: they are one message.
std::optional<std::string> MessageLines::typed_ahead(std::string_view prompt) {
  if (!person()) return std::nullopt;
  edited_->take_what_is_there();
  if (!edited_->has_line()) return std::nullopt;
  std::optional<std::string> message = next(prompt);
  if (!is_text(*message)) return message;
  while (edited_->has_line() && is_text(edited_->upcoming())) *message += "\n" + *next("");
  return message;
}

int talk(const ChatArguments& arguments, Conversation& conversation, MessageLines& lines, Console& console) {
  const bool person = lines.person();
  const auto note = [&](const std::string& text) { console.line(text); };
  console.status("");  // what was loaded is no part of the conversation
  if (person) {
    note("/reset starts over, /exit ends, Ctrl-C ends an answer; \"\"\" around several lines");
  }
  constexpr std::string_view prompt = "> ";
  bool hinted = false;
  for (;;) {
    std::optional<std::string> line = lines.typed_ahead(prompt);
    if (!line) line = lines.next(prompt);
    if (line && line->starts_with(quotes)) line = quoted_message(*line, lines);
    if (!line && interrupt_requested() && interrupt_exit_code() == 130 && person && !std::exchange(hinted, true)) {
      forget_interrupt();
      lines.forget();
      note("\n(/exit or Ctrl-D ends, as does another Ctrl-C)");
      continue;
    }
    if (!line) {
      if (person) fmt::print("\n");
      return interrupt_requested() ? interrupt_exit_code() : 0;
    }
    hinted = false;
    if (lines.lost_some()) {
      note(
          fmt::format("(not sent: a terminal passes on only {} bytes of a line, and the rest of this one was lost; "
                      "break it into several lines between {} and {}, or use a pipe)",
                      format_count(static_cast<std::int64_t>(TypedLines::longest)), quotes, quotes));
      continue;
    }
    lines.remember(*line);
    if (*line == "/exit" || *line == "/quit") return 0;
    if (*line == "/reset") {
      conversation.reset();
      note("(a new conversation)");
    } else if (line->starts_with('/') && person) {
      note("(the commands are /reset and /exit)");
    } else if (line->find_first_not_of(" \t") != std::string::npos) {
      if (!conversation.say(*line)) {
        note(
            fmt::format("this does not fit into the conversation's {} tokens: /reset starts over, and --context "
                        "gives it more",
                        arguments.context));
        if (!person) return 2;
      } else if (person && conversation.was_cut() && !interrupt_requested()) {
        note("(cut: --max-new-tokens and --context limit the length of an answer)");
      }
      if (interrupt_requested() && interrupt_exit_code() == 130) forget_interrupt();
    }
  }
}

int run(ChatArguments arguments) {
  install_interrupt_handler(Heard::silently);
  // Before the model is loaded, which may take long: what is typed meanwhile is seen at the prompt.
  MessageLines lines;
  Console console(arguments.quiet);
  const model::ModelConfig config = model::load_config(arguments.model);
  const data::Tokenizer tokenizer = data::Tokenizer::load(arguments.text_folder());
  arguments.context = std::min(arguments.context, config.max_positions);
  if (arguments.context < 2) user_error("--context: expected at least 2 tokens, got {}", arguments.context);
  // One token is made beyond those that are held.
  const std::vector<std::vector<std::int32_t>> longest = {
      std::vector<std::int32_t>(static_cast<std::size_t>(arguments.context))};
  const auto engine = load_generator(arguments, config, longest, 1, "--context", console);
  Conversation conversation(arguments, *engine, tokenizer);
  return talk(arguments, conversation, lines, console);
}

}  // namespace

void add_chat(Program& program) {
  auto arguments = std::make_shared<ChatArguments>();
  CLI::App* command = program.app.add_subcommand("chat", "Talk with a model: each line is a message");
  command->add_option("model", arguments->model, ModelArguments::model_or_adapter_meaning)->required();
  command->add_option("--system", arguments->system, "The system message");
  command->add_option("--chat-template", arguments->chat_template,
                      "A .jinja file, or a name such as chatml, in place of the model's own");
  command->add_option("--max-new-tokens", arguments->count, "Maximum number of tokens of an answer (1024)")
      ->check(whole(1));
  command
      ->add_option("--context", arguments->context,
                   "Maximum number of tokens of the conversation that the model sees (4096)")
      ->check(whole(1));
  arguments->drawing.add_to(*command);
  arguments->add_adapter_to(*command);
  arguments->add_machine_to(*command);
  command->callback([&program, arguments] {
    program.action = [arguments] {
      arguments->find_model_or_base();
      return run(*arguments);
    };
  });
}

}  // namespace inlay::cli
