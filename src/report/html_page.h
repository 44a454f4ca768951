#pragma once

#include <string>
#include <string_view>

// Pages that need nothing else: no network, no scripts, light and dark.
namespace inlay::report {

// Text as it may stand in HTML, attributes included.
std::string escape(std::string_view text);

// <name class="css">content</name>; content is HTML already.
std::string tag(std::string_view name, std::string_view css, std::string_view content);

// A whole page with the style sheet that reports share; the title is text, the body HTML, and so is what else belongs
// into its head.
std::string html_page(std::string_view title, std::string_view body, std::string_view head = "");

// A configuration file's text, folded away until it is asked for.
std::string configuration(std::string_view yaml);

}  // namespace inlay::report
