#include "train/shared_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "io/manifest.h"
#include "osft/find_bases.h"
#include "support/adapters.h"
#include "support/device_tensors.h"
#include "support/files.h"
#include "support/fixtures.h"
#include "support/thread_ranks.h"
#include "train/adapters.h"
#include "train/checkpoint.h"
#include "train/model_folder.h"
#include "train/output_folder.h"
#include "train/saver.h"
#include "train/session.h"

// What many ranks write together is, byte for byte, what one process writes; and where one of them fails, all do.
namespace inlay::train {
namespace {

using namespace inlay::testing;  // NOLINT
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;
using Ranks = std::shared_ptr<Communicator>;

using parallel::Mesh;
using parallel::Zero;

// What a run trains, and how its engines are made.
struct Subject {
  Subject(const fs::path& folder, DType compute) : fixture(folder) {
    options.compute = compute;
    options.staged = Staged::all;
  }

  std::unique_ptr<Engine> engine(const Mesh& mesh = {}) const { return engine(mesh, options); }
  std::unique_ptr<Engine> engine(const Mesh& mesh, EngineOptions mine) const {
    mine.mesh = mesh;
    std::unique_ptr<Engine> engine = fixture.engine(mine);
    start(*engine);
    return engine;
  }
  // After two steps. The same every time.
  std::unique_ptr<Engine> trained() const {
    std::unique_ptr<Engine> result = engine();
    for (int step = 1; step <= 2; ++step) result->train_step({pack(fixture.documents)}, step, 1e-2);
    return result;
  }
  ModelOrigin origin() const { return {fixture.folder, {}, adapter}; }

  Fixture fixture;
  EngineOptions options;
  std::shared_ptr<const EngineAdapter> adapter;
  std::function<void(Engine&)> start = [](Engine&) {};
};

// How ranks divide what they keep: among all of them, or in nodes of so many.
Mesh mesh_of(const Ranks& ranks, Zero zero, int node = 0) {
  Mesh mesh{.all = ranks, .shards = ranks, .zero = zero};
  if (node > 0) {
    mesh.shards = ranks->split(ranks->rank() / node);
    mesh.replicas = ranks->split(ranks->rank() % node);
  }
  return mesh;
}

void poison(const View& view) { std::memset(view.data(), 0xFF, view.bytes()); }  // NaN in every dtype

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

void poison(Engine& engine) {
  engine.optimizer().for_each_state(engine.exec(), true, [](const StateTensor& tensor) {
    poison(tensor.share);
    if (!tensor.everywhere.absent()) poison(tensor.everywhere);
  });
}

// The model alone, from a copy of no more than it is made of.
void expect_same_model(const Subject& subject, const Ranks& ranks, const Mesh& mesh, const fs::path& before,
                       const fs::path& folder) {
  EngineOptions alone = subject.options;
  alone.staged = Staged::model;
  const io::Checkpoint base(subject.fixture.folder);
  alone.saved_otherwise = saved_otherwise(subject.fixture.config, &base, alone.compute);
  const auto engine = subject.engine(mesh, alone);
  load_checkpoint(*ranks, *engine, before);
  const ModelOrigin origin = subject.origin();
  Saver saver(ranks);
  saver.submit(2, stage_checkpoint(*engine, origin, folder, {.step = 2, .loss = 1.5}, Contents::model));
  poison(*engine);
  ranks->barrier("a step");
  saver.wait();
}

// From one process to 8 ranks, from these to 3, 1 and 4 (in nodes of two): every one of them reads what the one before
// it has written, and writes the same files. What it has not read is not even numbers.
void expect_same_on_any_number(const Subject& subject) {
  std::optional<Setting> in_memory;  // nothing here asks for a disk, and waiting for it takes most of the time
  if (fs::is_directory("/dev/shm")) in_memory.emplace("TMPDIR", "/dev/shm");
  const TempFolder out;
  const TrainerState state{.step = 2, .loss = 1.5};
  fs::path before =
      save_checkpoint(*parallel::single_process(), *subject.trained(), subject.origin(), out / "one", state);
  struct Stage {
    int ranks;
    Zero zero;
    int node = 0;
  };
  for (const auto& [size, zero, node] :
       {Stage{8, Zero::weights}, {3, Zero::state}, {1, Zero::none}, {4, Zero::gradients, 2}, {2, Zero::none}}) {
    SCOPED_TRACE(fmt::format("{} ranks, ZeRO {}", size, static_cast<int>(zero)));
    const fs::path folder = out / std::to_string(size);
    run_ranks(size, [&, size = size, zero = zero, node = node](const Ranks& ranks) {
      const auto engine = subject.engine(mesh_of(ranks, zero, node));
      poison(*engine);
      load_checkpoint(*ranks, *engine, before);
      save_checkpoint(*ranks, *engine, subject.origin(), folder, state);
      // From a copy, which is all that is left of the state.
      const ModelOrigin origin = subject.origin();
      Saver saver(ranks);
      saver.submit(2, stage_checkpoint(*engine, origin, folder / "beside", state, Contents::all));
      poison(*engine);
      ranks->barrier("a step");
      saver.check();
      saver.wait();
      if (size <= 3) expect_same_model(subject, ranks, mesh_of(ranks, zero, node), before, folder / "alone");
    });
    expect_same_files(folder / "checkpoint-2", before);
    expect_same_files(folder / "beside/checkpoint-2", before);
    if (size <= 3) {
      for (const auto& [name, content] : files_in(folder / "alone/checkpoint-2")) {
        if (name == "checkpoint.json") continue;
        EXPECT_TRUE(content == read_text(before / name)) << name << " alone";
      }
      EXPECT_EQ(files_in(folder / "alone/checkpoint-2").size() + 1, files_in(before).size());
    }
    before = folder / "checkpoint-2";
  }
}

// Dense matrices, fused and tied ones, experts that are stacked and turned round.
TEST(TrainSharedSave, ACheckpointIsTheSameFilesOnAnyNumberOfRanks) {
  for (const auto& folder : model_fixtures()) {
    SCOPED_TRACE(folder.filename().string());
    expect_same_on_any_number(Subject(folder, DType::bf16));
  }
}

TEST(TrainSharedSave, SoAreThoseOfLayersOnTheHost) {
  Subject subject(model_fixture("llama_linear_sharded"), DType::bf16);
  subject.options.host_layers = 1;
  expect_same_on_any_number(subject);
}

TEST(TrainSharedSave, SoAreThoseOfOsft) {
  for (const char* name : {"llama_llama3_tied", "gpt_oss_balance"}) {
    for (const char* osft :
         {"basis: activations, unfreeze_rank_ratio: 0.4", "basis: activations, unfreeze_rank_ratio: 0.7",
          "basis: weights, unfreeze_rank_ratio: 0.4"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, osft));
      Subject subject(model_fixture(name), DType::bf16);
      const Fixture& fixture = subject.fixture;
      const std::string data = (fixture.folder / "data.jsonl").string();
      const options::TrainOptions options = options::parse_options(
          fmt::format("base_model: {}\noutput_dir: nowhere\ndatasets: [{}]\nlearning_rate: 1e-3\nsequence_len: 64\n"
                      "osft: {{cache: off, calibration: {{data: {}}}, {}}}\n",
                      fixture.folder.string(), data, data, osft),
          "test", {});
      Console console(true);
      const osft::FoundBases found =
          osft::find_bases(search_inputs(options, fixture.config, Device::cpu, console), fixture.config, Device::cpu,
                           DType::bf16, step_shape(options, {.tokens = 64, .document = 64}), console);
      subject.options.weights = std::make_shared<weights::WeightPlan>(osft::weight_plan(found.layout));
      subject.start = [&](Engine& engine) { engine.start(&found.bases); };
      expect_same_on_any_number(subject);
    }
  }
}

TEST(TrainSharedSave, SoAreThoseOfAdapters) {
  for (const auto& folder : adapter_fixtures()) {
    SCOPED_TRACE(folder.filename().string());
    Subject subject(base_of(folder), DType::bf16);
    const adapter::AdapterFile file(folder, subject.fixture.config);
    subject.adapter = std::make_shared<EngineAdapter>(
        EngineAdapter{.config = file.config(), .targets = file.targets(), .format = {}, .origin = file.origin()});
    subject.options.weights = std::make_shared<weights::WeightPlan>(
        adapter::weight_plan(file.targets(), subject.fixture.config, base_kind({}), {}));
    subject.options.saves_adapter = true;
    subject.start = [&](Engine& engine) { start_adapter(engine, file.targets(), adapter::start_from(file), &file); };
    expect_same_on_any_number(subject);
  }
}

class TrainSharedCheckpoint : public ::testing::Test {
 protected:
  static constexpr int size = 3;
  const Subject subject_{model_fixture("llama_linear_sharded"), DType::bf16};
  const fs::path base_ = subject_.fixture.folder;
  const ModelOrigin origin_ = subject_.origin();
  TempFolder out_;
};

TEST_F(TrainSharedCheckpoint, IsVerifiedTogether) {
  run_ranks(size, [&](const Ranks& ranks) {
    const auto engine = subject_.engine(mesh_of(ranks, Zero::state));
    const fs::path folder = save_checkpoint(*ranks, *engine, origin_, out_.path(), {.step = 2});
    EXPECT_TRUE(verify_checkpoint(*ranks, folder, [](std::uint64_t, std::uint64_t) {}));
  });
  const fs::path many = out_ / "checkpoint-2";
  EXPECT_EQ(out_.entry_count(), 1u);
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
  fs::create_directory(out_ / "checkpoint-1");
  const std::vector<std::string> errors = errors_of<NotFinite>(size, [&](const Ranks& ranks) {
    const auto engine = subject_.engine(mesh_of(ranks, Zero::state));
    bool first = ranks->rank() == 1;
    engine->decoder().for_each_trained([&](const weights::Parameter& p) {
      if (p.cut != nullptr && std::exchange(first, false)) poison(p.my_value());
    });
    save_checkpoint(*ranks, *engine, origin_, out_.path(), {.step = 2});
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
  const fs::path path = out_ / "run";
  run_ranks(size, [&](const Ranks& ranks) {
    Console console(true);
    const auto engine = subject_.engine(mesh_of(ranks, Zero::state));
    OutputFolder output(*ranks, path, base_, false, console);
    output.start_anew(console);
    EXPECT_FALSE(output.finished());
    save_checkpoint(*ranks, *engine, origin_, path, {.step = 1});
    save_checkpoint(*ranks, *engine, origin_, path, {.step = 2});
    output.publish([&](const fs::path& folder) {
      save_model(*ranks, *engine, origin_, folder);
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
