#include "report/html_page.h"

#include <fmt/format.h>

namespace inlay::report {

namespace {

// Colours after Okabe and Ito, which eyes of every kind tell apart; lighter ones on the dark page.
constexpr const char* style = R"css(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #17202a; --soft: #5b6672; --edge: #dde2e8;
  --grid: #e8ecf0; --heat: 0 114 178; --warn: #fff4d6; --c0: #5b6672; --c1: #0072b2; --c2: #d55e00; --c3: #009e73;
  --c4: #a8477f; --c5: #b07c00; --c6: #2f8fc9; }
@media (prefers-color-scheme: dark) {
  :root { --page: #11151a; --card: #1a2027; --ink: #e7ecf1; --soft: #9aa7b4; --edge: #2d3640; --grid: #262e37;
    --heat: 86 180 233; --warn: #3a3017; --c0: #a9b5c1; --c1: #56b4e9; --c2: #f28e4b; --c3: #2fc79b; --c4: #e08fbe;
    --c5: #e6b13d; --c6: #8fcdf2; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.02em; text-wrap: balance; }
h2 { font-size: 1.2rem; margin: 44px 0 4px; letter-spacing: -0.01em; }
h3 { font-size: 1rem; margin: 0 0 8px; font-weight: 600; }
p { margin: 0 0 12px; } .lead { font-size: 1.1rem; } .soft { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 18px 20px; }
.cards { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); margin: 22px 0 0; }
.cards .card { border-top: 4px solid var(--c); } .cards p { margin: 0 0 4px; font-size: 0.9rem; }
.big { font-size: 2.5rem; line-height: 1.1; font-weight: 650; font-variant-numeric: tabular-nums; margin: 2px 0 2px; }

.warn { background: var(--warn); border-radius: 8px; padding: 10px 14px; margin: 18px 0 0; }
figure { margin: 0; } .scroll { overflow-x: auto; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 0 0 8px; font-size: 0.9rem; }
.legend span { display: inline-flex; align-items: center; gap: 7px; }
svg { display: block; width: 100%; min-width: min(var(--w), 400px); max-width: var(--w); height: auto; }
svg.key { width: 28px; min-width: 28px; height: 14px; }
svg text { fill: var(--ink); font-size: 12.5px; font-family: inherit; } svg .tick { fill: var(--soft); }
svg .title { fill: var(--soft); font-size: 13px; } svg .note { fill: var(--soft); font-size: 12px; }
svg .label { fill: var(--c); font-weight: 600; font-size: 12px; }
.grid { stroke: var(--grid); } .rule { stroke: var(--soft); stroke-dasharray: 5 4; }
.strong { fill: none; stroke: var(--c); stroke-width: 2.2; stroke-linejoin: round; }
.thin { fill: none; stroke: var(--c); stroke-width: 1.2; stroke-dasharray: 2 4; opacity: 0.7; }
.whisker { stroke: var(--c); stroke-width: 1.2; opacity: 0.55; } .leader { stroke: var(--c); opacity: 0.5; }
.mark { fill: var(--c); stroke: var(--card); stroke-width: 1.5; } .faint { fill: var(--card); stroke: var(--c); }
.s0 { --c: var(--c0); } .s1 { --c: var(--c1); } .s2 { --c: var(--c2); } .s3 { --c: var(--c3); }
.s4 { --c: var(--c4); } .s5 { --c: var(--c5); } .s6 { --c: var(--c6); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
.list { width: 100%; } .list th, .list td { text-align: right; padding: 6px 8px; border-bottom: 1px solid var(--edge);
  white-space: nowrap; }
.list thead th { color: var(--soft); font-weight: 500; white-space: normal; vertical-align: bottom; }
.list th:first-child { text-align: left; }
.list tbody th { font-weight: 600; } .list tr.best td, .list tr.best th { font-weight: 600; }
.deviation { color: var(--soft); font-size: 0.85em; font-weight: 400; }
.list tbody tr:last-child > * { border-bottom: 0; }
.heat th { font-weight: 500; color: var(--soft); padding: 4px 8px; text-align: left; white-space: nowrap; }
.heat thead th { text-align: center; }
.heat td { text-align: center; padding: 7px 10px; min-width: 76px; border: 2px solid var(--card); border-radius: 6px; }
.heat td.just { box-shadow: inset 0 0 0 2px var(--ink); border-radius: 6px; font-weight: 600; }
.heat { width: 100%; } .heat small { display: block; font-size: 0.75rem; opacity: 0.8; line-height: 1.2; }
.heat .gap { border-left: 14px solid var(--card); }
.charts { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.charts svg:not(.key) { min-width: min(var(--w), 340px); max-width: 640px; }
.behind { opacity: 0.35; } svg .behind { stroke-width: 1; }
.swatch { display: inline-block; width: 22px; height: 0; border-top: 3px solid var(--c); }
.sample { margin: 0 0 14px; } .sample p { white-space: pre-wrap; overflow-wrap: anywhere; }
.prompt { font-weight: 600; } .text { margin: 0; }
.answers th, .answers thead th, .answers td { text-align: left; vertical-align: top; } .answers td { width: 100%; }
.pair { display: grid; gap: 4px 24px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); }
.panels { display: flex; flex-wrap: wrap; gap: 14px; } .panels > * { max-width: 100%; flex: 1 1 auto; }
dl { display: grid; grid-template-columns: minmax(120px, max-content) 1fr; gap: 6px 18px; margin: 0;
  font-size: 0.92rem; }
dt { font-weight: 600; } dd { margin: 0; color: var(--soft); } @media (max-width: 640px) { dl { display: block; }
  dd { margin: 0 0 10px; } }
summary { cursor: pointer; font-weight: 600; }
details { margin: 14px 0 0; } details[open] summary { margin-bottom: 10px; }
pre { margin: 0; overflow-x: auto; font: 0.84rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media print { body { background: #fff; } .card, figure, table { break-inside: avoid; } }
)css";

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string tag(std::string_view name, std::string_view css, std::string_view content) {
  return css.empty() ? fmt::format("<{0}>{1}</{0}>", name, content)
                     : fmt::format("<{0} class=\"{1}\">{2}</{0}>", name, css, content);
}

std::string html_page(std::string_view title, std::string_view body, std::string_view head) {
  return R"(<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">)"
         R"(<meta name="viewport" content="width=device-width, initial-scale=1"><title>)" +
         escape(title) + "</title>" + std::string(head) + "<style>" + style + "</style></head><body><main>" +
         std::string(body) + "</main></body></html>\n";
}

std::string configuration(std::string_view yaml) {
  return R"(<details class="card"><summary>Configuration</summary><pre>)" + escape(yaml) + "</pre></details>";
}

}  // namespace inlay::report
