#include "train/shared_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "io/manifest.h"
#include "support/fixtures.h"
#include "support/gpt_oss_checkpoint.h"
#include "support/thread_ranks.h"
#include "train/checkpoint.h"
#include "train/optimizer_file.h"
#include "train/output_folder.h"
#include "train/run_engine.h"

// What many ranks write together is, byte for byte, what one process writes; and where one of them fails, all do.
namespace inlay::train {
namespace {

using namespace inlay::testing;  // NOLINT
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;
using Ranks = std::shared_ptr<Communicator>;

// A run on one process that has made two steps. The same every time.
struct TrainedRun {
  TrainedRun(const fs::path& base, const std::string& keys) : TrainedRun(base, keys, 2) {}
  TrainedRun(const fs::path& base, const std::string& keys, int steps) {
    const model::ModelConfig config = model::load_config(base);
    Document document;
    for (std::int32_t i = 0; i < 24; ++i) document.input_ids.push_back(i * 37 % 90);
    document.labels = document.input_ids;
    const fs::path data = fs::temp_directory_path() / "nowhere.jsonl";
    options = options::parse_options(
        fmt::format("base_model: {}\noutput_dir: nowhere\ndatasets: [{}]\nlearning_rate: 1e-2\nsequence_len: 64\n"
                    "deterministic: true\ndevice: cpu\n{}\n",
                    base.string(), data.string(), keys),
        "test", {});
    Console console(true);
    run = make_run_engine(options, config, {.tokens = 24, .document = 24}, console);
    for (int step = 1; step <= steps; ++step) run.engine->train_step({pack(std::span(&document, 1))}, step, 1e-2);
    origin = {base, {}, run.adapter};
  }

  options::TrainOptions options;
  RunEngine run;
  ModelOrigin origin;
};

void poison(const View& view) { std::memset(view.data(), 0xFF, view.bytes()); }  // NaN in every dtype

// Leaves a rank what sharding leaves it: its rows, and of what trains in the place of a matrix all or nothing. The
// others' rows are not even numbers. held: the whole is not kept at all.
void cut_engine(Engine& engine, const Communicator& ranks, bool held = false) {
  std::map<const weights::Weight*, int> owners;
  engine.decoder().for_each_trained([&](weights::Parameter& p) {
    const bool beside = p.owner != nullptr && &p.owner->parameter() != &p;
    const int owner = owners.try_emplace(p.owner, static_cast<int>(owners.size())).first->second % ranks.size();
    p.cut = std::make_shared<parallel::RowCut>(beside ? parallel::RowCut::whole(p.rows(), ranks.size(), owner)
                                                      : parallel::RowCut::even(p.rows(), ranks.size()));
    p.rank = ranks.rank();
    const std::int64_t first = p.first_row(), end = p.end_row();
    poison(p.value.slice_rows(0, first));
    poison(p.value.slice_rows(end, p.rows()));
    if (!p.low.absent()) p.low = p.low.slice_rows(first, end);
    if (held) p.held_value = p.value.slice_rows(first, end);
  });
}

std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path().filename()] = read_text(entry.path());
  return files;
}

void expect_same_files(const fs::path& actual, const fs::path& expected) {
  const auto ours = files_in(actual), theirs = files_in(expected);
  std::vector<std::string> names, expected_names;
  for (const auto& [name, content] : ours) names.push_back(name);
  for (const auto& [name, content] : theirs) expected_names.push_back(name);
  ASSERT_EQ(names, expected_names);
  for (const auto& [name, content] : ours) EXPECT_TRUE(content == theirs.at(name)) << name;
}

// Every rank's own error, of this kind.
template <class Error>
std::vector<std::string> errors_of(int size, const std::function<void(const Ranks&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  run_ranks(size, [&](const Ranks& ranks) {
    try {
      body(ranks);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(ranks->rank())] = error.what();
    }
  });
  return errors;
}

struct SavedCase {
  std::string name, keys;
};

// Dense matrices, fused and tied ones, experts that are stacked and turned round, directions and adapters.
TEST(TrainSharedSave, AModelIsTheSameFilesOnAnyNumberOfRanks) {
  const GptOssCheckpoint packed(GptOssCheckpoint::Form::mxfp4);
  const TempFolder cache;
  const std::string osft =
      "osft: {unfreeze_rank_ratio: 0.4, basis: weights, cache: " + cache.path().string();  // found once
  for (const SavedCase& c : {SavedCase{"llama_linear_sharded", "dtype: bf16"},
                             {"llama_llama3_tied", "dtype: fp32\nfreeze: ['model.layers.0.*']"},
                             {"mixtral_balance", "dtype: bf16"},
                             {"gpt_oss", "dtype: bf16"},
                             {"llama_linear_sharded", "dtype: bf16\n" + osft + "}"},
                             {"gpt_oss", "dtype: bf16\n" + osft + ", freeze: [embeddings]}"},
                             {"llama_linear_sharded",
                              "dtype: bf16\nadapter: lora\nlora_r: 4\nlora_alpha: 8\n"
                              "lora_target_linear: true\npeft_use_dora: true\n"
                              "lora_modules_to_save: [lm_head]"},
                             {"mixtral_balance",
                              "dtype: bf16\nadapter: lora\nlora_r: 4\nlora_alpha: 8\n"
                              "lora_target_parameters: [experts.down_proj]"}}) {
    const fs::path base = c.name == "gpt_oss" ? packed.folder.path() : model_fixture(c.name);
    const TempFolder out;
    TrainedRun alone(base, c.keys);
    save_model(*parallel::single_process(), *alone.run.engine, alone.origin, out / "one");
    for (const int size : {2, 3, 7}) {
      SCOPED_TRACE(fmt::format("{} {} on {}", c.name, c.keys, size));
      std::vector<std::unique_ptr<TrainedRun>> runs;
      for (int i = 0; i < size; ++i) runs.push_back(std::make_unique<TrainedRun>(base, c.keys));
      const fs::path folder = out / std::to_string(size);
      run_ranks(size, [&](const Ranks& ranks) {
        TrainedRun& mine = *runs[static_cast<std::size_t>(ranks->rank())];
        cut_engine(*mine.run.engine, *ranks, size == 3);
        save_model(*ranks, *mine.run.engine, mine.origin, folder);
      });
      expect_same_files(folder, out / "one");
    }
  }
}

// An optimizer over a model that is cut.
struct CutOptimizer {
  CutOptimizer(Engine& engine, const Communicator& ranks, bool held) {
    cut_engine(engine, ranks, held);
    Exec plan = Exec::planner(Device::cpu);
    Optimizer(plan, engine.decoder(), engine.options().optimizer);
    exec.emplace(Exec::runner(Device::cpu, plan.arena().peak()));
    optimizer.emplace(*exec, engine.decoder(), engine.options().optimizer);
  }

  std::optional<Exec> exec;
  std::optional<Optimizer> optimizer;
};

TEST(TrainSharedSave, TheOptimizersStateGoesThroughAnyNumbersOfRanks) {
  const fs::path base = model_fixture("llama_linear_sharded");
  const TempFolder cache;
  for (const std::string& keys :
       {std::string("dtype: bf16"), std::string("dtype: bf16\noptimizer_state: bf16"),
        "dtype: fp32\nosft: {unfreeze_rank_ratio: 0.4, basis: weights, cache: " + cache.path().string() + "}"}) {
    const TempFolder out;
    TrainedRun alone(base, keys);
    fs::path before = out / "one";
    write_optimizer(*parallel::single_process(), alone.run.engine->optimizer(), alone.run.engine->exec(), before);
    const std::string expected = read_text(before);
    for (const int size : {8, 3, 1, 4}) {
      SCOPED_TRACE(fmt::format("{} on {}", keys, size));
      const bool held = size == 3;
      std::vector<std::unique_ptr<TrainedRun>> runs;
      for (int i = 0; i < size; ++i) runs.push_back(std::make_unique<TrainedRun>(base, keys, 0));
      const fs::path next = out / std::to_string(size);
      run_ranks(size, [&](const Ranks& ranks) {
        Engine& engine = *runs[static_cast<std::size_t>(ranks->rank())]->run.engine;
        CutOptimizer cut(engine, *ranks, held);
        read_optimizer(*ranks, *cut.optimizer, engine.exec(), before);
        const SavedFiles files = write_optimizer(*ranks, *cut.optimizer, engine.exec(), next);
        EXPECT_EQ(sums_of(*ranks, out.path(), files).at(next.filename()), io::sum_of(before));
        if (held) return;
        // What every rank has in full, every rank has got in full.
        const io::SafetensorsFile file(before);
        engine.decoder().for_each_trained([&](const weights::Parameter& p) {
          EXPECT_EQ(std::memcmp(p.value.data(), file.tensor(p.name + ".value").data(), p.value.bytes()), 0) << p.name;
        });
      });
      EXPECT_TRUE(read_text(next) == expected);
      before = next;
    }
  }
}

class TrainSharedCheckpoint : public ::testing::Test {
 protected:
  TrainSharedCheckpoint() {
    for (int i = 0; i < size; ++i) runs_.push_back(std::make_unique<TrainedRun>(base_, "dtype: bf16"));
  }
  Engine& engine(const Ranks& ranks) { return *runs_[static_cast<std::size_t>(ranks->rank())]->run.engine; }

  static constexpr int size = 3;
  fs::path base_ = model_fixture("llama_linear_sharded");
  std::vector<std::unique_ptr<TrainedRun>> runs_;
  TempFolder out_;
};

TEST_F(TrainSharedCheckpoint, IsTheSameFilesAndVerifiedTogether) {
  const ModelOrigin origin{base_, {}, nullptr};
  const TrainerState state{.step = 2, .loss = 1.5};
  const fs::path one = save_checkpoint(*parallel::single_process(), *runs_[0]->run.engine, origin, out_ / "one", state);
  run_ranks(size, [&](const Ranks& ranks) {
    const fs::path folder = save_checkpoint(*ranks, engine(ranks), origin, out_ / "many", state);
    EXPECT_EQ(folder, out_ / "many" / "checkpoint-2");
    EXPECT_TRUE(verify_checkpoint(*ranks, folder, [](std::uint64_t, std::uint64_t) {}));
    load_checkpoint(*ranks, engine(ranks), folder);
  });
  const fs::path many = out_ / "many/checkpoint-2";
  expect_same_files(many, one);
  EXPECT_EQ(files_in(out_ / "many").size(), 1u);
  for (const char* name : {"optimizer.safetensors", "model.safetensors", "checkpoint.json"}) {
    const std::string whole = read_text(many / name);
    std::string broken = whole;
    broken[broken.size() / 2] ^= 1;
    std::ofstream(many / name, std::ios::binary) << broken;
    for (const std::string& error : errors_of<io::DamagedFile>(
             size, [&](const Ranks& ranks) { verify_checkpoint(*ranks, many, [](std::uint64_t, std::uint64_t) {}); })) {
      EXPECT_THAT(error, HasSubstr((many / name).string()));
    }
    std::ofstream(many / name, std::ios::binary) << whole;
  }
}

TEST_F(TrainSharedCheckpoint, OfNumbersThatAreNotFiniteOnOneRankIsWrittenByNone) {
  const ModelOrigin origin{base_, {}, nullptr};
  fs::create_directory(out_ / "checkpoint-1");
  const std::vector<std::string> errors = errors_of<NotFinite>(size, [&](const Ranks& ranks) {
    cut_engine(engine(ranks), *ranks);
    bool first = ranks->rank() == 1;
    engine(ranks).decoder().for_each_trained([&](const weights::Parameter& p) {
      if (std::exchange(first, false)) poison(p.my_value());
    });
    save_checkpoint(*ranks, engine(ranks), origin, out_.path(), {.step = 2});
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("not finite"));
  EXPECT_EQ(out_.entry_count(), 1u);  // the earlier one
}

// An error of one rank, at each of the stages of a file, is an error of all.
TEST_F(TrainSharedCheckpoint, AFullDiskOfOneRankIsOneOfAll) {
  const std::vector<io::TensorSpec> specs = {{"w", DType::f32, {6}}};
  for (const int failing : {0, 1, 2}) {
    for (const std::string& error : errors_of<UserError>(size, [&](const Ranks& ranks) {
           io::SafetensorsWriter writer(out_ / "file", specs, {}, io::Writers::many);
           write_together(*ranks, writer, [&] {
             if (ranks->rank() == failing) user_error("cannot write file: No space left on device");
             writer.write_part("w", static_cast<std::uint64_t>(8 * ranks->rank()), std::vector<std::byte>(8));
           });
         })) {
      EXPECT_EQ(error, fmt::format("rank {}: cannot write file: No space left on device", failing));
    }
  }
  // Where the leader cannot even begin, nobody waits for the file.
  for (const std::string& error : errors_of<UserError>(size, [&](const Ranks& ranks) {
         io::SafetensorsWriter writer(out_ / "no/such/folder", specs, {}, io::Writers::many);
         write_together(*ranks, writer, [] {});
       })) {
    EXPECT_THAT(error, AllOf(StartsWith("rank 0: cannot write"), HasSubstr("No such file or directory")));
  }
}

TEST_F(TrainSharedCheckpoint, TheOutputFolderIsTheLeadersAndKnownToAll) {
  const ModelOrigin origin{base_, {}, nullptr};
  const fs::path path = out_ / "run";
  run_ranks(size, [&](const Ranks& ranks) {
    Console console(true);
    OutputFolder output(*ranks, path, base_, false, console);
    output.start_anew(console);
    EXPECT_FALSE(output.finished());
    save_checkpoint(*ranks, engine(ranks), origin, path, {.step = 1});
    save_checkpoint(*ranks, engine(ranks), origin, path, {.step = 2});
    output.publish([&](const fs::path& folder) {
      save_model(*ranks, engine(ranks), origin, folder);
      by_leader(*ranks, "summary", [&] { io::write_file_atomic(folder / "summary.json", std::string_view("{}")); });
    });
    EXPECT_TRUE(fs::exists(path / "summary.json") && fs::exists(path / "model.safetensors"));
    ranks->barrier("looked");
  });
  run_ranks(size, [&](const Ranks& ranks) {
    Console console(true);
    const OutputFolder output(*ranks, path, base_, true, console);
    EXPECT_TRUE(output.finished());
    EXPECT_EQ(output.checkpoint(), path / "checkpoint-2");
  });
  for (const std::string& error : errors_of<UserError>(size, [&](const Ranks& ranks) {
         Console console(true);
         OutputFolder(*ranks, path, base_, false, console);
       })) {
    EXPECT_THAT(error, HasSubstr("already holds a run"));
  }
  // The result of a write that fails on one rank is not there.
  for (const std::string& error : errors_of<UserError>(size, [&](const Ranks& ranks) {
         Console console(true);
         OutputFolder output(*ranks, out_ / "failed", base_, false, console);
         output.publish([&](const fs::path&) {
           parallel::together(*ranks, "a file", [&] {
             if (ranks->rank() == 2) user_error("no space");
           });
         });
       })) {
    EXPECT_EQ(error, "rank 2: no space");
  }
  EXPECT_TRUE(fs::is_empty(out_ / "failed"));
}

}  // namespace
}  // namespace inlay::train
