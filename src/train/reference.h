#pragma once

#include "train/run_documents.h"
#include "train/run_engine.h"

namespace inlay::train {

// Where preferences compare with a reference: the log-probabilities of all sequences by the model as the run starts
// from it, which is what the engine must hold. Computed once, and kept with the prepared data for runs to come. Every
// process of the run calls it.
void add_reference(const options::TrainOptions& options, RunEngine& run, RunDocuments& documents, Console& console,
                   const std::shared_ptr<parallel::Communicator>& ranks);

// loss.token_weight: stm: labels that the model, as the run starts from it, finds surprising are no longer learned.
void mask_surprising(const options::TrainOptions& options, RunEngine& run, RunDocuments& documents, Console& console);

}  // namespace inlay::train
