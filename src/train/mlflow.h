#pragma once

#include "io/http.h"
#include "train/board.h"

namespace inlay::train {

// Where MLflow's server is, by the options or the environment; UserError where neither says it.
io::Url mlflow_server(const options::TrainOptions& options);

// A run of an MLflow server, by its REST interface. Which one it is stands in output_dir/mlflow.json, so that a resumed
// run goes on there.
std::unique_ptr<Board> make_mlflow(const options::TrainOptions& options, const BoardRun& run);

}  // namespace inlay::train
