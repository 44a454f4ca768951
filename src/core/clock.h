#pragma once

#include <string>

namespace inlay {

// Seconds since 1970, by the calendar; and the same as people and programs read it: "2026-11-16T12:03:37.123Z".
double wall_clock();
std::string utc_text(double seconds);

}  // namespace inlay
