#include "io/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/files.h"

namespace inlay::io {
namespace {

using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Json config(std::string_view text) { return Json::parse(text, "config.json"); }

TEST(IoJson, ReadsEveryKind) {
  const Json json = config(R"({"i": 3, "f": 2.5, "whole": 4096.0, "b": true, "s": "text", "a": [1, 2], "n": null,
                               "o": {"deep": {"x": [10, {"y": -7}]}}})");
  EXPECT_EQ(json.integer("i"), 3);
  EXPECT_EQ(json.integer("whole", positive_integer), 4096);
  EXPECT_EQ(json.number("f"), 2.5);
  EXPECT_EQ(json.number("i"), 3.0);
  EXPECT_TRUE(json.boolean("b"));
  EXPECT_EQ(json.string("s"), "text");
  EXPECT_THAT(json.integers("a"), ElementsAre(1, 2));
  EXPECT_EQ(json.array("a").size(), 2u);
  EXPECT_FALSE(json.has("n"));
  EXPECT_FALSE(json.has("absent"));
  EXPECT_EQ(json.find_integer("n").value_or(9), 9);
  EXPECT_EQ(json.find_string("absent"), std::nullopt);
  EXPECT_EQ(json.find_number("f"), 2.5);
  EXPECT_THAT(json.object("o").keys(), ElementsAre("deep"));
  const Json y = json.object("o").object("deep").array("x")[1].at("y");
  EXPECT_EQ(y.as_integer(), -7);
  EXPECT_EQ(y.path(), "o.deep.x[1].y");
}

TEST(IoJson, ValuesOutliveTheDocument) {
  std::optional<Json> inner;
  {
    const Json document = config(R"({"a": {"b": ["long enough to live on the heap, beyond any small buffer"]}})");
    inner = document.object("a").array("b")[0];
  }
  EXPECT_THAT(inner->as_string(), StartsWith("long enough"));
}

TEST(IoJson, ErrorsNameFileKeyAndWhatWouldBeRight) {
  const Json json = config(R"({"hidden_size": "abc", "zero": 0, "neg": -1, "half": 0.5, "n": null, "list": [1, "x"],
                               "rope": {"factor": true}, "huge": 18446744073709551615, "name": 3})");
  const auto expect = [](std::string_view text, auto action) { EXPECT_EQ(user_error_of(action), text); };
  expect(R"(config.json: hidden_size: expected a positive integer, got "abc")",
         [&] { json.integer("hidden_size", positive_integer); });
  expect("config.json: zero: expected a positive integer, got 0", [&] { json.integer("zero", positive_integer); });
  expect("config.json: neg: expected a non-negative integer, got -1",
         [&] { json.find_integer("neg", non_negative_integer); });
  expect("config.json: half: expected an integer, got 0.5", [&] { json.integer("half"); });
  expect("config.json: zero: expected an integer from 2 to 5, got 0", [&] { json.integer("zero", {2, 5}); });
  expect("config.json: huge: expected an integer, got 18446744073709551615", [&] { json.integer("huge"); });
  expect("config.json: n: expected a positive integer, got null", [&] { json.integer("n", positive_integer); });
  expect("config.json: absent: missing, expected a string", [&] { json.string("absent"); });
  expect("config.json: rope.factor: expected a number above 0, got true",
         [&] { json.object("rope").number("factor", positive_number); });
  expect("config.json: zero: expected a number above 0, got 0", [&] { json.number("zero", positive_number); });
  expect("config.json: half: expected a number of at least 1 and at most 2, got 0.5",
         [&] { json.number("half", {.min = 1, .max = 2}); });
  expect("config.json: list[1]: expected an integer, got \"x\"", [&] { json.integers("list"); });
  expect("config.json: name: expected a string, got 3", [&] { json.find_string("name"); });
  expect("config.json: list: expected an object, got an array", [&] { json.find_object("list"); });
  expect("config.json: rope: expected an array of integers, got an object", [&] { json.find_integers("rope"); });
  expect("config.json: name: expected true or false, got 3", [&] { json.boolean("name"); });
  expect("config.json: expected an object, got an array", [] { config("[1]").integer("x"); });
  expect("config.json: rope.factor: is odd", [&] { json.object("rope").fail("factor", "is odd"); });
}

TEST(IoJson, LongAndBinaryTextIsShownShort) {
  const std::string long_text(5000, 'x');
  const Json json = config("{\"a\": \"" + long_text + "\", \"\\u001b[2J\": 1}");
  EXPECT_LT(user_error_of([&] { json.integer("a"); }).size(), 250u);
  EXPECT_EQ(user_error_of([&] { json.string("\x1b[2J"); }), R"(config.json: "\u001b[2J": expected a string, got 1)");
  EXPECT_EQ(in_quotes("a\"b"), R"("a\"b")");
  EXPECT_NO_THROW(in_quotes("\xff\xfe"));
}

TEST(IoJson, RefusesWhatIsNotJson) {
  for (const char* text : {"", " ", "{", "{\"a\":}", "{\"a\":1,}", "nul", "{'a':1}", "[1] 2", "{\"a\":1e999}",
                           "\"\xff\"", "[1, NaN]", "{\"a\":01}"}) {
    EXPECT_THAT(user_error_of([&] { config(text); }), StartsWith("config.json: not valid JSON: ")) << text;
  }
  EXPECT_LT(user_error_of([&] { config("\"" + std::string(100000, 'x')); }).size(), 400u);
}

TEST(IoJson, RefusesDuplicateKeys) {
  EXPECT_EQ(user_error_of([] { config(R"({"a": 1, "b": {"a": 2}, "a": 3})"); }),
            "config.json: the key \"a\" occurs twice");
  EXPECT_EQ(user_error_of([] { config(R"({"x": [{"k": 1}, {"k": 1, "\u006b": 2}]})"); }),
            "config.json: the key \"k\" occurs twice");
  EXPECT_NO_THROW(config(R"({"x": [{"k": 1}, {"k": 1}], "k": {"x": 2}})"));
}

TEST(IoJson, BoundsTheDepth) {
  const auto nested = [](std::size_t depth, char open, char close) {
    return std::string(depth, open) + std::string(depth, close);
  };
  EXPECT_NO_THROW(config(nested(Json::max_depth, '[', ']')));
  EXPECT_EQ(user_error_of([&] { config(nested(Json::max_depth + 1, '[', ']')); }),
            "config.json: nested more than 256 levels deep");
  EXPECT_THAT(user_error_of([&] { config(std::string(5'000'000, '[')); }), HasSubstr("nested"));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_THAT(user_error_of([&] { config(objects); }), HasSubstr("nested"));
}

TEST(IoJson, ReadNamesTheFile) {
  const TempFolder folder;
  EXPECT_THAT(user_error_of([&] { Json::read(folder / "absent.json"); }), EndsWith("absent.json: no such file"));
  EXPECT_THAT(user_error_of([&] { Json::read(folder.path()); }), EndsWith(": is a folder, expected a file"));
  const auto path = folder.write("bad.json", "{");
  EXPECT_THAT(user_error_of([&] { Json::read(path); }), StartsWith(path.string() + ": not valid JSON"));
  const auto large = folder.write("large.json", "{}");
  std::filesystem::resize_file(large, Json::max_file_bytes + 1);  // sparse: takes no space
  EXPECT_THAT(user_error_of([&] { Json::read(large); }), HasSubstr("at most 256.0 MiB is allowed here"));
}

}  // namespace
}  // namespace inlay::io
