#include "io/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/json.h"
#include "io/safetensors_writer.h"
#include "support/files.h"

namespace inlay::io {
namespace {

using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// A file with one-element fp32 tensors of the given names.
void write_shard(const TempFolder& folder, const std::string& file, const std::vector<std::string>& names,
                 float value) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({.name = name, .shape = {1}});
  SafetensorsWriter writer(folder / file, specs);
  for (const std::string& name : names) writer.write(name, ConstView(&value, DType::f32, Shape{1}));
  writer.finish();
}

std::string error_of(const std::filesystem::path& folder) {
  return user_error_of([&] { Checkpoint checkpoint(folder); });
}

std::string index_error(const TempFolder& folder, std::string_view index) {
  const auto path = folder.write("model.safetensors.index.json", index);
  const std::string message = error_of(folder.path());
  const std::string prefix = path.string() + ": ";
  return message.starts_with(prefix) ? message.substr(prefix.size()) : message;
}

TEST(IoCheckpoint, SingleFileComesBeforeTheIndex) {
  const TempFolder folder;
  write_shard(folder, "model.safetensors", {"b", "a"}, 2.0f);
  folder.write("model.safetensors.index.json", "not even JSON");
  const Checkpoint checkpoint(folder.path());
  EXPECT_THAT(checkpoint.names(), ElementsAre("a", "b"));
  EXPECT_EQ(checkpoint.total_bytes(), 8u);
  EXPECT_EQ(*checkpoint.tensor("a").as<float>(), 2.0f);
  EXPECT_TRUE(checkpoint.contains("b"));
  EXPECT_FALSE(checkpoint.contains("c"));
  EXPECT_EQ(checkpoint.find("c"), nullptr);
  EXPECT_EQ(checkpoint.path_of("a").filename(), "model.safetensors");
  EXPECT_THAT(user_error_of([&] { checkpoint.tensor("c"); }), EndsWith(R"(: the model has no tensor "c")"));
}

TEST(IoCheckpoint, Shards) {
  const TempFolder folder;
  write_shard(folder, "x.safetensors", {"a", "b"}, 1.0f);
  write_shard(folder, "y.safetensors", {"b", "c"}, 2.0f);  // b stands in both; the index decides
  folder.write(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":12},"weight_map":{"a":"x.safetensors","b":"y.safetensors","c":"y.safetensors"}})");
  const Checkpoint checkpoint(folder.path());
  EXPECT_THAT(checkpoint.names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(checkpoint.total_bytes(), 12u);
  EXPECT_EQ(*checkpoint.tensor("a").as<float>(), 1.0f);
  EXPECT_EQ(*checkpoint.tensor("b").as<float>(), 2.0f);
  EXPECT_EQ(checkpoint.path_of("b").filename(), "y.safetensors");
}

// What is not read does not matter: some checkpoints have tensors of other types beside those of the model.
TEST(IoCheckpoint, HashesPassOverTypesThatAreNotRead) {
  const TempFolder folder;
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("odd":{"dtype":"C64","shape":[1],"data_offsets":[4,12]}})";
  const auto written = [&](const std::string& values) {
    const std::uint64_t length = header.size();
    folder.write("model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + header + values);
    const Checkpoint checkpoint(folder.path());
    return std::pair(checkpoint.content_hash(), checkpoint.sampled_hash());
  };
  const auto first = written("0123abcdefgh");
  EXPECT_EQ(written("0123ABCDEFGH"), first);
  EXPECT_NE(written("0124abcdefgh").first, first.first);
}

TEST(IoCheckpoint, BadIndexes) {
  const TempFolder folder;
  write_shard(folder, "x.safetensors", {"a"}, 1.0f);
  EXPECT_THAT(index_error(folder, "{"), HasSubstr("not valid JSON"));
  EXPECT_EQ(index_error(folder, "{}"), "weight_map: missing, expected an object");
  EXPECT_EQ(index_error(folder, R"({"weight_map":[]})"), "weight_map: expected an object, got an array");
  EXPECT_EQ(index_error(folder, R"({"weight_map":{}})"), "weight_map: lists no tensors");
  EXPECT_EQ(index_error(folder, R"({"weight_map":{"a":1}})"), "weight_map.a: expected a string, got 1");
  EXPECT_EQ(index_error(folder, R"({"weight_map":{"a":"y.safetensors"}})"),
            R"(weight_map.a: its file "y.safetensors" is missing from the folder)");
  EXPECT_EQ(index_error(folder, R"({"weight_map":{"b":"x.safetensors"}})"),
            R"(weight_map.b: its file "x.safetensors" has no such tensor)");
  for (const char* name : {"", ".", "..", "../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..\\\\x.safetensors",
                           "x.safetensors\\u0000", "pytorch_model.bin"}) {
    EXPECT_THAT(index_error(folder, fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name)),
                HasSubstr("weight_map.a: expected the name of a .safetensors file in the same folder"))
        << name;
  }
  EXPECT_EQ(index_error(folder, R"({"weight_map":{"a":"x.safetensors"}})"), "<no error>");
  folder.write("x.safetensors", "damaged");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("x.safetensors: not a safetensors file"));
}

TEST(IoCheckpoint, FoldersWithoutWeights) {
  const TempFolder folder;
  EXPECT_THAT(error_of(folder / "absent"), EndsWith("absent: no such folder"));
  EXPECT_THAT(error_of(folder.write("file", "")), HasSubstr("is not a folder"));
  EXPECT_THAT(error_of(folder.path()), EndsWith("has neither model.safetensors nor model.safetensors.index.json"));
  folder.write("consolidated.safetensors", "");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("(it does have \"consolidated.safetensors\")"));
  folder.write("pytorch_model-00001-of-00002.bin", "");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("convert it to safetensors"));
  folder.write("model.safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  EXPECT_THAT(error_of(folder.path()), EndsWith("model.safetensors: holds no tensors"));
}

TEST(IoCheckpoint, RealIndexesAreUnderstood) {
  const auto data = inlay::testing::test_data();
  if (!data) GTEST_SKIP() << "no test data (INLAY_TEST_DATA, or shared/data beside the repository)";
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*data / "hf_configs")) {
    if (!entry.path().string().ends_with(".model.safetensors.index.json")) continue;
    // The shards are not there; the first one that is looked for is what must be missed.
    const TempFolder folder;
    std::filesystem::copy_file(entry.path(), folder / "model.safetensors.index.json");
    EXPECT_THAT(error_of(folder.path()), HasSubstr("is missing from the folder")) << entry.path();
    ++count;
  }
  EXPECT_GT(count, 0);
  EXPECT_EQ(Checkpoint(*data / "models/stories15M").total_bytes() % 4, 0u);
}

}  // namespace
}  // namespace inlay::io
