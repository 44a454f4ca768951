#include "train/adapters.h"

#include "support/adapter_run.h"

// Adapters that PEFT made, against what PEFT computed with them.
namespace inlay::train {
namespace {

using namespace inlay::testing;  // NOLINT

struct AdapterCase {
  std::filesystem::path folder;
  Device device;
};

std::vector<AdapterCase> all_cases() {
  std::vector<AdapterCase> result;
  for (const auto& folder : adapter_fixtures()) {
    for (const Device device : devices()) result.push_back({folder, device});
  }
  return result;
}

// What a tensor of a part is in a file, picked out of it where experts share it.
std::vector<double> a_of(const adapter::AdaptedPart& part, const std::vector<double>& whole) {
  const auto size = static_cast<std::size_t>(part.rank * part.in), begin = static_cast<std::size_t>(part.expert) * size;
  return {whole.begin() + static_cast<std::ptrdiff_t>(begin),
          whole.begin() + static_cast<std::ptrdiff_t>(begin + size)};
}
std::vector<double> b_of(const adapter::AdaptedPart& part, const std::vector<double>& whole) {
  std::vector<double> result(static_cast<std::size_t>(part.out * part.rank));
  const auto step = static_cast<std::size_t>(std::max<std::int64_t>(part.stacked, 1));
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = whole[i * step + static_cast<std::size_t>(part.expert)];
  return result;
}

double norm(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

// Experts that share a tensor are measured by the whole of it: one may have seen next to nothing.
void expect_near(const std::vector<double>& actual, const std::vector<double>& expected, double scale, double bound,
                 const std::string& name) {
  ASSERT_EQ(actual.size(), expected.size()) << name;
  std::vector<double> difference(actual.size());
  for (std::size_t i = 0; i < actual.size(); ++i) difference[i] = actual[i] - expected[i];
  EXPECT_LE(norm(difference), bound * scale) << name;
}

class TrainAdapters : public ::testing::TestWithParam<AdapterCase> {};

// compare(PEFT's name, picks a part's numbers out of PEFT's tensor, ours) for all tensors of the adapter.
template <class Values, class Compare>
void for_each_tensor(AdapterRun& run, const Values& values, const Compare& compare) {
  for (const adapter::AdaptedPart& part : run.file.targets().parts) {
    const std::string module = "base_model.model." + part.module;
    compare(
        module + ".lora_A.weight", [&](const auto& whole) { return a_of(part, whole); }, values.a(part));
    compare(
        module + ".lora_B.weight", [&](const auto& whole) { return b_of(part, whole); }, values.b(part));
    if (!run.file.targets().dora) continue;
    compare(
        module + ".lora_magnitude_vector", [](const auto& whole) { return whole; }, values.magnitude(part));
  }
}

TEST_P(TrainAdapters, LogitsLossAndGradientsAreThoseOfPeft) {
  AdapterRun run(GetParam().folder, {.device = GetParam().device, .compute = DType::f32});
  EXPECT_LT(relative_error(run.logits(0), run.expected_tensor("logits.0")), run.allowed("logits.0"));
  run.engine->gradients(run.batch());
  EXPECT_NEAR(run.engine->decoder().read_loss(run.engine->exec()).loss,
              run.expected.value("loss_fp64", run.expected["loss"].get<double>()), 1e-5);
  if (!run.trains()) return;
  // Gradients in the places of values.
  std::map<std::string, View> values;
  for (weights::Weight* weight : run.engine->decoder().weights()) {
    weight->for_each_own([&](weights::Parameter& p) {
      run.engine->exec().synchronize();
      std::swap(p.value, p.grad);
      std::swap(p.low, values[p.name]);
    });
  }
  for_each_tensor(
      run, adapter_source(*run.engine, run.file.targets()),
      [&](const std::string& name, const auto& pick, const std::vector<float>& ours) {
        const std::vector<double> whole = run.expected_tensor("grad." + name);
        expect_near({ours.begin(), ours.end()}, pick(whole), norm(whole), run.allowed("grad." + name), name);
      });
}

TEST_P(TrainAdapters, TenStepsOfAdamWAreThoseOfPeft) {
  AdapterRun run(GetParam().folder, {.device = GetParam().device, .compute = DType::f32});
  if (!run.trains()) GTEST_SKIP() << "PEFT does not train this one";
  const std::vector<PackedBatch> batch = run.batch();
  const auto& adamw = run.expected["adamw"];
  for (std::size_t step = 0; step < 10; ++step) {
    const StepResult result =
        run.engine->train_step(batch, static_cast<std::int64_t>(step) + 1, adamw["lr"].get<double>());
    EXPECT_NEAR(result.loss, adamw["losses"][step].get<double>(), 1e-5 * result.loss) << "step " << step + 1;
  }
  for_each_tensor(
      run, adapter_source(*run.engine, run.file.targets()),
      [&](const std::string& name, const auto& pick, const std::vector<float>& ours) {
        const std::vector<double> whole = run.expected_tensor("after." + name);
        expect_near({ours.begin(), ours.end()}, pick(whole), norm(whole), run.allowed("after." + name), name);
      });
}

INSTANTIATE_TEST_SUITE_P(, TrainAdapters, ::testing::ValuesIn(all_cases()),
                         [](const ::testing::TestParamInfo<AdapterCase>& info) {
                           return info.param.folder.filename().string() + "_" + std::string(name_of(info.param.device));
                         });

}  // namespace
}  // namespace inlay::train
