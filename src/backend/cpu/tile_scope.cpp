#include "backend/cpu/tile_scope.h"

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
// Compiled for any x86-64 and only called where the processor and the kernel grant tiles.
#define INLAY_TILES __attribute__((target("amx-tile")))
#endif

namespace inlay::backend::cpu {

namespace {

thread_local int depth = 0;

#if defined(__x86_64__)

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

INLAY_TILES void configure() {
  // Static: GCC believes that the instruction reads one pointer's worth, and would not write the rest to the stack.
  static constexpr TileConfig config;
  _tile_loadconfig(&config);
}
INLAY_TILES void release() { _tile_release(); }

#else

void configure() {}
void release() {}

#endif

}  // namespace

TileScope::TileScope() {
  if (amx_usable() && depth++ == 0) configure();
}

TileScope::~TileScope() {
  if (amx_usable() && --depth == 0) release();
}

}  // namespace inlay::backend::cpu
