#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/csv_rows.h"
#include "fuzz_file.h"

namespace {

using namespace inlay;
using Table = std::vector<std::vector<std::string>>;

// Names and rows; nothing where the file is refused.
Table read(std::string_view text, char separator) {
  const fuzz::File file(text, "table.csv");
  Table table;
  try {
    const auto rows = data::open_csv(file.path(), separator);
    while (auto block = rows->next()) {
      for (data::RawRow& row : block->rows) {
        const io::Value value = rows->value(row);
        std::vector<std::string> names, values;
        for (const io::Value::Member& member : *value.map()) {
          names.push_back(member.key);
          values.push_back(*member.value.text());
        }
        INLAY_ASSERT(table.empty() || table.front() == names, "every row has the columns of the first");
        if (table.empty()) table.push_back(names);
        table.push_back(values);
      }
    }
  } catch (const UserError&) {
    return {};
  }
  return table;
}

std::string written(const Table& table, char separator) {
  std::string text;
  for (const std::vector<std::string>& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text += separator;
      text += '"';
      for (const char c : row[i]) text += c == '"' ? std::string("\"\"") : std::string(1, c);
      text += '"';
    }
    text += '\n';
  }
  return text;
}

}  // namespace

// A table of somebody else's. What was understood of it, written as the standard wants it, is understood in the same
// way.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  const char separator = (bytes[0] & 1) != 0 ? ',' : '\t';
  const Table table = read({reinterpret_cast<const char*>(bytes) + 1, size - 1}, separator);
  if (!table.empty()) INLAY_ASSERT(read(written(table, separator), separator) == table, "another table");
  return 0;
}
