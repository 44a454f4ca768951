#include "adapter/start.h"

#include <optional>

#include "core/philox.h"
#include "io/hash.h"

namespace inlay::adapter {

namespace {

struct Name {
  std::string parameter;
  char what = 0;  // a, b or m
  std::size_t part = 0;
};

// PARAMETER.lora_a, PARAMETER.lora_b.2, PARAMETER.lora_m.0
std::optional<Name> parse(const std::string& name) {
  constexpr std::string_view mark = ".lora_";
  const auto at = name.rfind(mark);
  if (at == std::string::npos || at + mark.size() >= name.size()) return std::nullopt;
  Name result{.parameter = name.substr(0, at), .what = name[at + mark.size()]};
  if (const auto dot = name.find('.', at + mark.size()); dot != std::string::npos) {
    result.part = std::stoul(name.substr(dot + 1));
  }
  return result;
}

}  // namespace

AdapterStart::AdapterStart(const AdapterTargets& targets, Source source) : source_(std::move(source)) {
  for (const AdaptedPart& part : targets.parts) parts_[part.parameter].push_back(part);
}

std::vector<float> AdapterStart::values(const std::string& name) const {
  const auto parsed = parse(name);
  INLAY_ASSERT(parsed && parts_.contains(parsed->parameter), "no adapter has {}", name);
  const std::vector<AdaptedPart>& parts = parts_.at(parsed->parameter);
  if (parsed->what == 'b') return source_.b(parts.at(parsed->part));
  if (parsed->what == 'm') return source_.magnitude(parts.at(parsed->part));
  std::vector<float> all;
  for (const AdaptedPart& part : parts) {
    const std::vector<float> a = source_.a(part);
    all.insert(all.end(), a.begin(), a.end());
  }
  return all;
}

bool AdapterStart::has(const std::string& name) const { return !values(name).empty(); }

const void* AdapterStart::at(const std::string& name, DType dtype, const Shape& shape) const {
  if (others_ != nullptr && !parse(name)) return others_->at(name, dtype, shape);
  last_ = values(name);
  INLAY_ASSERT(dtype == DType::f32 && last_.size() == static_cast<std::size_t>(shape.size()),
               "{} has {} numbers, expected {}", name, last_.size(), shape.str());
  return last_.data();
}

AdapterStart start_from(const AdapterFile& file) {
  return {file.targets(),
          {.a = [&](const AdaptedPart& part) { return file.a(part); },
           .b = [&](const AdaptedPart& part) { return file.b(part); },
           .magnitude = [&](const AdaptedPart& part) { return file.magnitude(part); }}};
}

AdapterStart start_at_random(const AdapterTargets& targets, std::uint64_t seed) {
  // By the module's name, so that other targets beside it do not change it.
  const auto a = [seed](const AdaptedPart& part) {
    io::Hasher hasher;
    const std::string about = fmt::format("{} {}", part.module, part.expert);
    hasher.update(std::as_bytes(std::span(about)));
    const Philox philox{seed};
    const std::uint64_t stream = hasher.digest();
    std::vector<float> values(static_cast<std::size_t>(part.rank * part.in));
    const float deviation = 1.0f / static_cast<float>(part.rank);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = deviation * philox.normal(i, stream);
    return values;
  };
  const auto b = [](const AdaptedPart& part) {
    return std::vector<float>(static_cast<std::size_t>(part.out * part.rank));
  };
  return {targets, {.a = a, .b = b, .magnitude = [](const AdaptedPart&) { return std::vector<float>(); }}};
}

}  // namespace inlay::adapter
