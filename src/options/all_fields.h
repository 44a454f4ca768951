#pragma once

#include "options/fields.h"

// The table of all keys.
namespace inlay::options::option {

const std::vector<Field>& fields();
const std::vector<Field>& osft_fields();
const Field* find_field(const std::string& name);
bool is_section(const std::string& name);  // osft, of osft.basis and others
// The keys of osft that lora_init: free has a use for.
bool serves_free_adapters(const std::string& key);

}  // namespace inlay::options::option
