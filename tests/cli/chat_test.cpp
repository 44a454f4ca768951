#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include <nlohmann/json.hpp>

#include "support/command.h"

namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A random model that speaks in bytes, and has a chat template.
class CliChat : public ::testing::Test {
 protected:
  CliChat() {
    EXPECT_EQ(inlay({"init", "--preset", "tiny", folder_ / "m"}).code, 0);
    folder_.write("m/chat_template.jinja",
                  "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                  "{% if add_generation_prompt %}assistant: {% endif %}");
  }

  CommandResult say(const std::string& lines, const std::vector<std::string>& more = {}) const {
    folder_.write("lines.txt", lines);
    std::string command = "\"$0\" chat \"$1\" --device cpu --max-new-tokens 6 --temperature 3 --seed 4";
    for (const std::string& word : more) command += " " + word;
    return run("bash", {"-c", command + " < \"$2\"", program().string(), folder_ / "m", folder_ / "lines.txt"});
  }

  TempFolder folder_;
};

TEST_F(CliChat, WorksInAPipe) {
  const CommandResult one = say("hello\n"), two = say("hello\n\nhow are you\n/exit\nnever read\n");
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_FALSE(one.out.empty());
  EXPECT_TRUE(two.out.starts_with(one.out)) << "the first answer is the same, and another follows";
  EXPECT_GT(two.out.size(), one.out.size());
  EXPECT_EQ(say("hello\n").out, one.out);
  // From the beginning again after /reset; the last line need not end.
  EXPECT_EQ(say("hello\n/reset\nhello").out, one.out + one.out);
  EXPECT_NE(say("hello\n", {"--system", "S"}).out, one.out);
  EXPECT_EQ(say("").out, "");
}

TEST_F(CliChat, AMessageOfSeveralLinesStandsBetweenQuotes) {
  // As one message, and not as two, which would have two answers.
  const CommandResult several = say("\"\"\"one\ntwo\"\"\"\n"), lines = say("one\ntwo\n");
  ASSERT_EQ(several.code, 0) << several.err;
  EXPECT_FALSE(several.out.empty());
  EXPECT_NE(several.out, lines.out);
  EXPECT_FALSE(lines.out.starts_with(several.out));
  EXPECT_EQ(say("\"\"\"\none\ntwo\n\"\"\"\n").out, say("\"\"\"one\ntwo\n\"\"\"").out);
  EXPECT_EQ(say("\"\"\"one\ntwo").out, several.out) << "the end of the input ends it";
  EXPECT_EQ(say("\"\"\"one\"\"\"").out, say("one").out);
}

// A terminal marks what is pasted where it is asked to.
TEST_F(CliChat, LinesThatArePastedAreOneMessage) {
  if (run("bash", {"-c", "command -v script"}).code != 0) GTEST_SKIP() << "without script there is no terminal";
  const auto typed = [&](const std::string& text) {
    folder_.write("typed.txt", text);
    const std::string chat = "'" + program().string() + "' chat '" + (folder_ / "m").string() +
                             "' --device cpu --max-new-tokens 1 --temperature 3 --seed 4";
    CommandResult result =
        run("bash", {"-c", "TERM=xterm script -qec \"$0\" /dev/null < \"$1\"", chat, folder_ / "typed.txt"});
    EXPECT_EQ(result.code, 0) << result.out;
    return result.out;
  };
  const auto answers = [](const std::string& out) { return times(out, "(cut: --max-new-tokens"); };
  const std::string pasted = typed("\033[200~one\ntwo\nthree\033[201~\n/exit\n");
  EXPECT_EQ(answers(pasted), 1u) << pasted;
  EXPECT_EQ(answers(typed("/reset\none\n\033[200~two\n\033[201~\n/reset\nthree\n/exit\n")), 2u);
  // It is asked for the whole conversation, and not for longer.
  EXPECT_EQ(times(pasted, "\033[?2004h"), 1u) << pasted;
  EXPECT_EQ(times(pasted, "\033[?2004l"), 1u) << pasted;
  EXPECT_GT(pasted.rfind("\033[?2004l"), pasted.rfind("\n"));
}

// It is not seen as it is typed, and goes on at the prompt. However the times fall, the whole line is seen then.
TEST_F(CliChat, ALineThatWasBegunDuringAnAnswerIsShown) {
  if (run("bash", {"-c", "command -v script"}).code != 0) GTEST_SKIP() << "without script there is no terminal";
  const std::string chat =
      "'" + program().string() + "' chat '" + (folder_ / "m").string() + "' --device cpu --max-new-tokens 2000";
  const CommandResult result =
      run("bash", {"-c",
                   "{ printf 'hello\\n'; sleep 0.5; printf 'unfin'; sleep 4; printf 'ished\\n/exit\\n'; } | TERM=xterm "
                   "script -qec \"$0\" /dev/null",
                   chat});
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("unfinished\r\n"));
  EXPECT_EQ(times(result.out, "(cut: --max-new-tokens"), 2u);
}

TEST_F(CliChat, AModelWithoutATemplateMayBeGivenOneByName) {
  std::filesystem::remove(folder_ / "m/chat_template.jinja");
  const CommandResult none = say("hello\n");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("--chat-template of generate, chat and report"));
  EXPECT_EQ(say("hello\n", {"--chat-template", "chatml"}).code, 0);
}

TEST_F(CliChat, SaysWhenThereIsNoRoom) {
  const CommandResult result = say("hello, this is too long for it\n", {"--context", "20"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("does not fit into the conversation's 20 tokens"));
}

// Whoever asks a chat model a bare question is told how to ask it; whoever knows is not.
TEST_F(CliChat, GenerateSaysHowAChatModelIsAsked) {
  const auto said = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", folder_ / "m", "--device", "cpu", "--max-new-tokens", "2", "--prompt", "x"});
    const CommandResult result = inlay(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  const std::string hint = "add --as chat to ask it as its users do";
  EXPECT_THAT(said({}), HasSubstr(hint));
  for (const char* as : {"text", "chat"}) EXPECT_THAT(said({"--as", as}), Not(HasSubstr(hint)));
  EXPECT_THAT(said({"--quiet"}), Not(HasSubstr(hint)));
  std::filesystem::remove(folder_ / "m/chat_template.jinja");
  EXPECT_THAT(said({}), Not(HasSubstr(hint)));
}

TEST_F(CliChat, GenerateAnswersPromptsAtOnceAndSaysItInJson) {
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", folder_ / "m", "--device", "cpu", "--max-new-tokens", "5", "--quiet"});
    return inlay(more);
  };
  const CommandResult first = generate({"--prompt", "one"}), second = generate({"--prompt", "another one"});
  const CommandResult both = generate({"--prompt", "one", "--prompt", "another one"});
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(both.out, first.out + second.out);
  const CommandResult stop = generate({"--prompt", "one", "--stop", "99999"});
  EXPECT_EQ(stop.code, 2);
  EXPECT_THAT(stop.err, HasSubstr("--stop: 99999 is not a token of this model (0 to "));
  const CommandResult json = generate({"--prompt", "one", "--prompt", "another one", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const std::size_t end = json.out.find('\n');
  const auto object = nlohmann::json::parse(json.out.substr(0, end));
  EXPECT_EQ(object.at("prompt"), "one");
  EXPECT_EQ(object.at("prompt_ids").size(), 3u);
  EXPECT_EQ("one" + object.at("text").get<std::string>() + "\n", first.out);
  EXPECT_EQ(object.at("ended_by"), object.at("ids").size() < 5 ? "stop" : "length");
  EXPECT_EQ(nlohmann::json::parse(json.out.substr(end)).at("prompt"), "another one");
}

TEST_F(CliChat, AnAnswerThatIsCutWithinACharacterEndsBeforeIt) {
  std::vector<std::string> command = {"generate", folder_ / "m", "--device", "cpu", "--max-new-tokens", "1", "--json"};
  for (const char* more : {"--temperature", "3", "--seed", "1", "--quiet"}) command.emplace_back(more);
  for (int i = 0; i < 40; ++i) command.insert(command.end(), {"--prompt", "x"});
  const CommandResult result = inlay(command);
  ASSERT_EQ(result.code, 0) << result.err;
  int begun = 0;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    const auto ids = object.at("ids").get<std::vector<int>>();
    if (ids.empty() || ids[0] < 0xC2 || ids[0] > 0xF4) continue;  // more bytes follow these
    EXPECT_EQ(object.at("text"), "") << line;
    ++begun;
  }
  EXPECT_GT(begun, 0);
}

TEST_F(CliChat, NamesThatAreNearlyRightAreSuggested) {
  EXPECT_EQ(inlay({"trian", "run.yaml"}).err, "inlay: trian is not a command; did you mean train?\n");
  EXPECT_EQ(inlay({"bench", "decod"}).err, "inlay: decod is not a command of bench; did you mean decode?\n");
  EXPECT_EQ(inlay({"generate", folder_ / "m", "--promt", "x"}).err,
            "inlay: --promt is not an option of generate; did you mean --prompt?\n");
  EXPECT_EQ(inlay({"trian"}).code, 2);
  EXPECT_EQ(inlay({"finetune", "run.yaml"}).err, "inlay: finetune is not a command; did you mean train?\n");
  EXPECT_EQ(inlay({"evaluate"}).err, "inlay: evaluate is not a command; did you mean eval?\n");
  EXPECT_EQ(inlay({"serve"}).err, "inlay: serve is not a command; inlay --help lists them\n");
  EXPECT_EQ(inlay({"frobnicate"}).err, "inlay: frobnicate is not a command; inlay --help lists them\n");
}

TEST_F(CliChat, TheCacheIsListedAndCleared) {
  const std::filesystem::path cache = folder_ / "cache";
  std::filesystem::create_directories(cache / "inlay/data");
  folder_.write("cache/inlay/data/a", std::string(10000, 'x'));
  folder_.write("cache/inlay/rates-x.json", "{}");
  const CommandLimits limits{
      .interrupt_when = {}, .interrupt = {}, .environment = {{"XDG_CACHE_HOME", cache.string()}}};
  const CommandResult list = inlay({"cache"}, limits);
  ASSERT_EQ(list.code, 0) << list.err;
  EXPECT_THAT(list.out, HasSubstr("prepared datasets"));
  EXPECT_EQ(inlay({"cache", "list"}, limits).out, list.out);
  const auto object = nlohmann::json::parse(inlay({"cache", "--json"}, limits).out);
  EXPECT_EQ(object.at("kinds").at(0).at("what"), "data");
  EXPECT_EQ(object.at("kinds").at(0).at("files"), 1);
  EXPECT_GE(object.at("bytes").get<int>(), 10000);
  // Without somebody to ask, and without --yes, nothing goes.
  EXPECT_EQ(inlay({"cache", "clear"}, limits).code, 2);
  EXPECT_EQ(inlay({"cache", "clear", "dta", "--yes"}, limits).code, 2);
  EXPECT_TRUE(std::filesystem::exists(cache / "inlay/data/a"));
  EXPECT_EQ(inlay({"cache", "clear", "data", "--yes"}, limits).code, 0);
  EXPECT_FALSE(std::filesystem::exists(cache / "inlay/data"));
  EXPECT_TRUE(std::filesystem::exists(cache / "inlay/rates-x.json"));
  EXPECT_EQ(inlay({"cache", "clear", "--yes"}, limits).code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(cache / "inlay"));
}

}  // namespace
}  // namespace inlay::testing
