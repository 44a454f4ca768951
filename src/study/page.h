#pragma once

#include <string>

#include "study/metrics.h"

namespace inlay::study {

struct ReportContext {
  std::string base_model, config;  // the folder's name; the configuration file's text
};

// A study as one page that needs nothing else: no network, no scripts, light and dark.
std::string report_html(const Study& study, const Analysis& analysis, const ReportContext& context);

}  // namespace inlay::study
