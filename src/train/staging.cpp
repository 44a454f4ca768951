#include "train/staging.h"

#include "weights/weight.h"

namespace inlay::train {

namespace {

bool is_of_model(const std::string& state) { return state.ends_with(".value") || state.ends_with(".low"); }

// The states that a model's own files are made of. What trains in a matrix's place is not among them: what becomes of
// the matrix is computed.
std::set<std::string> states_of_model(model::Decoder& decoder, const StagingOptions& options) {
  std::set<std::string> states;
  decoder.parameters().for_each([&](const weights::Parameter& p) {
    if (!p.trainable) return;
    states.insert(value_state(p));
    // An adapter's file has in fp32 what trains as a whole.
    if (options.adapters > 0 || options.exact.contains(p.name)) states.insert(low_state(p));
  });
  return states;
}

}  // namespace

std::string value_state(const weights::Parameter& p) { return p.name + ".value"; }
std::string low_state(const weights::Parameter& p) { return p.name + ".low"; }

bool is_completed_by_owner(const weights::Parameter& p) {
  return !p.trainable && p.owner != nullptr && p.owner->changes();
}

Staging::Staging(Exec& exec, model::Decoder& decoder, Optimizer& optimizer, const StagingOptions& options) {
  Arena& arena = exec.host().arena();
  std::set<std::string> wanted;
  if (options.what == Staged::model) wanted = states_of_model(decoder, options);
  optimizer.for_each_state(exec, options.leads, [&](const StateTensor& state) {
    if (options.what == Staged::model && !wanted.contains(state.name)) return;
    Entry entry{.name = state.name,
                .dtype = state.share.dtype(),
                .whole = state.whole,
                .bytes = {},
                .first_row = state.first_row,
                .mine_to_write = state.mine_to_write};
    // What all processes have whole, any of them may be dealt to write into the model.
    const bool dealt = is_of_model(state.name) && state.share.shape() == state.whole;
    if (state.mine_to_write || dealt) {
      entry.bytes = arena.keep(MemoryClass::workspace, "staged " + state.name, entry.dtype, state.share.shape());
    }
    by_name_[state.name] = entries_.size();
    entries_.push_back(std::move(entry));
  });
  if (options.adapters > 0) {
    std::int64_t numbers = 0;
    for (weights::Weight* weight : decoder.weights()) {
      weight->for_each_own([&](const weights::Parameter& p) { numbers += p.size(); });
    }
    if (!options.leads || numbers == 0) return;
    adapter_room_ = arena.keep(MemoryClass::workspace, "staged adapter", DType::f32, {options.adapters * numbers});
    return;
  }
  decoder.parameters().for_each([&](weights::Parameter& p) {
    if (!is_completed_by_owner(p) || !p.first_copy || p.my_shape().size() == 0) return;
    rooms_[&p] = arena.keep(MemoryClass::workspace, "staged " + p.name, DType::f32, p.my_shape());
  });
}

void Staging::capture(Exec& exec, Optimizer& optimizer) {
  backend::Signal computed;
  computed.record(exec, backend::Lane::compute);
  computed.wait(exec, backend::Lane::to_host);
  optimizer.for_each_state(exec, false, [&](const StateTensor& state) {  // who writes it was asked before
    const View* to = find(state.name);
    if (to != nullptr) backend::copy_to_host(state.home, *to, state.share);
  });
  copied_.record(exec, backend::Lane::to_host);
}

const View* Staging::find(const std::string& state) const {
  const auto found = by_name_.find(state);
  if (found == by_name_.end()) return nullptr;
  const View& bytes = entries_[found->second].bytes;
  return bytes.absent() ? nullptr : &bytes;
}

std::span<std::byte> Staging::room_for(const weights::Parameter& parameter) const {
  const auto found = rooms_.find(&parameter);
  if (found == rooms_.end()) return {};
  return {static_cast<std::byte*>(found->second.data()), found->second.bytes()};
}

std::span<float> Staging::room_for_adapter() const {
  if (adapter_room_.absent()) return {};
  return {adapter_room_.as<float>(), static_cast<std::size_t>(adapter_room_.size())};
}

}  // namespace inlay::train
