#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "options/train_options.h"
#include "osft/layout.h"
#include "support/files.h"
#include "support/fixtures.h"

namespace inlay::testing {
namespace {

using ::testing::HasSubstr;

std::string failure(const std::string& osft) {
  try {
    const auto options = options::parse_options(
        "base_model: b\noutput_dir: o\ndatasets: [d]\nlearning_rate: 1\nosft: {" + osft + "}\n", "run.yaml", {});
    const Fixture fixture(model_fixtures().front());
    const osft::OsftTargets targets(options.osft, fixture.config);
    osft::nominal_layout(targets, fixture.config, {.tokens = 64});
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(OptionsOsft, MistakesAreNamed) {
  using ::testing::HasSubstr;
  EXPECT_THAT(failure("unfreeze_rank_ratio: 0"), HasSubstr("0 would train nothing"));
  EXPECT_THAT(failure("unfreeze_rank_ratio: 1.5"), HasSubstr("from 0 to 1"));
  EXPECT_THAT(failure("basis: weights"), HasSubstr("osft.unfreeze_rank_ratio is required"));
  EXPECT_THAT(failure("unfreeze_rank_ratio: 0.5, basiss: weights"), HasSubstr("did you mean osft.basis?"));
  // sdft has one, which is no neighbour of a key of osft's.
  EXPECT_THAT(failure("enabled: true"), ::testing::Not(HasSubstr("did you mean sdft.enabled?")));
  EXPECT_THAT(failure("unfreeze_rank_ratio: 0.5, targets: [q]"), HasSubstr("q without k"));
  EXPECT_THAT(failure("unfreeze_rank_ratio: 0.5, targets: [w]"), HasSubstr("expected some of"));
  EXPECT_THAT(failure("unfreeze_rank_ratio: 0.5, route: dense"), HasSubstr("belongs to basis weights"));
  EXPECT_THAT(failure("unfreeze_rank_ratio: 0.5, ratios: {'*.nothing': 0.2}"), HasSubstr("matches no target"));
  EXPECT_THAT(failure("unfreeze_rank_ratio: 0.5, ratios: {'*.q_proj.*': 0.2}"), HasSubstr("share their input"));
  EXPECT_EQ(failure("unfreeze_rank_ratio: 0.5, ratios: {'*.down_proj.*': 0.2}"), "");
  EXPECT_EQ(failure("unfreeze_rank_ratio: 0.5, calibration: {data: []}"), "");  // empty is absent
  EXPECT_THAT(failure("unfreeze_rank_ratio: 0.5, calibration: {data: [sample, sample]}"), HasSubstr("given twice"));
  EXPECT_THAT(failure("unfreeze_rank_ratio: 0.5, calibration: {data: {sample: 3}}"), HasSubstr("got a map"));
  EXPECT_EQ(failure("basis: weights, unfreeze_rank_ratio: 0.5, ratios: {'*.q_proj.*': 0.2}, route: direct"), "");
}

TEST(OptionsOsft, AreWrittenAsTheyAreRead) {
  const std::string yaml =
      "base_model: b\noutput_dir: o\ndatasets: [d]\nlearning_rate: 1\nosft: {basis: weights, unfreeze_rank_ratio: 0.5, "
      "targets: [mlp], ratios: {'*.down_proj.*': 0.2}, freeze: [norms, head], calibration: {data: [sample, a b.jsonl], "
      "samples: 7}}\n";
  const auto options = options::parse_options(yaml, "run.yaml", {{"osft.calibration.length", "33"}});
  const auto again = options::parse_options(options::to_yaml(options), "again", {});
  EXPECT_EQ(options::to_yaml(again), options::to_yaml(options));
  EXPECT_EQ(again.osft.calibration.data, (std::vector<std::string>{"sample", "a b.jsonl"}));
  EXPECT_EQ(again.osft.calibration.samples, 7);
  EXPECT_EQ(again.osft.calibration.length, 33);
  EXPECT_EQ(again.osft.targets, std::vector<std::string>{"mlp"});
  EXPECT_EQ(again.osft.ratios.at(0).first, "*.down_proj.*");
}

}  // namespace
}  // namespace inlay::testing
