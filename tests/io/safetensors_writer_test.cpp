#include "io/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "io/checkpoint.h"
#include "io/json.h"
#include "io/manifest.h"
#include "io/safetensors.h"
#include "support/files.h"

namespace inlay::io {
namespace {

using inlay::testing::read_text;
using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Bytes that depend on the tensor's name and on their place.
std::vector<std::byte> content(const TensorSpec& spec) {
  std::vector<std::byte> bytes(spec.bytes());
  const auto salt = static_cast<std::size_t>(std::accumulate(spec.name.begin(), spec.name.end(), 0));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + salt);
  return bytes;
}

bool holds(const SafetensorsFile& file, const TensorSpec& spec) {
  const TensorInfo* info = file.find(spec.name);
  return info != nullptr && info->dtype == spec.dtype && info->shape == spec.shape &&
         std::ranges::equal(file.bytes(*info), content(spec));
}

const std::vector<TensorSpec> mixed = {
    {.name = "odd", .dtype = DType::u8, .shape = {3}},
    {.name = "matrix", .dtype = DType::f32, .shape = {5, 7}},
    {.name = "empty", .dtype = DType::bf16, .shape = {0, 16}},
    {.name = "scalar", .dtype = DType::f64, .shape = {}},
    {.name = "five", .dtype = DType::i16, .shape = {1, 2, 1, 3, 1}},
    {.name = "unicode \"\u00fc\"\n", .dtype = DType::bf16, .shape = {9}},
    {.name = "half", .dtype = DType::f16, .shape = {2, 2, 2, 2}},
    {.name = "long", .dtype = DType::i64, .shape = {1}},
    {.name = "flag", .dtype = DType::boolean, .shape = {1, 1}},
    {.name = "empty at the end", .dtype = DType::i8, .shape = {0}},
};

TEST(IoSafetensorsWriter, RoundTripsEveryType) {
  const TempFolder folder;
  const auto path = folder / "t.safetensors";
  SafetensorsWriter writer(path, mixed, {{"format", "pt"}, {"note", "a \"quoted\" one"}});
  for (const TensorSpec& spec : mixed) writer.write(spec.name, content(spec));
  EXPECT_TRUE(writer.complete());
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.finish();
  EXPECT_EQ(folder.entry_count(), 1u);

  const SafetensorsFile file(path);
  EXPECT_EQ(file.tensors().size(), mixed.size());
  EXPECT_EQ(file.metadata().at("note"), "a \"quoted\" one");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, read_text(path).data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
  for (const TensorSpec& spec : mixed) {
    EXPECT_TRUE(holds(file, spec)) << spec.name;
    EXPECT_EQ(file.find(spec.name)->begin % size_of(spec.dtype), 0u) << spec.name;
    if (spec.shape.size() > max_rank) continue;
    const ConstView view = file.tensor(spec.name);
    EXPECT_FALSE(view.absent());
    EXPECT_EQ(static_cast<const void*>(view.data()), file.bytes(*file.find(spec.name)).data()) << "aligned, not copied";
  }
}

TEST(IoSafetensorsWriter, AnyOrderAndPartsGiveTheSameBytes) {
  const TempFolder folder;
  const auto write_in_order = [&](const std::string& name) {
    SafetensorsWriter writer(folder / name, mixed);
    for (const TensorSpec& spec : mixed) writer.write(spec.name, content(spec));
    writer.finish();
    return read_text(folder / name);
  };
  SafetensorsWriter writer(folder / "parts", mixed);
  for (std::size_t i = mixed.size(); i-- > 0;) {
    const auto bytes = content(mixed[i]);
    const std::size_t half = bytes.size() / 2;
    writer.write_part(mixed[i].name, half, std::span(bytes).subspan(half));
    writer.write_part(mixed[i].name, 0, std::span(bytes).first(half));
  }
  writer.finish();
  EXPECT_EQ(read_text(folder / "parts"), write_in_order("whole"));
  EXPECT_EQ(read_text(folder / "whole"), write_in_order("again"));
}

TEST(IoSafetensorsWriter, WithoutFinishNothingStays) {
  const TempFolder folder;
  const auto path = folder.write("model.safetensors", "old");
  {
    SafetensorsWriter writer(path, mixed);
    writer.write("matrix", content(mixed[1]));
  }
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(folder.entry_count(), 1u);
}

// Each of three writes every third byte range of every tensor, in an order of its own, and the file is the one that a
// single writer makes.
TEST(IoSafetensorsWriter, ManyWritersMakeTheSameFile) {
  const TempFolder folder;
  SafetensorsWriter one(folder / "one", mixed);
  std::vector<TensorSpec> in_order = mixed;
  widest_first(in_order);
  for (const TensorSpec& spec : in_order) one.write(spec.name, content(spec));
  one.finish();
  std::vector<std::unique_ptr<SafetensorsWriter>> many;
  for (int i = 0; i < 3; ++i) {
    many.push_back(std::make_unique<SafetensorsWriter>(folder / "many", mixed, model_metadata, Writers::many));
  }
  EXPECT_THAT(user_error_of([&] { many[1]->write("odd", content(mixed[0])); }), HasSubstr("must see the same files"));
  many[2]->create();
  EXPECT_EQ(std::filesystem::file_size(folder / "many"), std::filesystem::file_size(folder / "one"));
  std::uint64_t written = 0;
  for (const std::size_t writer : {1u, 0u, 2u}) {
    for (const TensorSpec& spec : mixed) {
      const std::vector<std::byte> bytes = content(spec);
      for (std::size_t at = 5 * writer; at < bytes.size(); at += 15) {
        many[writer]->write_part(spec.name, at,
                                 std::span(bytes).subspan(at, std::min<std::size_t>(5, bytes.size() - at)));
      }
    }
    many[writer]->finish();
    written += many[writer]->written_bytes();
  }
  EXPECT_EQ(written, one.tensor_bytes());
  EXPECT_EQ(read_text(folder / "many"), read_text(folder / "one"));
  EXPECT_EQ(sum_of(folder / "many"), one.sum());
}

TEST(IoSafetensorsWriter, MistakesOfTheCallerAreAssertions) {
  const TempFolder folder;
  const std::vector<float> values(12, 1.0f);
  const ConstView view(values.data(), DType::f32, Shape{3, 4});
  SafetensorsWriter writer(folder / "t", {{.name = "a", .shape = {3, 4}}, {.name = "b", .shape = {12}}});
  EXPECT_THROW(writer.write("absent", view), InternalError);
  EXPECT_THROW(writer.write("b", view), InternalError);  // the right size, another shape
  EXPECT_THROW(writer.write("a", std::as_bytes(std::span(values).first(11))), InternalError);
  EXPECT_THROW(writer.write_part("a", 4, std::as_bytes(std::span(values))), InternalError);
  writer.write("a", view);
  EXPECT_THROW(writer.write("a", view), InternalError);
  EXPECT_THROW(writer.finish(), InternalError);
  writer.write("b", std::as_bytes(std::span(values)));
  EXPECT_NO_THROW(writer.finish());
  EXPECT_THROW(SafetensorsWriter(folder / "u", {{.name = "a", .shape = {}}, {.name = "a", .shape = {}}}),
               InternalError);
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(IoShardedWriter, PlansByBytes) {
  const auto sizes = [](std::vector<std::int64_t> tensors, std::uint64_t limit) {
    std::vector<TensorSpec> specs;
    for (const std::int64_t bytes : tensors) {
      specs.push_back({.name = std::to_string(specs.size()), .dtype = DType::u8, .shape = {bytes}});
    }
    std::vector<std::size_t> counts;
    for (const auto& shard : plan_shards(std::move(specs), limit)) counts.push_back(shard.size());
    return counts;
  };
  EXPECT_THAT(sizes({}, 10), ElementsAre(0));
  EXPECT_THAT(sizes({5, 5}, 10), ElementsAre(2));
  EXPECT_THAT(sizes({5, 5, 1}, 10), ElementsAre(2, 1));
  EXPECT_THAT(sizes({5, 6, 4, 1}, 10), ElementsAre(1, 2, 1));
  EXPECT_THAT(sizes({1, 50, 1, 1}, 10), ElementsAre(1, 1, 2));
  EXPECT_THAT(sizes({50}, 10), ElementsAre(1));
}

TEST(IoShardedWriter, OneShardHasNoIndex) {
  const TempFolder folder;
  folder.write("model.safetensors.index.json", "{}");
  folder.write("model-00001-of-00002.safetensors", "old");
  folder.write("config.json", "{}");
  ShardedWriter writer(folder.path(), mixed);
  for (const TensorSpec& spec : mixed) writer.write(spec.name, content(spec));
  writer.finish();
  EXPECT_EQ(folder.entry_count(), 2u);  // the old weights are gone, config.json is not
  const Checkpoint checkpoint(folder.path());
  EXPECT_EQ(checkpoint.names().size(), mixed.size());
  EXPECT_EQ(checkpoint.total_bytes(), writer.tensor_bytes());
  EXPECT_EQ(checkpoint.files().front().metadata().at("format"), "pt");
}

TEST(IoShardedWriter, ShardsAndIndex) {
  const TempFolder folder;
  folder.write("model.safetensors", "old");
  ShardedWriter writer(folder.path(), mixed, 80);
  EXPECT_EQ(writer.shard_count(), 3u);  // odd | matrix, alone too large | the rest
  for (std::size_t i = mixed.size(); i-- > 0;) writer.write(mixed[i].name, content(mixed[i]));
  EXPECT_FALSE(std::filesystem::exists(folder / "model-00001-of-00003.safetensors"));
  writer.finish();
  EXPECT_EQ(folder.entry_count(), 4u);
  const Json index = Json::read(folder / "model.safetensors.index.json");
  EXPECT_EQ(index.object("metadata").integer("total_size"), static_cast<std::int64_t>(writer.tensor_bytes()));
  EXPECT_EQ(index.object("weight_map").string("matrix"), "model-00002-of-00003.safetensors");
  const Checkpoint checkpoint(folder.path());
  EXPECT_EQ(checkpoint.names().size(), mixed.size());
  EXPECT_EQ(checkpoint.total_bytes(), writer.tensor_bytes());
  for (const TensorSpec& spec : mixed) {
    ASSERT_TRUE(checkpoint.contains(spec.name));
    EXPECT_TRUE(holds(SafetensorsFile(checkpoint.path_of(spec.name)), spec)) << spec.name;
  }
}

TEST(IoShardedWriter, ManyWritersMakeTheSameFolder) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "one");
  std::filesystem::create_directory(folder / "many");
  ShardedWriter one(folder / "one", mixed, 64), first(folder / "many", mixed, 64, Writers::many),
      second(folder / "many", mixed, 64, Writers::many);
  first.create();
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    one.write(mixed[i].name, content(mixed[i]));
    (i % 2 == 0 ? first : second).write(mixed[i].name, content(mixed[i]));
  }
  for (ShardedWriter* writer : {&one, &second, &first}) writer->finish();
  EXPECT_GT(one.shard_count(), 1u);
  EXPECT_EQ(first.written_bytes() + second.written_bytes(), one.tensor_bytes());
  EXPECT_EQ(first.files(), one.files());
  for (const std::string& file : one.files()) {
    EXPECT_EQ(read_text(folder / "many" / file), read_text(folder / "one" / file)) << file;
  }
}

TEST(IoShardedWriter, WithoutFinishNothingChanges) {
  const TempFolder folder;
  folder.write("model.safetensors", "old");
  {
    ShardedWriter writer(folder.path(), mixed, 80);
    for (const TensorSpec& spec : mixed) writer.write(spec.name, content(spec));
  }
  EXPECT_EQ(folder.entry_count(), 1u);
  EXPECT_EQ(read_text(folder / "model.safetensors"), "old");
  ShardedWriter nowhere(folder / "absent", mixed);
  EXPECT_THAT(user_error_of([&] { nowhere.write("matrix", content(mixed[1])); }), HasSubstr("does not exist"));
}

TEST(IoShardedWriter, CopiesARealModel) {
  const auto data = inlay::testing::test_data();
  if (!data) GTEST_SKIP() << "no test data (INLAY_TEST_DATA, or shared/data beside the repository)";
  const TempFolder folder;
  const Checkpoint source(*data / "models/stories260K");
  std::vector<TensorSpec> specs;
  for (const std::string& name : source.names()) {
    const TensorInfo* info = source.find(name);
    specs.push_back({.name = name, .dtype = *info->dtype, .shape = info->shape});
  }
  ShardedWriter writer(folder.path(), specs, 300'000);
  EXPECT_GT(writer.shard_count(), 2u);
  for (const std::string& name : source.names()) writer.write(name, source.tensor(name));
  writer.finish();
  const Checkpoint copy(folder.path());
  EXPECT_EQ(copy.names(), source.names());
  EXPECT_EQ(copy.total_bytes(), source.total_bytes());
  for (const std::string& name : source.names()) {
    const ConstView a = source.tensor(name), b = copy.tensor(name);
    ASSERT_EQ(a.shape(), b.shape());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0) << name;
    copy.drop(name);
  }
}

}  // namespace
}  // namespace inlay::io
