#pragma once

#include <string>

#include "options/key_problems.h"

// What a run needs beside its keys: models, data and chat templates that are there.
namespace inlay::options::option {

// Looks for them and makes folders of the hub's names. Nothing is downloaded while anything else is wrong.
void find_needs(TrainOptions& options, const GivenKeys& given, Needed needed, const io::HubAccess& hub,
                KeyProblems& problems);

// What is wrong with the name or file of a chat template, or nothing.
std::string problem_of_template(const std::string& name);

// Other special tokens, or more tokens, make another model of the base.
void change_base(TrainOptions& options, const std::string& source);

}  // namespace inlay::options::option
