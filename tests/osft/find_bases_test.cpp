#include "osft/find_bases.h"

#include <gmock/gmock.h>

#include "support/files.h"
#include "support/fixtures.h"
#include "train/session.h"

namespace inlay::testing {
namespace {

TEST(OsftCache, ASecondSearchTakesWhatTheFirstFound) {
  const Fixture fixture(model_fixtures().front());
  TempFolder cache;
  Console console(true);
  options::TrainOptions options =
      options::parse_options("base_model: " + fixture.folder.string() +
                                 "\noutput_dir: nowhere\ndatasets: [x]\nlearning_rate: 1\nosft: "
                                 "{basis: weights, unfreeze_rank_ratio: 0.5, cache: " +
                                 cache.path().string() + "}\n",
                             "test", {});
  const auto find = [&] {
    return osft::find_bases(train::search_inputs(options, fixture.config, Device::cpu, console), fixture.config,
                            Device::cpu, DType::f32, {.tokens = 64}, console);
  };
  const osft::FoundBases first = find(), second = find();
  EXPECT_GT(first.device_peak, 0u);
  EXPECT_EQ(second.device_peak, 0u);
  EXPECT_EQ(first.bases.fingerprint(), second.bases.fingerprint());
  options.osft.unfreeze_rank_ratio = 0.25;
  EXPECT_GT(find().device_peak, 0u);  // other ranks are another search
}

// The routes of adaptive ranks follow from what was observed, which the cache must know as well.
TEST(OsftCache, AdaptiveRanksComeBackWithTheirRoutes) {
  const Fixture fixture(model_fixtures().front());
  const TempFolder cache;
  Console console(true);
  const options::TrainOptions options = options::parse_options(
      "base_model: " + fixture.folder.string() +
          "\noutput_dir: nowhere\ndatasets: [x]\nlearning_rate: 1\nosft: {basis: weights, unfreeze_rank_ratio: 0.4, "
          "ranks: adaptive, calibration: {data: " +
          (fixture.folder / "data.jsonl").string() + "}, cache: " + cache.path().string() + "}\n",
      "test", {});
  for (const std::int64_t tokens : {4, 8, 12, 16, 24, 32, 48, 64, 128}) {
    const auto find = [&] {
      return osft::find_bases(train::search_inputs(options, fixture.config, Device::cpu, console), fixture.config,
                              Device::cpu, DType::f32, {.tokens = tokens}, console);
    };
    const osft::FoundBases first = find(), second = find();
    EXPECT_GT(first.device_peak, 0u) << "a step of another size is another search";
    EXPECT_EQ(second.device_peak, 0u);
    for (const auto& [name, ranks] : first.layout.targets) {
      const auto &then = std::get<weights::FactorLayout>(ranks),
                 &now = std::get<weights::FactorLayout>(second.layout.targets.at(name));
      EXPECT_EQ(then.route, now.route) << name;
      for (std::size_t i = 0; i < then.parts.size(); ++i) EXPECT_EQ(then.parts[i].free, now.parts[i].free) << name;
    }
  }
}

TEST(OsftCalibration, SeveralTextsAreOneCalibration) {
  const Fixture fixture(model_fixtures().front());
  const std::string text = read_text(fixture.folder / "data.jsonl");
  const std::size_t cut = text.find('\n') + 1;
  ASSERT_LT(cut, text.size()) << "the fixture has one document only";
  TempFolder folder;
  folder.write("first.jsonl", text.substr(0, cut));
  folder.write("rest.jsonl", text.substr(cut));
  Console console(true);
  const auto find = [&](const std::string& data) {
    const auto options = options::parse_options(
        "base_model: " + fixture.folder.string() +
            "\noutput_dir: nowhere\ndatasets: [x]\nlearning_rate: 1\nosft: {unfreeze_rank_ratio: 0.5, cache: off, "
            "calibration: {samples: 8, length: 16, data: " +
            data + "}}\n",
        "test", {});
    return osft::find_bases(train::search_inputs(options, fixture.config, Device::cpu, console), fixture.config,
                            Device::cpu, DType::f32, {.tokens = 64}, console)
        .bases;
  };
  const std::string first = (folder / "first.jsonl").string(), rest = (folder / "rest.jsonl").string();
  EXPECT_EQ(find("[" + first + ", " + rest + "]").fingerprint(),
            find((fixture.folder / "data.jsonl").string()).fingerprint());
  // What the model writes itself comes on top: tokens of either text are seen.
  const auto unseen = [](const osft::BasisStore& store) {
    const osft::BasisStore::Tensor& tokens = store.at("tokens.free");
    const auto* values = reinterpret_cast<const float*>(tokens.bytes.data());
    return std::vector<float>(values, values + tokens.shape[0]);
  };
  const auto own = unseen(find("sample")), file = unseen(find(rest)), both = unseen(find("[" + rest + ", sample]"));
  EXPECT_NE(own, file);
  for (std::size_t i = 0; i < both.size(); ++i) ASSERT_EQ(both[i], own[i] * file[i]) << "token " << i;
}

}  // namespace
}  // namespace inlay::testing
