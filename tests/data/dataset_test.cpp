#include "data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "data/prepared.h"
#include "data/sampler.h"
#include "support/chat_model.h"

namespace inlay::data {
namespace {

using inlay::testing::ChatModel;
using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class DataDataset : public ::testing::Test {
 protected:
  std::shared_ptr<const Corpus> read(const std::filesystem::path& file, DatasetOptions options = {}) {
    options.path = file.string();
    return read_dataset(options, context_);
  }
  std::string error_of(const std::filesystem::path& file, const DatasetOptions& options = {}) {
    return user_error_of([&] { read(file, options); });
  }
  std::string text(const Corpus& corpus, std::int64_t index) {
    return Tokenizer::load(model_.path()).decode(corpus.read(index).input_ids, true);
  }

  // The prepared files; notes beside them do not count.
  std::vector<std::filesystem::path> kept() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(context_.prepared)) {
      if (entry.path().extension() == ".tokens") files.push_back(entry.path());
    }
    return files;
  }

  ChatModel model_;
  TempFolder folder_;
  ReadContext context_ = {.model = model_.path(), .vocab = ChatModel::vocab};
};

const std::string chat =
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]})";

// A prompt that shows the answer follows each document, apart from it.
TEST_F(DataDataset, AnswersMayBeShown) {
  DatasetOptions options;
  options.format.shown = "<{instruction}|{response}>";
  const auto shown = [&](const std::string& row) {
    const auto corpus = read(folder_.write("shown.jsonl", row + "\n"), options);
    const auto plain = read(folder_.write("plain.jsonl", row + "\n"));
    const Document document = corpus->read(0);
    const auto mark = std::ranges::find(document.labels, sequence_mark(SequenceRole::shown));
    const auto length = mark - document.labels.begin();
    EXPECT_EQ(length, plain->length(0));
    EXPECT_TRUE(std::ranges::none_of(mark, document.labels.end(), is_label));
    return Tokenizer::load(model_.path())
        .decode(std::span(document.input_ids).subspan(static_cast<std::size_t>(length)), true);
  };
  EXPECT_EQ(shown(chat), "user\n<Hi|Yes.>\nassistant\n");
  const std::string turns = R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, )"
                            R"({"role": "user", "content": "{response}"}, {"role": "assistant", "content": "d"})";
  EXPECT_EQ(shown("{\"messages\": [" + turns + "]}"), "user\na\nassistant\nb\nuser\n<{response}|d>\nassistant\n")
      << "the last answer, with what was said before it";
  EXPECT_THAT(shown(R"({"instruction": "a", "input": "b", "output": "c"})"), HasSubstr("Instruction:\n<a\nb|c>\n"));
  EXPECT_EQ(shown(R"({"prompt": "a", "completion": "c"})"), "<a|c>");
  EXPECT_EQ(shown(R"({"question": "a", "answer": "c"})"), "user\n<a|c>\nassistant\n");
  EXPECT_THAT(error_of(folder_.write("a.txt", "One line."), options), HasSubstr("sdft needs rows of a prompt"));
}

TEST_F(DataDataset, ReadsEveryKindOfFile) {
  EXPECT_EQ(text(*read(folder_.write("a.jsonl", chat + "\n\n" + chat + "\n")), 1), "user\nHi\nassistant\nYes.\n");
  EXPECT_EQ(text(*read(folder_.write("a.json", "[" + chat + "]")), 0), "user\nHi\nassistant\nYes.\n");
  const auto lines = read(folder_.write("a.txt", "One line.\n\nAnother.\n"));
  EXPECT_EQ(lines->size(), 2);
  EXPECT_EQ(text(*lines, 1), "Another.");
  const std::string ids = R"({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]})";
  for (const auto& [name, content] : {std::pair("t.jsonl", ids), std::pair("t.json", "[" + ids + "]")}) {
    const auto tokens = read(folder_.write(name, content));
    EXPECT_EQ(tokens->read(0).labels, (std::vector<std::int32_t>{-100, 6, 7})) << name;
  }
}

TEST_F(DataDataset, ManyRowsInOrderOnAnyNumberOfThreads) {
  std::string rows;
  for (int i = 0; i < 3000; ++i) rows += R"({"text": "row )" + std::to_string(i) + "\"}\n";
  const auto file = folder_.write("many.jsonl", rows);
  context_.threads = 1;
  const auto one = read(file);
  ASSERT_EQ(one->size(), 3000);
  EXPECT_EQ(text(*one, 2999), "row 2999");
  context_.threads = 5;
  EXPECT_EQ(read(file)->digest(), one->digest());
}

TEST_F(DataDataset, MarksOfOtherSystemsAreNoText) {
  const auto corpus = read(folder_.write("w.txt",
                                         "\xEF\xBB\xBF"
                                         "first\r\nsecond\r\n"));
  ASSERT_EQ(corpus->size(), 2);
  EXPECT_EQ(text(*corpus, 0), "first");
  EXPECT_EQ(text(*corpus, 1), "second");
}

// Every byte counts: of the header, the tokens, the labels, and where documents begin.
TEST_F(DataDataset, ADamagedCacheIsMadeAgain) {
  context_.prepared = folder_ / "prepared";
  const auto file = folder_.write("r.jsonl", "{\"text\": \"row\"}\n{\"text\": \"another\"}\n");
  std::vector<std::string> notices;
  context_.notice = [&](const std::string& message) { notices.push_back(message); };
  const std::uint64_t digest = read(file)->digest();
  ASSERT_EQ(kept().size(), 1u);
  const std::filesystem::path path = kept()[0];
  const std::string whole = inlay::testing::read_text(path);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    std::ofstream(path, std::ios::binary) << damaged;
    notices.clear();
    EXPECT_EQ(read(file)->digest(), digest) << at;
    EXPECT_THAT(notices, ElementsAre(path.string() + ": is damaged, so it is prepared again")) << at;
    ASSERT_EQ(inlay::testing::read_text(path), whole) << at;
  }
  notices.clear();
  EXPECT_EQ(read(file)->digest(), digest);
  EXPECT_TRUE(notices.empty());
}

// The checksum is computed once for a file and a machine: what keeps the identity of a verified file is believed.
TEST_F(DataDataset, AFileIsVerifiedOnce) {
  context_.prepared = folder_ / "prepared";
  const auto file = folder_.write("r.jsonl", "{\"text\": \"row\"}\n");
  read(file);
  const auto notes = [&] {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(context_.prepared)) {
      if (entry.path().extension() != ".tokens") found.push_back(entry.path());
    }
    return found;
  };
  ASSERT_EQ(notes().size(), 1u);  // made when the file was written
  const std::string note = inlay::testing::read_text(notes()[0]);
  std::filesystem::remove(notes()[0]);
  read(file);
  ASSERT_EQ(notes().size(), 1u);
  EXPECT_EQ(inlay::testing::read_text(notes()[0]), note);
  std::ofstream(notes()[0]) << "something else";
  read(file);
  EXPECT_EQ(inlay::testing::read_text(notes()[0]), note);
}

// Of many at the same time one reads the rows. The others say that they wait, and have the same documents.
TEST_F(DataDataset, IsPreparedOnceByManyAtTheSameTime) {
  context_.prepared = folder_ / "prepared";
  std::string rows;
  for (int i = 0; i < 20'000; ++i) rows += fmt::format("{{\"text\": \"row {}\"}}\n", i);
  DatasetOptions dataset;
  dataset.path = folder_.write("r.jsonl", rows).string();
  constexpr int count = 4;
  std::atomic<int> readers{0}, waiters{0};
  std::vector<std::uint64_t> digests(count);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        ReadContext context = context_;
        bool reads = false;
        context.progress = [&](std::uint64_t, std::uint64_t) {
          reads = true;
          while (waiters < count - 1) std::this_thread::yield();  // it is not done before all have come
        };
        context.notice = [&](const std::string& text) {
          EXPECT_EQ(text, "another process prepares " + dataset.path + "; waiting");
          ++waiters;
        };
        digests[static_cast<std::size_t>(i)] = read_dataset(dataset, context)->digest();
        readers += reads ? 1 : 0;
      });
    }
  }
  EXPECT_EQ(readers, 1);
  EXPECT_EQ(waiters, count - 1);
  for (const std::uint64_t digest : digests) EXPECT_EQ(digest, digests[0]);
  EXPECT_FALSE(std::filesystem::exists(kept().at(0).parent_path() / ("." + kept()[0].filename().string() + ".lock")));
}

TEST_F(DataDataset, WaitingCanBeStopped) {
  context_.prepared = folder_ / "prepared";
  DatasetOptions dataset;
  dataset.path = folder_.write("r.jsonl", "{\"text\": \"row\"}\n").string();
  const io::TurnLock other =
      turn_to_prepare(prepared_path(dataset, find_files(dataset), context_), dataset.path, context_);
  ASSERT_TRUE(other.held());
  context_.waiting = [] { user_error("stopped"); };
  EXPECT_EQ(user_error_of([&] { read_dataset(dataset, context_); }), "stopped");
  EXPECT_TRUE(kept().empty());
}

TEST_F(DataDataset, APreparedFileThatIsCutShortInUseIsAnErrorWithItsName) {
  context_.prepared = folder_ / "prepared";
  std::string rows;
  for (int i = 0; i < 3000; ++i) rows += R"({"text": "row )" + std::to_string(i) + "\"}\n";
  const auto corpus = read(folder_.write("many.jsonl", rows));
  const std::filesystem::path path = kept()[0];
  std::filesystem::resize_file(path, 5000);
  EXPECT_EQ(text(*corpus, 0), "row 0");  // still there
  EXPECT_THAT(user_error_of([&] { corpus->read(2999); }),
              StartsWith(path.string() + ": was cut short while it was in use"));
  Documents documents;
  documents.add(corpus);
  EXPECT_THAT(user_error_of([&] { BatchSampler(documents, {}); }), StartsWith(path.string() + ": was cut short"));
  // Removing its name takes nothing from those who read it.
  const auto again = read(folder_.write("many.jsonl", rows));
  std::filesystem::remove(path);
  EXPECT_EQ(text(*again, 2999), "row 2999");
}

// The bytes on disk do not depend on the number of threads, and neither does the first error.
TEST_F(DataDataset, ThreadsChangeNothing) {
  std::string rows;
  for (int i = 0; i < 5000; ++i)
    rows += R"({"text": "row )" + std::string(static_cast<std::size_t>(i % 700), 'x') + "\"}\n";
  const auto file = folder_.write("many.jsonl", rows);
  const auto bad = folder_.write("bad.jsonl", rows + "nonsense\n" + rows + "[]\n");
  std::string expected, error;
  for (const int threads : {1, 2, 7}) {
    context_.threads = threads;
    context_.prepared = folder_ / ("prepared" + std::to_string(threads));
    read(file);
    ASSERT_EQ(kept().size(), 1u);
    const std::string bytes = inlay::testing::read_text(kept()[0]);
    if (expected.empty()) expected = bytes;
    EXPECT_TRUE(bytes == expected) << threads;
    EXPECT_THAT(error_of(bad), HasSubstr("bad.jsonl:5001: not valid JSON"));
    EXPECT_EQ(kept().size(), 1u);  // nothing is left of what was not finished
  }
}

// Whoever watches the progress may end the reading, and nothing of it remains.
TEST_F(DataDataset, ReadingCanBeStopped) {
  context_.prepared = folder_ / "prepared";
  context_.threads = 3;
  std::string rows;
  for (int i = 0; i < 20000; ++i) rows += R"({"text": "row )" + std::string(200, 'x') + "\"}\n";
  const auto file = folder_.write("many.jsonl", rows);
  int calls = 0;
  context_.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_LE(done, total);
    if (++calls == 3) user_error("enough");
  };
  EXPECT_EQ(error_of(file), "enough");
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(std::filesystem::is_empty(context_.prepared));
  context_.progress = {};
  EXPECT_EQ(read(file)->size(), 20000);
}

TEST_F(DataDataset, ABadRowEndsTheReadingWithItsPlace) {
  EXPECT_THAT(error_of(folder_.write("b.jsonl", chat + "\n{\"messages\": [\n")),
              HasSubstr("b.jsonl:2: not valid JSON"));
  EXPECT_THAT(error_of(folder_.write("b.jsonl", chat + "\n[1]\n")), HasSubstr("b.jsonl:2: expected an object"));
  EXPECT_THAT(error_of(folder_.write("b.json", "[" + chat + ", {\"messages\": []}]")),
              HasSubstr("b.json: row 2: messages: is empty"));
  EXPECT_THAT(error_of(folder_.write("b.json", "3")), HasSubstr("expected a list of rows"));
  EXPECT_EQ(error_of(folder_.write("b.json", chat + "\n" + chat)), "<no error>");  // many call it so
  DatasetOptions named;
  named.format.chat_template = "chatmll";
  EXPECT_THAT(
      error_of(folder_.write("b.jsonl", chat), named),
      HasSubstr("chat_template: 'chatmll' is neither tokenizer_default, a .jinja file, nor one of alpaca, chatml"));
  EXPECT_THAT(error_of(folder_.write("s.jsonl", R"({"text": "\ud800"})")), HasSubstr("s.jsonl:1: not valid JSON"));
  EXPECT_THAT(error_of(folder_.write("u.jsonl", "{\"text\": \"\xff\"}")), HasSubstr("u.jsonl:1: not valid JSON"));
  EXPECT_THAT(error_of(folder_.write("e.jsonl", "\n\n")), HasSubstr("e.jsonl: holds no rows"));
  EXPECT_THAT(error_of(folder_.write("n.jsonl", R"({"prompt": 1})")),
              HasSubstr("n.jsonl:1: it is not clear what the row is: it has prompt"));
  EXPECT_THAT(error_of(folder_.write("x.doc", "a")), HasSubstr(".jsonl, .json, .parquet, .csv, .tsv and .txt"));
  EXPECT_THAT(error_of(folder_.write("x.parquet", "a")), HasSubstr("x.parquet: is not a Parquet file"));
  EXPECT_THAT(error_of(folder_ / "nowhere.jsonl"), EndsWith("nowhere.jsonl: no such file"));
  EXPECT_THAT(error_of("/dev/null"), EndsWith(": is not a file"));
  std::filesystem::create_symlink(folder_ / "loop.jsonl", folder_ / "loop.jsonl");
  EXPECT_THAT(error_of(folder_ / "loop.jsonl"),
              EndsWith("loop.jsonl: cannot be read: Too many levels of symbolic links"));
}

std::string spoken(const std::vector<std::string>& roles) {
  std::string messages;
  for (const std::string& role : roles) {
    messages += (messages.empty() ? "" : ", ") + ("{\"role\": \"" + role + "\", \"content\": \"says " + role + "\"}");
  }
  return "{\"messages\": [" + messages + "]}\n";
}

// Its turns would silently not be learned.
TEST_F(DataDataset, AMisspelledRoleInSomeRowsIsAnError) {
  const std::string good = spoken({"user", "assistant"}), bad = spoken({"user", "assistant", "user", "assistnt"});
  const std::string what =
      ": message 4: 'assistnt' is not a known role, and not every row has it; did you mean assistant? ";
  const auto rows = folder_.write("rows.jsonl", good + good + bad + good);
  const std::string error = error_of(rows);
  EXPECT_THAT(error, StartsWith(rows.string() + ":3" + what));
  EXPECT_THAT(error, HasSubstr("Known are assistant, bot, chatgpt, developer, "));
  EXPECT_THAT(error, EndsWith("as in roles: {assistant: [assistnt]}"));
  // In the first row as well, where no other has set an example yet.
  const auto first = folder_.write("first.jsonl", bad + good);
  EXPECT_THAT(error_of(first), StartsWith(first.string() + ":1" + what));
  DatasetOptions named;
  named.format.roles = {{"assistant", {"assistnt"}}};
  EXPECT_EQ(read(rows, named)->size(), 4);
  // Bad rows that may be left out are.
  context_.bad_row = BadRow::skip;
  EXPECT_EQ(read(rows)->counts().skipped, 1);
  const std::string list = R"({"prompt": [{"role": "usr", "content": "Q"}], "completion": "A"})";
  const std::string text = R"({"prompt": "Q", "completion": "A"})";
  context_.bad_row = BadRow::raise;
  EXPECT_THAT(error_of(folder_.write("pairs.jsonl", text + "\n" + list + "\n")),
              HasSubstr(":2: message 1: 'usr' is not a known role, and not every row has it; did you mean user? "));
}

TEST_F(DataDataset, RolesThatAreMeantAreNotDoubted) {
  const std::string plain = spoken({"user", "assistant"});
  for (const char* role : {"tool", "developer", "function", "ipython", "system", "human", "gpt"}) {
    EXPECT_EQ(read(folder_.write("rows.jsonl", plain + spoken({"user", "assistant", role})))->size(), 2) << role;
  }
  // One of the data's own is in all rows, or is named: by the template, or by the options.
  const std::string own = spoken({"user", "critic", "assistant"});
  EXPECT_EQ(read(folder_.write("rows.jsonl", own + own))->size(), 2);
  const auto some = folder_.write("rows.jsonl", plain + own);
  EXPECT_THAT(error_of(some), HasSubstr("'critic' is not a known role, and not every row has it; known are assistant"));
  DatasetOptions options;
  options.format.roles_to_train = {"critic", "assistant"};
  EXPECT_EQ(read(some, options)->size(), 2);
  const std::string written = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
  model_.set_template("{% for m in messages %}{% if m.role == 'critic' %}!{% endif %}" + written);
  EXPECT_EQ(read(some)->size(), 2);
}

TEST_F(DataDataset, ARoleThatTheTemplateDoesNotWriteIsAnError) {
  const auto rows = folder_.write("rows.jsonl", spoken({"user", "assistant", "critic"}));
  const std::string written = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n";
  model_.set_template("{% for m in messages %}{% if m.role in ['user', 'assistant'] %}" + written +
                      "{% endif %}{% endfor %}");
  EXPECT_THAT(error_of(rows),
              HasSubstr(":1: message 3: 'critic' is not a known role, and the chat template leaves it out"));
  model_.set_template(
      "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
      "{{ raise_exception('roles must alternate') }}{% endif %}" +
      written + "{% endfor %}");
  EXPECT_THAT(error_of(rows),
              AllOf(HasSubstr("roles must alternate"), HasSubstr("message 3: 'critic' is not a known")));
}

TEST_F(DataDataset, ATypeBringsTheNamesOfItsKeys) {
  DatasetOptions pairs;
  pairs.format.type = "prompt_completion";
  EXPECT_EQ(error_of(folder_.write("p.jsonl", R"({"prompt": "a", "completion": "b"})"), pairs), "<no error>");
  const auto chosen = folder_.write("c.jsonl", R"({"prompt": "a", "chosen": "b", "rejected": "c"})");
  pairs.format.field_output = "chosen";
  EXPECT_EQ(error_of(chosen, pairs), "<no error>");
}

TEST_F(DataDataset, BadRowsMayBeSkippedAndAreCounted) {
  context_.bad_row = BadRow::skip;
  std::string notice;
  context_.notice = [&](const std::string& message) {
    EXPECT_TRUE(notice.empty());  // the first one only
    notice = message;
  };
  const std::string unlabelled = R"({"messages": [{"role": "user", "content": "Hi"}]})";
  const auto corpus =
      read(folder_.write("b.jsonl", "nonsense\n" + chat + "\n{\"messages\": []}\n" + unlabelled + "\n" + chat + "\n"));
  EXPECT_EQ(corpus->size(), 2);
  EXPECT_EQ(corpus->counts().rows, 5);
  EXPECT_EQ(corpus->counts().skipped, 2);
  EXPECT_EQ(corpus->counts().unlabelled, 1);
  EXPECT_THAT(notice, HasSubstr("b.jsonl:1: not valid JSON"));
  notice.clear();
  const auto tokens =
      read(folder_.write("t.jsonl", "{\"input_ids\": [1]}\n{\"input_ids\": [9999]}\n{\"input_ids\": [2]}\n"));
  EXPECT_EQ(tokens->size(), 2);
  EXPECT_EQ(tokens->counts().skipped, 1);
  notice.clear();
  EXPECT_THAT(error_of(folder_.write("all.jsonl", "x\ny\n")), HasSubstr("all.jsonl: holds no rows"));
  notice.clear();
  EXPECT_THAT(error_of(folder_.write("all.jsonl", "x\ny\n"), {.format = {.type = "completion"}}),
              HasSubstr("none of its 2 rows can be used; the first: "));
}

TEST_F(DataDataset, NothingToLearnIsAnError) {
  EXPECT_THAT(error_of(folder_.write("u.jsonl", R"({"messages": [{"role": "user", "content": "Hi"}]})")),
              HasSubstr("there is nothing to learn in its 1 row: no text"));
  // Who speaks in it is said, and what may be misspelled.
  const std::string error = error_of(folder_.write("u.jsonl", spoken({"user", "assistnt", "user"})));
  EXPECT_THAT(error, HasSubstr("; the first has messages of user and assistnt, and roles_to_train is [assistant]; "
                               "message 2: 'assistnt' is not a known role, and not learned; did you mean assistant? "));
  EXPECT_THAT(error_of(folder_.write("u.jsonl", spoken({"human"}))),
              EndsWith("; the first has messages of human, and roles_to_train is [assistant]"));
}

// As bytes they would go to a terminal that cannot show them either.
TEST_F(DataDataset, TextInAnotherEncodingSaysHowToConvertIt) {
  const std::string latin = "{\"text\": \"caf\xe9 au lait\"}";
  EXPECT_THAT(error_of(folder_.write("l.jsonl", "{\"text\": \"a\"}\n" + latin + "\n")),
              EndsWith("l.jsonl:2: not valid JSON: column 14 is the byte 0xE9, which is not UTF-8; iconv -f LATIN1 -t "
                       "UTF-8 FILE converts text in Latin-1"));
  EXPECT_THAT(error_of(folder_.write("l.txt", "a\ncaf\xe9 au lait\n")),
              EndsWith("l.txt:2: column 4 is the byte 0xE9, which is not UTF-8; iconv -f LATIN1 -t UTF-8 FILE converts "
                       "text in Latin-1"));
  EXPECT_THAT(error_of(folder_.write("l.csv", "text,more\na,b\nc,caf\xe9\n")),
              HasSubstr("l.csv:3: more: column 4 is the byte 0xE9, which is not UTF-8"));
  EXPECT_THAT(error_of(folder_.write("n.csv", "text,caf\xe9\na,b\n")),
              HasSubstr("n.csv:1: the name of a column: column 4 is the byte 0xE9"));
  EXPECT_THAT(error_of(folder_.write("l.json", "[{\"text\": \"a\"},\n" + latin + "]")),
              HasSubstr("l.json: not valid JSON: line 2, column 14 is the byte 0xE9, which is not UTF-8"));
}

TEST_F(DataDataset, AVeryLongLine) {
  const std::string word(10 << 20, 'a');
  const auto corpus = read(folder_.write("long.jsonl", "{\"text\": \"" + word + "\"}\n{\"text\": \"b\"}\n"));
  EXPECT_EQ(corpus->length(0), (10 << 20) + 1);
  EXPECT_EQ(text(*corpus, 1), "b");
}

TEST_F(DataDataset, ATokenizerThatKnowsMoreThanTheModelIsNoticed) {
  context_.vocab = 200;
  EXPECT_EQ(read(folder_.write("a.jsonl", R"({"segments": [{"label": true, "text": "ab"}]})"))->size(), 1);
  const auto file = folder_.write("a.jsonl", chat);
  const std::string error = error_of(file);
  EXPECT_THAT(error, StartsWith(file.string() + ":1: the tokenizer of "));
  EXPECT_THAT(error, HasSubstr("makes token 260 of it, but the model's vocabulary ends at 199"));
  context_.bad_row = BadRow::skip;  // all rows would go
  EXPECT_EQ(error_of(file), error);
}

TEST_F(DataDataset, WhatWasReadIsKept) {
  context_.prepared = folder_ / "prepared";
  const auto file = folder_.write("k.jsonl", chat);
  const auto entries = [&] { return kept().size(); };
  const std::uint64_t digest = read(file)->digest();
  EXPECT_EQ(entries(), 1u);
  // From the file that was kept: nothing is parsed now.
  bool parsed = false;
  context_.progress = [&](std::uint64_t, std::uint64_t) { parsed = true; };
  EXPECT_EQ(read(file)->digest(), digest);
  EXPECT_FALSE(parsed);
  EXPECT_EQ(entries(), 1u);
  // Anything that matters gives another one: the ending too, which says how a file is read.
  EXPECT_NE(read(folder_.write("k.txt", chat))->digest(), digest);
  std::filesystem::remove_all(context_.prepared);
  EXPECT_EQ(read(file)->digest(), digest);
  EXPECT_NE(read(file, {.format = {.train_on_eos = "none"}})->digest(), digest);
  EXPECT_EQ(entries(), 2u);
  model_.set_template("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}");
  EXPECT_NE(read(file)->digest(), digest);
  EXPECT_EQ(entries(), 3u);
  EXPECT_NE(read(folder_.write("k.jsonl", chat + "\n" + chat))->digest(), digest);
  EXPECT_EQ(entries(), 4u);
  EXPECT_TRUE(parsed);
}

TEST_F(DataDataset, AKeptFileThatIsBrokenIsMadeAgain) {
  context_.prepared = folder_ / "prepared";
  const auto file = folder_.write("k.jsonl", chat);
  const std::uint64_t digest = read(file)->digest();
  std::filesystem::resize_file(kept()[0], 20);
  EXPECT_EQ(read(file)->digest(), digest);
  context_.prepared = folder_.write("not-a-folder", "x");
  std::string notice;
  context_.notice = [&](const std::string& message) { notice = message; };
  EXPECT_EQ(read(file)->digest(), digest);  // a cache that cannot be written is no error
  EXPECT_THAT(notice, HasSubstr("the documents stay in memory"));
}

}  // namespace
}  // namespace inlay::data
