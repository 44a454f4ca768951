#pragma once

#include <filesystem>
#include <string>

#include "study/options.h"

// Where the files of a study lie, and the record of what it means: study.json, against which a later command is
// checked, so that numbers of different settings never stand in one table.
namespace inlay::study {

// OUTPUT/METHOD/RATE/seed-N/I-TASK, with the share behind the rate where there is one; tasks count from 0 here and from
// 1 in names.
std::filesystem::path task_folder(const ContinualOptions& options, const Sequence& sequence, std::size_t task);
std::filesystem::path base_row_file(const ContinualOptions& options);
// Where everything that a sequence has of its own lies.
std::filesystem::path sequence_folder(const ContinualOptions& options, const Sequence& sequence);
// What the base model answers to the prompts of a held set.
std::filesystem::path own_answers_file(const ContinualOptions& options, const HeldSet& held);

// What runs leave in a task's folder.
inline constexpr const char* row_file = "evaluation.json";
inline constexpr const char* diverged_file = "diverged.json";
// Trained and evaluated.
bool finished(const std::filesystem::path& task_folder);
// Where the model that a task has left is: in its folder, or below it where an adapter was trained.
std::filesystem::path model_folder(const std::filesystem::path& task_folder);
bool has_adapter(const std::filesystem::path& task_folder);
bool has_weights(const std::filesystem::path& task_folder);
// Removes weights and checkpoints; metrics, summary and scores stay.
void drop_weights(const std::filesystem::path& task_folder);
void drop_checkpoints(const std::filesystem::path& task_folder);
// Forgets the sequence's rows from a task on, on disk as well.
void drop_rows(const ContinualOptions& options, Sequence& sequence, std::size_t from);

// Whether it was begun.
bool has_study(const ContinualOptions& options);
// Takes the output folder for this study: a new one, or with resume the one that holds it already. Methods, learning
// rates and seeds may be added or left out between commands; whatever else bears on a result must be as it was, data
// included.
void claim_study(const ContinualOptions& options, bool resume);
// The same check for looking alone: the data need not be there.
void check_study(const ContinualOptions& options);

// Every sequence that the options ask for, with the rows that are on disk.
Study read_study(const ContinualOptions& options);
// The same for one of them alone.
void read_rows(const Study& study, const ContinualOptions& options, Sequence& sequence);

}  // namespace inlay::study
