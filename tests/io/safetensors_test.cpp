#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/philox.h"
#include "support/files.h"

namespace inlay::io {
namespace {

using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A file made by hand: the header as given, then `data`.
std::string file_text(std::string_view header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), sizeof(length));
  return text.append(header).append(data);
}

constexpr std::string_view small_header =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"U8","shape":[],"data_offsets":[32,33]}})";

std::string small_file() {
  std::string data(33, '\0');
  for (int i = 0; i < 6; ++i) {
    const float value = static_cast<float>(i) + 0.5f;
    std::memcpy(data.data() + 4 * i, &value, 4);
  }
  data[32] = 7;
  return file_text(small_header, data);
}

// The error that a header gets with so many bytes of data; the file's name is taken off.
std::string header_error(std::string_view header, std::size_t data_bytes) {
  const TempFolder folder;
  const auto path = folder.write("t.safetensors", file_text(header, std::string(data_bytes, 'x')));
  const std::string message = user_error_of([&] { SafetensorsFile file(path); });
  const std::string prefix = path.string() + ": ";
  return message.starts_with(prefix) ? message.substr(prefix.size()) : message;
}

TEST(IoSafetensors, ReadsTensorsAndMetadata) {
  const TempFolder folder;
  // This header's length is no multiple of 8: the views must be aligned nevertheless.
  const SafetensorsFile file(folder.write("t.safetensors", small_file()));
  EXPECT_THAT(file.names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.data_bytes(), 33u);
  const ConstView a = file.tensor("a");
  EXPECT_EQ(a.dtype(), DType::f32);
  EXPECT_EQ(a.shape(), (Shape{2, 3}));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 4, 0u);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(a.as<float>()[i], static_cast<float>(i) + 0.5f);
  EXPECT_EQ(file.tensor("b").dtype(), DType::bf16);
  EXPECT_EQ(file.tensor("c").shape(), Shape{});
  EXPECT_EQ(file.tensor("c").size(), 1);
  EXPECT_EQ(*file.tensor("c").as<std::uint8_t>(), 7);
  file.prefetch("a");
  file.drop("a");
  file.drop("absent");
  EXPECT_EQ(file.tensor("a").as<float>()[5], 5.5f);
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_THAT(user_error_of([&] { file.tensor("absent"); }), EndsWith(R"(t.safetensors: has no tensor "absent")"));
}

TEST(IoSafetensors, MovedFilesKeepTheirTensors) {
  const TempFolder folder;
  SafetensorsFile file(folder.write("t.safetensors", small_file()));
  const SafetensorsFile moved(std::move(file));
  EXPECT_EQ(moved.tensor("a").as<float>()[1], 1.5f);
}

TEST(IoSafetensors, TruncatedAnywhereIsAnError) {
  const TempFolder folder;
  const std::string whole = small_file();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto path = folder.write("t.safetensors", whole.substr(0, length));
    ASSERT_THAT(user_error_of([&] { SafetensorsFile file(path); }), StartsWith(path.string() + ": ")) << length;
  }
  const auto longer = folder.write("t.safetensors", whole + "x");
  EXPECT_THAT(user_error_of([&] { SafetensorsFile file(longer); }), EndsWith("the last 1 bytes belong to no tensor"));
}

// Whatever a byte becomes, the file is read or refused. Reading touches every byte that a tensor claims.
TEST(IoSafetensors, DamagedAnywhereIsReadOrRefused) {
  const TempFolder folder;
  const std::string whole = small_file();
  int refused = 0, accepted = 0;
  for (std::size_t at = 0; at < 8 + small_header.size(); ++at) {
    for (const char replacement : {'\xff', '"', '9', ']', static_cast<char>(whole[at] ^ 1)}) {
      std::string damaged = whole;
      damaged[at] = replacement;
      const auto path = folder.write("t.safetensors", damaged);
      try {
        const SafetensorsFile file(path);
        unsigned sum = 0;
        for (const TensorInfo& info : file.tensors()) {
          for (const std::byte byte : file.bytes(info)) sum += static_cast<unsigned>(byte);
        }
        ++accepted;
        EXPECT_GT(sum, 0u);
      } catch (const UserError& error) {
        ASSERT_THAT(error.what(), StartsWith(path.string() + ": "));
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, accepted);
}

TEST(IoSafetensors, RandomBytesAreRefused) {
  const TempFolder folder;
  const Philox philox{11};
  for (std::uint64_t round = 0; round < 200; ++round) {
    std::string text;
    const std::size_t length = philox.words(round, 1)[0] % 200;
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>(philox.words(i, 2 + round)[0]);
    if (round % 2 == 0 && length >= 8) text.replace(0, 8, file_text("", "").replace(0, 1, 1, '\x20'));
    const auto path = folder.write("t.safetensors", text);
    ASSERT_THAT(user_error_of([&] { SafetensorsFile file(path); }), StartsWith(path.string() + ": ")) << round;
  }
}

TEST(IoSafetensors, HeaderLengths) {
  const TempFolder folder;
  const auto with_length = [&](std::uint64_t length, std::string_view rest) {
    std::string text(reinterpret_cast<const char*>(&length), sizeof(length));
    const auto path = folder.write("t.safetensors", text.append(rest));
    return user_error_of([&] { SafetensorsFile file(path); });
  };
  EXPECT_THAT(with_length(~std::uint64_t{0}, "{}"), HasSubstr("a header of 18446744073709551615 bytes"));
  EXPECT_THAT(with_length(100'000'001, "{}"), HasSubstr("at most 100000000 are allowed"));
  EXPECT_THAT(with_length(3, "{}"),
              EndsWith("truncated: the header should have 3 bytes, the file ends after 2 of them"));
  EXPECT_THAT(with_length(0, "{}"), HasSubstr("not a JSON object"));
  EXPECT_EQ(with_length(2, "{}"), "<no error>");  // no tensors at all is a legal file
}

TEST(IoSafetensors, HostileHeaders) {
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return fmt::format(R"({{"w":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
  };
  // Not what a header is.
  EXPECT_THAT(header_error("[]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(header_error(" {}", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(header_error("{\"a\"", 0), StartsWith("not valid JSON"));
  EXPECT_THAT(header_error("{} x", 0), StartsWith("not valid JSON"));
  EXPECT_THAT(header_error("{\"a\":" + std::string(100000, '['), 0), HasSubstr("nested"));
  EXPECT_EQ(header_error(R"({"w":3})", 0), "w: expected an object, got 3");
  EXPECT_EQ(header_error(R"({"w":null})", 0), "w: expected an object, got null");
  EXPECT_EQ(header_error(R"({"__metadata__":{"a":1}})", 0), "__metadata__.a: expected a string, got 1");
  EXPECT_EQ(header_error(R"({"__metadata__":[]})", 0), "__metadata__: expected an object, got an array");
  EXPECT_EQ(header_error(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                         1),
            "the key \"w\" occurs twice");
  // Keys of a tensor.
  EXPECT_EQ(header_error(R"({"w":{"shape":[1],"data_offsets":[0,1]}})", 1), "w.dtype: missing, expected a string");
  EXPECT_EQ(header_error(R"({"w":{"dtype":"U8","data_offsets":[0,1]}})", 1),
            "w.shape: missing, expected an array of integers");
  EXPECT_EQ(header_error(R"({"w":{"dtype":"U8","shape":[1]}})", 1),
            "w.data_offsets: missing, expected an array of integers");
  EXPECT_EQ(header_error(one("\"F33\"", "[1]", "[0,4]"), 4), "w.dtype: unknown type \"F33\"");
  EXPECT_EQ(header_error(one("7", "[1]", "[0,4]"), 4), "w.dtype: expected a string, got 7");
  // Shapes.
  EXPECT_EQ(header_error(one("\"U8\"", "[2,-1]", "[0,1]"), 1), "w.shape[1]: expected a non-negative integer, got -1");
  EXPECT_EQ(header_error(one("\"U8\"", "[1.5]", "[0,1]"), 1), "w.shape[0]: expected a non-negative integer, got 1.5");
  EXPECT_EQ(header_error(one("\"U8\"", "[1.0]", "[0,1]"), 1), "w.shape: expected plain integers, got 1.0");
  EXPECT_THAT(header_error(one("\"U8\"", "[4294967296,4294967296]", "[0,1]"), 1), HasSubstr("is not a possible size"));
  EXPECT_THAT(header_error(one("\"F64\"", "[4611686018427387904]", "[0,0]"), 0), HasSubstr("is not a possible size"));
  EXPECT_THAT(header_error(one("\"U8\"", "[18446744073709551616]", "[0,1]"), 1), HasSubstr("w.shape[0]"));
  EXPECT_THAT(header_error(one("\"F4\"", "[3]", "[0,1]"), 1), HasSubstr("is not a possible size"));
  EXPECT_EQ(header_error(one("\"F32\"", "[2,3]", "[0,20]"), 20),
            "w: [2, 3] of F32 takes 24 bytes, but data_offsets give it 20");
  // Ranges.
  EXPECT_EQ(header_error(one("\"U8\"", "[1]", "[0]"), 1), "w.data_offsets: expected [begin, end], got 1 numbers");
  EXPECT_EQ(header_error(one("\"U8\"", "[1]", "[0,1,1]"), 1), "w.data_offsets: expected [begin, end], got 3 numbers");
  EXPECT_THAT(header_error(one("\"U8\"", "[1]", "[1,0]"), 1), HasSubstr("[1, 0] does not lie inside"));
  EXPECT_THAT(header_error(one("\"U8\"", "[2]", "[0,2]"), 1), HasSubstr("does not lie inside the file's 1 bytes"));
  EXPECT_THAT(header_error(one("\"U8\"", "[1]", "[9223372036854775806,9223372036854775807]"), 1), HasSubstr("inside"));
  EXPECT_THAT(header_error(one("\"U8\"", "[1]", "[-1,0]"), 1), HasSubstr("expected a non-negative integer, got -1"));
  EXPECT_EQ(header_error(one("\"U8\"", "[1]", "[1,2]"), 2), "1 bytes before the tensor \"w\" belong to no tensor");
  EXPECT_EQ(header_error(one("\"U8\"", "[1]", "[0,1]"), 3), "the last 2 bytes belong to no tensor");
  EXPECT_EQ(header_error("{}", 3), "the last 3 bytes belong to no tensor");
  EXPECT_EQ(header_error(R"({"v":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                         R"("w":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                         4),
            "the tensors \"v\" and \"w\" overlap");
}

TEST(IoSafetensors, OtherTypesAndManyDimensionsFailOnlyWhenRead) {
  const TempFolder folder;
  const auto path =
      folder.write("t.safetensors", file_text(R"({"f8":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},)"
                                              R"("five":{"dtype":"U8","shape":[1,1,2,1,1],"data_offsets":[2,4]}})",
                                              "abcd"));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.find("f8")->format_dtype, "F8_E4M3");
  EXPECT_EQ(file.find("five")->shape.size(), 5u);
  EXPECT_EQ(file.bytes(*file.find("five"))[1], std::byte{'d'});
  EXPECT_EQ(user_error_of([&] { file.tensor("f8"); }),
            path.string() + ": tensor \"f8\": Inlay does not read the type F8_E4M3");
  EXPECT_EQ(user_error_of([&] { file.tensor("five"); }),
            path.string() + ": tensor \"five\": [1, 1, 2, 1, 1] has 5 dimensions, Inlay reads at most 4");
}

TEST(IoSafetensors, ReadsRealFiles) {
  const auto data = inlay::testing::test_data();
  if (!data) GTEST_SKIP() << "no test data (INLAY_TEST_DATA, or shared/data beside the repository)";
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(*data)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    EXPECT_FALSE(file.tensors().empty()) << entry.path();
    for (const TensorInfo& info : file.tensors()) EXPECT_FALSE(file.tensor(info.name).absent()) << info.name;
    ++count;
  }
  EXPECT_GT(count, 0);
  const SafetensorsFile stories(*data / "models/stories15M/model.safetensors");
  EXPECT_EQ(stories.tensor("model.embed_tokens.weight").shape(), (Shape{32000, 288}));
}

}  // namespace
}  // namespace inlay::io
