#pragma once

#include <numeric>

#include "support/adapters.h"
#include "support/device_tensors.h"
#include "support/fixtures.h"
#include "train/adapters.h"

namespace inlay::testing {

// A fixture's adapter in an engine.
struct AdapterRun {
  AdapterRun(const std::filesystem::path& folder, train::EngineOptions options, const train::BaseFormat& format = {},
             const adapter::AdapterDropout& dropout = {})
      : fixture(base_of(folder)),
        file(folder, fixture.config),
        expected(io::Json::read(folder / "expected.json").raw()),
        tensors(folder / "expected.safetensors") {
    options.weights = std::make_shared<weights::WeightPlan>(
        adapter::weight_plan(file.targets(), fixture.config, train::base_kind(format), dropout));
    options.saves_adapter = true;
    options.logit_rows = 64;
    if (trains()) {
      const auto& adamw = expected["adamw"];
      options.optimizer = {.beta1 = adamw["betas"][0].get<double>(),
                           .beta2 = adamw["betas"][1].get<double>(),
                           .eps = adamw["eps"].get<double>(),
                           .weight_decay = adamw["weight_decay"].get<double>(),
                           .decay_vectors = true};
    }
    engine = fixture.engine(options);
    const adapter::AdapterStart start = adapter::start_from(file);
    train::start_adapter(*engine, file.targets(), start, &file);
  }

  // Some adapters PEFT only converts when it loads them.
  bool trains() const { return expected.contains("adamw") && expected["adamw"].is_object(); }
  std::vector<PackedBatch> batch() const { return {pack(fixture.documents)}; }
  std::vector<double> expected_tensor(const std::string& name) const {
    const ConstView view = tensors.tensor(name);
    return {view.as<float>(), view.as<float>() + view.size()};
  }
  // By how much PEFT itself misses the truth in fp32; ours may miss it by a few times that.
  double allowed(const std::string& name) const {
    const double theirs = expected.contains("fp32") ? expected["fp32"].value(name, 0.0) : 0.0;
    return std::max(1e-5, 4 * theirs);
  }
  std::vector<double> logits(std::size_t document) {
    const Document& d = fixture.documents[document];
    std::vector<std::int32_t> rows(d.input_ids.size());
    std::iota(rows.begin(), rows.end(), 0);
    const std::vector<float> values = engine->decoder().logits(engine->exec(), pack(std::span(&d, 1)), rows);
    return {values.begin(), values.end()};
  }

  Fixture fixture;
  adapter::AdapterFile file;
  nlohmann::json expected;
  io::SafetensorsFile tensors;
  std::unique_ptr<train::Engine> engine;
};

}  // namespace inlay::testing
