#include "train/staged_parts.h"

#include <algorithm>

namespace inlay::train {

StagedParts::StagedParts(Engine& engine, const std::filesystem::path& base) : staging_(*engine.staging()) {
  render(engine, io::Checkpoint(base));
  copy_parameters(engine);
}

void StagedParts::render(Engine& engine, const io::Checkpoint& base) {
  engine.decoder().parameters().for_each([&](weights::Parameter& p) {
    std::span<std::byte> room = staging_.room_for(p);
    if (room.empty()) return;
    for (const weights::Part& part : p.parts) {
      const auto dtype = saved_dtype(base, part);
      if (!dtype || model::saved_rows(p, part).count() == 0) continue;  // write_model() says what is wrong with it
      std::size_t filled = 0;
      model::read_part(engine.exec(), p, part, *dtype, &base, [&](std::span<const std::byte> piece) {
        std::ranges::copy(piece, room.begin() + static_cast<std::ptrdiff_t>(filled));
        filled += piece.size();
      });
      rendered_[&part] = {*dtype, room.first(filled)};
      room = room.subspan(filled);
    }
  });
}

void StagedParts::copy_parameters(Engine& engine) {
  Exec planner = Exec::planner(Device::cpu);
  engine.decoder().parameters().for_each([&](const weights::Parameter& p) {
    const weights::Parameter& copy = copies_.emplace(&p, copied(p)).first->second;
    for (const weights::Part& part : p.parts) model::read_part(planner, copy, part, DType::f32, nullptr, [](auto) {});
  });
  scratch_ = planner.arena().peak();
}

weights::Parameter StagedParts::copied(const weights::Parameter& p) const {
  weights::Parameter copy = p;
  copy.owner = nullptr;
  copy.on_host = false;
  const View *value = staging_.find(value_state(p)), *low = staging_.find(low_state(p));
  if (value != nullptr) {
    copy.holds_value = true;  // the rows that this process has, and no others
    copy.held_value = *value;
  }
  if (low != nullptr) copy.low = *low;
  return copy;
}

void StagedParts::read(const weights::Parameter& p, const weights::Part& part, DType dtype, const io::Checkpoint* base,
                       const PieceSink& sink) {
  if (const auto found = rendered_.find(&part); found != rendered_.end()) {
    INLAY_ASSERT(found->second.dtype == dtype, "{} was rendered in another dtype", part.checkpoint_name);
    return sink(found->second.bytes);
  }
  const View* value = staging_.find(value_state(p));
  INLAY_ASSERT(value != nullptr || !(p.trainable || is_completed_by_owner(p)), "there is no copy of {}", p.name);
  if (value != nullptr && value->dtype() == dtype && part.stacked == 0) {  // as it is
    const model::PartRows mine = model::saved_rows(p, part);
    const std::int64_t first = part.row + mine.begin - p.first_row();
    const View rows = value->slice_rows(first, first + mine.count());
    return sink({static_cast<const std::byte*>(rows.data()), rows.bytes()});
  }
  if (!exec_) exec_.emplace(Exec::runner(Device::cpu, scratch_));
  model::read_part(*exec_, copies_.at(&p), part, dtype, base, sink);
}

}  // namespace inlay::train
