#pragma once

#include <optional>

#include <nlohmann/json.hpp>

#include "train/disk_need.h"
#include "train/network.h"
#include "train/run_length.h"
#include "train/session.h"
#include "train/step_time.h"

namespace inlay::train {

// What a plan is asked for beside the options.
struct PlanRequest {
  int processes = 1, nodes = 0;       // nodes 0: eight processes share one
  std::string link;                   // what connects them (network.h)
  bool max_context = false;           // search for the longest document that fits
  Remeasure measure = Remeasure::no;  // this machine's rates
};

// Everything that is said about a plan, in either form.
struct RunPlan {
  options::TrainOptions options;
  model::ModelConfig config;
  EngineOptions engine;
  MemoryBudget budget;  // of a device and of a host
  MemoryBudget each;    // of a process: those of one host share its memory
  MemoryChoice choice;
  Ceilings ceilings;
  StepEstimate estimate;
  std::size_t search_peak = 0;    // of the search for OSFT's directions, before the run takes its memory
  std::size_t process_bytes = 0;  // of the host: the program, the documents, what libraries take
  std::int64_t longest = 0;       // context that fits; 0: not asked
  bool from_data = false;
  RunLength length;  // steps 0: nothing is known of it
  DiskNeed disk;     // of output_dir
  std::optional<std::uint64_t> disk_free;

  // Where several processes are asked about.
  TeamShape team;
  NetworkRates network;
  TeamEstimate together;
  int smallest = 0;  // processes whose devices hold everything; 0: too many, or nothing is known of a device

  std::int64_t loss_chunk() const;
  bool many() const { return team.processes > 1; }
};

// Where every byte of a run will go and how fast it will be; reads the data where it is there, no weights.
RunPlan plan_run(const options::TrainOptions& options, const PlanRequest& request, Console& console);
nlohmann::ordered_json to_json(const RunPlan& plan);

inline constexpr int most_planned_processes = 1024;  // that are tried

}  // namespace inlay::train
