#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "study/options.h"
#include "support/command.h"
#include "support/paths.h"

// What `./dev demo` is made of still fits together. Nothing is trained.
namespace inlay::testing {
namespace {

const std::string demo = source_folder().string() + "/demo/";

int make_data(const std::string& cipher, const TempFolder& folder) {
  const std::string prefix = (folder / cipher).string();
  const std::string command = "awk -v cipher=" + cipher + " -v seed=3 -v count=300 -v whole=0.1 -v train=" + prefix +
                              "-train.jsonl -v test=" + prefix + "-test.jsonl -f " + demo + "cipher.awk";
  return std::system(command.c_str());
}

struct Line {
  std::string word, answer;
  char mark = 0;
  std::size_t learned = 0;  // labels
};

std::vector<Line> read_lines(const std::filesystem::path& file) {
  std::vector<Line> lines;
  std::istringstream text(read_text(file));
  for (std::string row; std::getline(text, row);) {
    const auto json = nlohmann::json::parse(row);
    const auto ids = json.at("input_ids").get<std::vector<int>>(), labels = json.at("labels").get<std::vector<int>>();
    EXPECT_EQ(ids.front(), 256);
    EXPECT_EQ(ids.back(), 257);
    const std::string written(ids.begin() + 1, ids.end() - 1);
    const std::size_t middle = written.size() / 2;
    Line line{written.substr(0, middle), written.substr(middle + 1), written[middle]};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (labels.at(i) == -100) continue;
      EXPECT_EQ(labels[i], ids[i]);
      ++line.learned;
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

TEST(CliDemo, TheCiphersAreWhatTheySay) {
  const TempFolder folder;
  const auto check = [&](const std::string& cipher, char mark, auto&& image) {
    ASSERT_EQ(make_data(cipher, folder), 0);
    std::set<std::string> tested;
    std::size_t whole = 0;
    for (const char* part : {"-test.jsonl", "-train.jsonl"}) {
      const bool test = std::string(part) == "-test.jsonl";
      const std::vector<Line> lines = read_lines(folder / (cipher + part));
      ASSERT_EQ(lines.size(), test ? 200u : 300u);
      for (const Line& line : lines) {
        ASSERT_EQ(line.mark, mark);
        ASSERT_EQ(line.word.size(), line.answer.size());
        for (std::size_t i = 0; i < line.word.size(); ++i) ASSERT_EQ(line.answer[i], image(line.word[i])) << line.word;
        if (test) {
          tested.insert(line.word);
          EXPECT_EQ(line.learned, line.answer.size() + 1);  // and the end
        } else {
          EXPECT_FALSE(tested.contains(line.word));
          whole += line.learned > line.answer.size() + 1 ? 1 : 0;
        }
      }
    }
    EXPECT_GT(whole, 10u);
    EXPECT_LT(whole, 60u);
  };
  check("next", '+', [](char c) { return c == 'z' ? 'a' : static_cast<char>(c + 1); });
  check("mirror", '~', [](char c) { return static_cast<char>('a' + 'z' - c); });
  check("previous", '-', [](char c) { return c == 'a' ? 'z' : static_cast<char>(c - 1); });
}

TEST(CliDemo, EveryRunOfItCanBePlanned) {
  const TempFolder folder;
  for (const char* cipher : {"next", "mirror", "previous"}) ASSERT_EQ(make_data(cipher, folder), 0);
  ASSERT_EQ(inlay({"init", "--preset", "tiny", folder / "random"}).code, 0);
  folder.write("base.yaml", read_text(demo + "base.yaml"));
  const CommandResult base = inlay({"plan", folder / "base.yaml"});
  EXPECT_EQ(base.code, 0) << base.err;
  // The base model has the shape of the random one it is made from.
  std::string yaml = read_text(demo + "study.yaml");
  yaml.replace(yaml.find(" base\n"), 6, " random\n");
  const study::ContinualOptions study = study::load_studies(folder.write("study.yaml", yaml)).front();
  ASSERT_EQ(study.methods.size(), 3u);
  for (const study::ContinualMethod& method : study.methods) {
    for (const options::TrainOptions& training : method.training) {
      folder.write("run.yaml", options::to_yaml(training));
      const CommandResult plan = inlay({"plan", folder / "run.yaml"});
      EXPECT_EQ(plan.code, 0) << method.name << ": " << plan.err;
    }
  }
}

}  // namespace
}  // namespace inlay::testing
