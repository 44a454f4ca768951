#pragma once

#include <map>
#include <optional>
#include <span>

#include "train/engine.h"
#include "train/model_folder.h"

namespace inlay::train {

// A model's numbers out of the copy of the state that the engine's staging holds, for write_model(): on any thread,
// while the engine goes on. What nothing has changed is the base model's. Of an adapter's, the parts that train whole.
class StagedParts {
 public:
  // Asks the engine now for what it alone can tell.
  StagedParts(Engine& engine, const std::filesystem::path& base);

  // As ReadPart; what trains needs no base.
  void read(const weights::Parameter& parameter, const weights::Part& part, DType dtype, const io::Checkpoint* base,
            const PieceSink& sink);

 private:
  struct Rendered {
    DType dtype = DType::f32;
    std::span<const std::byte> bytes;
  };

  void render(Engine& engine, const io::Checkpoint& base);
  void copy_parameters(Engine& engine);
  // A parameter whose numbers are those of the copy, on the CPU.
  weights::Parameter copied(const weights::Parameter& parameter) const;

  const Staging& staging_;
  std::map<const weights::Part*, Rendered> rendered_;
  std::map<const weights::Parameter*, weights::Parameter> copies_;  // the engine's own change with every pass
  std::size_t scratch_ = 0;
  std::optional<Exec> exec_;
};

}  // namespace inlay::train
