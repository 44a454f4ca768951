"""Draws the pictures of docs/keeping.md from the results of its studies:

    python3 docs/keeping/picture.py frontier build/keeping/frontier/results.json docs/keeping/frontier.svg
    python3 docs/keeping/picture.py sequence build/keeping/sequence/results.json docs/keeping/sequence.svg

Nothing but Python is needed.
"""

import json
import statistics
import sys

COLORS = ["#555555", "#e69f00", "#56b4e9", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#8a6d3b", "#7b3294", "#1b9e77",
          "#a50026", "#7f7f00", "#2166ac", "#b2abd2", "#000000"]
STYLE = "font-family='sans-serif' font-size='13' fill='#222'"


def means(results, value):
    """method -> [((learning rate, share that is kept), mean over seeds)], in the order of the file."""
    groups = {}
    for sequence in results["sequences"]:
        rates = groups.setdefault(sequence["method"], {})
        rates.setdefault((sequence["learning_rate"], sequence.get("share", 1)), []).append(value(sequence))
    return {method: [(rate, [statistics.mean(v) for v in zip(*found)]) for rate, found in sorted(rates.items())]
            for method, rates in groups.items()}


def text(x, y, words, more=""):
    return f"<text x='{x:.1f}' y='{y:.1f}' {STYLE} {more}>{words}</text>"


def frame(width, height, parts):
    return (f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
            f"viewBox='0 0 {width} {height}'>\n<rect width='100%' height='100%' fill='white'/>\n" + "\n".join(parts)
            + "\n</svg>\n")


def frontier(results):
    """What is forgotten over what is learned: a line for each method, a point for each of its learning rates (and shares)."""
    base = results["base"]
    held = [h["name"] for h in results["held"] if h["name"] in ("own", "text")]
    task = results["tasks"][0]["name"]

    def point(sequence):
        last = sequence["rows"][-1]
        rises = [last["held"][h]["loss"] - base["held"][h]["loss"] for h in held]
        return last["tasks"][task]["loss"], statistics.mean(rises)

    lines = means(results, point)
    left, right, top, bottom, width, height = 70, 620, 20, 400, 820, 450
    low, high, most = 0.6, 0.82, 0.26
    x = lambda loss: left + (loss - low) / (high - low) * (right - left)
    y = lambda forgotten: bottom - (forgotten + 0.01) / (most + 0.01) * (bottom - top)
    parts = []
    for loss in (0.6, 0.65, 0.7, 0.75, 0.8):
        parts.append(f"<line x1='{x(loss):.1f}' x2='{x(loss):.1f}' y1='{top}' y2='{bottom}' stroke='#ddd'/>")
        parts.append(text(x(loss), bottom + 18, f"{loss:g}", "text-anchor='middle'"))
    for forgotten in (0, 0.05, 0.1, 0.15, 0.2, 0.25):
        parts.append(f"<line x1='{left}' x2='{right}' y1='{y(forgotten):.1f}' y2='{y(forgotten):.1f}' stroke='#ddd'/>")
        parts.append(text(left - 8, y(forgotten) + 4, f"{forgotten:g}", "text-anchor='end'"))
    parts.append(text((left + right) / 2, bottom + 40, "new loss (lower: more is learned)", "text-anchor='middle'"))
    parts.append(text(0, 0, "forgetting", f"transform='translate(20 {(top + bottom) / 2}) rotate(-90)' text-anchor='middle'"))
    for i, (method, points) in enumerate(lines.items()):
        color = COLORS[i % len(COLORS)]
        inside = sorted((x(loss), y(forgotten)) for _, (loss, forgotten) in points if forgotten <= most and loss <= high)
        thick = 3 if method.startswith("activations") and "kl" not in method else 1.5
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in inside)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{color}' stroke-width='{thick}'/>")
        parts += [f"<circle cx='{px:.1f}' cy='{py:.1f}' r='4' fill='{color}'/>" for px, py in inside]
        parts.append(f"<rect x='{right + 20}' y='{top + 8 + 24 * i}' width='14' height='14' fill='{color}'/>")
        parts.append(text(right + 42, top + 20 + 24 * i, method))
    return frame(width, height, parts)


def sequence(results):
    """Right answers after the last task: a group of bars for each task, a bar for each method."""
    tasks = [t["name"] for t in results["tasks"]]
    final = means(results, lambda s: [s["rows"][-1]["tasks"][t]["exact_match"] for t in tasks])
    bars = [(f"{method} {rate:g}" + (f", {share:g}" if share < 1 else ""), values)
            for method, rates in final.items() for (rate, share), values in rates]
    left, top, bottom, width, height = 60, 20, 300, 820, 400
    group = (width - left - 20) / len(tasks)
    bar = (group - 18) / len(bars)
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = bottom - share * (bottom - top)
        parts.append(f"<line x1='{left}' x2='{width - 20}' y1='{y:.1f}' y2='{y:.1f}' stroke='#ddd'/>")
        parts.append(text(left - 8, y + 4, f"{100 * share:g} %", "text-anchor='end'"))
    for t, name in enumerate(tasks):
        parts.append(text(left + group * (t + 0.5), bottom + 18, name, "text-anchor='middle'"))
        for i, (_, values) in enumerate(bars):
            tall = values[t] * (bottom - top)
            parts.append(f"<rect x='{left + group * t + 9 + bar * i:.1f}' y='{bottom - tall:.1f}' width='{bar - 1:.1f}' "
                         f"height='{tall:.1f}' fill='{COLORS[i % len(COLORS)]}'/>")
    for i, (label, _) in enumerate(bars):
        x, y = left + 250 * (i % 3), bottom + 40 + 24 * (i // 3)
        parts.append(f"<rect x='{x}' y='{y}' width='14' height='14' fill='{COLORS[i % len(COLORS)]}'/>")
        parts.append(text(x + 22, y + 12, label))
    return frame(width, height, parts)


def main():
    kind, source, target = sys.argv[1:]
    with open(source) as file:
        results = json.load(file)
    drawn = {"frontier": frontier, "sequence": sequence}[kind](results)
    with open(target, "w") as file:
        file.write(drawn)


if __name__ == "__main__":
    main()
