#pragma once

#include "data/dataset.h"
#include "data/dataset_files.h"
#include "io/lock.h"

namespace inlay::data {

// Where a dataset's documents are kept: a name made of everything they depend on, which is the content of the files and
// their endings, the options, and the model's tokenizer and template. Another content has another name, so nothing ever
// goes stale.
std::filesystem::path prepared_path(const DatasetOptions& dataset, const DatasetFiles& files,
                                    const ReadContext& context);

// The documents that are kept there, where there are some and all is well with them. Their checksum is computed when a
// machine first opens the file, and noted beside it with the file's identity (device, inode, size, times): it is not
// computed again until that changes. A damaged file is a notice.
std::optional<Corpus> open_prepared(const std::filesystem::path& kept, const ReadContext& context);
// Of several processes, on one machine or many that share the folder, one makes the file; the others wait for it here,
// with a notice, until theirs is the turn to look.
io::TurnLock turn_to_prepare(const std::filesystem::path& kept, const std::string& dataset, const ReadContext& context);
// What was just written needs no second look.
void note_as_verified(const Corpus& corpus, const std::filesystem::path& kept);

}  // namespace inlay::data
