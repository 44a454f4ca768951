#include "osft/decompose_targets.h"

#include "model/weights_io.h"
#include "ops/elementwise.h"
#include "weights/decompose.h"

namespace inlay::osft {

using backend::ScratchScope;

namespace {

void put_rows(Exec& exec, BasisStore& store, const std::string& name, ConstView rows) {
  if (rows.dim(0) == 0 || exec.planning()) return;
  BasisStore::Tensor tensor{rows.dtype(), rows.shape(), std::vector<std::byte>(rows.bytes())};
  exec.download(tensor.bytes.data(), rows);
  store.put(name, std::move(tensor));
}

}  // namespace

void decompose_targets(Exec& exec, const OsftLayout& layout, const model::ModelConfig& config,
                       const io::Checkpoint* checkpoint, BasisStore& store, const TargetProgress& progress,
                       const SearchTeam& team) {
  Arena& arena = exec.arena();
  arena.begin_phase("decomposition");
  model::ModelParameters parameters(config);
  std::int64_t total = 0, done = 0;
  parameters.for_each([&](weights::Parameter& p) {
    if (layout.find(p.name) != nullptr && team.mine(p.name)) total += static_cast<std::int64_t>(p.parts.size());
  });
  parameters.for_each([&](weights::Parameter& p) {
    const OsftLayout::Ranks* ranks = layout.find(p.name);
    if (ranks == nullptr || !(exec.planning() || team.mine(p.name))) return;
    const auto& factors = std::get<weights::FactorLayout>(*ranks);
    for (std::size_t i = 0; i < p.parts.size(); ++i) {
      const ScratchScope scope(arena);
      const weights::FactorLayout::PartRanks& part = factors.parts[i];
      const bool factored = factors.route == weights::Route::factored;
      const std::int64_t out = p.parts[i].rows, in = p.shape[1];
      const std::int64_t frozen = part.frozen, full = part.free + frozen;
      View w = arena.scratch("weight", DType::f32, {out, in});
      model::load_part(exec, w, p, p.parts[i], checkpoint);
      const weights::Decomposition d{.u = arena.scratch("u", DType::f32, {full, out}),
                                     .s = arena.scratch("s", DType::f32, {full}),
                                     .v = arena.scratch("v", DType::f32, {full, in})};
      weights::decompose(exec, d, w, p.parts[i].label());
      const std::string prefix = fmt::format("{}.{}", p.name, i);
      put_rows(exec, store, prefix + ".u", d.u.slice_rows(frozen, full));
      put_rows(exec, store, prefix + ".v", d.v.slice_rows(frozen, full));
      put_rows(exec, store, prefix + ".s", d.s.slice_rows(frozen, full));
      if (factored || !part.span_suffices(out)) {
        put_rows(exec, store, prefix + ".u.frozen", d.u.slice_rows(0, frozen));
      }
      if (!part.span_suffices(in)) put_rows(exec, store, prefix + ".v.frozen", d.v.slice_rows(0, frozen));
      if (factored) {
        ops::scale_rows(exec, d.v.slice_rows(0, frozen), d.s.slice_rows(0, frozen));
        put_rows(exec, store, prefix + ".v.scaled", d.v.slice_rows(0, frozen));
      }
      ++done;
      if (progress && !exec.planning()) progress(done, total);
    }
  });
}

}  // namespace inlay::osft
