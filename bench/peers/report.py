"""report.py — what bench/compare.py found, as a table in Markdown and as a plot in SVG; lost rows come first."""

import datetime
import math
import pathlib
import platform
import statistics
import sys

from rows import ROWS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
QUIET = 0.95
SIDES = ("PyTorch", "OpenBLAS", "oneDNN", "llama.cpp")


def medians(samples):
    """(median of the windows, are they quiet?) Where none is, those beside which there was least."""
    best = max(s.get("quiet", 1) for s in samples)
    bound = QUIET if best >= QUIET else 0.95 * best
    return statistics.median(s["value"] for s in samples if s.get("quiet", 1) >= bound), best >= QUIET


def is_noisy(data, row):
    """Has one of its sides no quiet window?"""
    return any(not medians(samples)[1] for samples in data["rows"].get(row.name, {}).values())


def unit(row, value):
    if row.name == "size" or row.share:
        return f"{value / 1e6:.1f} MB"
    if row.tokens:
        return f"{row.tokens / value:.0f} tokens/s"
    for bound, factor, name in ((1e-3, 1e6, "µs"), (1, 1e3, "ms")):
        if value < bound:
            return f"{value * factor:.3g} {name}" if value * factor < 100 else f"{value * factor:.0f} {name}"
    return f"{value:.2f} s"


class Figures:
    """A row's figures: ours, the peers', the ratio by the strongest, and whether it is where it shall be."""

    def __init__(self, row, sides):
        self.row, self.noisy = row, set()
        self.value = {}
        for side, samples in sides.items():
            self.value[side], quiet = medians(samples)
            if not quiet:
                self.noisy.add(side)
        fractions = [s["limit_fraction"] for s in sides["here"] if s.get("limit_fraction") and s.get("quiet", 1) >= QUIET]
        fractions = fractions or [s["limit_fraction"] for s in sides["here"] if s.get("limit_fraction")]
        self.limit = statistics.median(fractions) if fractions else None
        self.peers = {side: v for side, v in self.value.items() if side != "here"}
        self.strongest = min(self.peers, key=self.peers.get, default=None)
        self.ratio = self.peers[self.strongest] / self.value["here"] if self.strongest else None
        least = {side: min(s.get("best", s["value"]) for s in samples) for side, samples in sides.items()}
        self.best_ratio = min(least[side] for side in self.peers) / least["here"] if self.peers else None
        self.needed = self.limit_of_target(sides["here"])

    def limit_of_target(self, samples):
        """The part of the limit that the target's time takes, by the highest limit that this run saw: above 1 no
        program on this machine reaches it. None where the row has no limit."""
        at_limit = [s["value"] * s["limit_fraction"] for s in samples if s.get("limit_fraction")]
        if not at_limit or not self.strongest or self.row.share or self.row.most:
            return None
        return min(at_limit) * self.row.ratio / self.peers[self.strongest]

    def targets(self):
        """(text, reached) of each."""
        row = self.row
        if row.share:
            yield f"≤ {row.share:.0%} of it", bool(self.ratio) and 1 / self.ratio <= row.share
        elif row.most:
            yield "≤ " + unit(row, row.most), self.value["here"] <= row.most
        else:
            yield f"≥ {row.ratio:g}×", bool(self.ratio) and self.ratio >= row.ratio
        if row.limit:
            yield f"≥ {row.limit:.0%} of the limit", bool(self.limit) and self.limit >= row.limit

    def lost(self):
        return self.ratio is not None and self.ratio < self.row.lost

    def missed(self):
        return not all(reached for _, reached in self.targets())

    def order(self):
        return (0 if self.lost() else 1 if self.missed() else 2), self.ratio or math.inf


def cells(figures):
    row = figures.row
    shown = [row.name, unit(row, figures.value["here"]) + ("*" if "here" in figures.noisy else ""),
             f"{figures.limit:.0%}" if figures.limit else "–"]
    for side in SIDES:
        value = figures.value.get(side)
        shown.append("–" if value is None else unit(row, value) + ("*" if side in figures.noisy else ""))
    shown += ["–" if ratio is None else f"{ratio:.2f}" for ratio in (figures.ratio, figures.best_ratio)]
    shown.append(" and ".join(text for text, _ in figures.targets()))
    shown.append(f"{figures.needed:.0%}" + (" (beyond)" if figures.needed > 1 else "") if figures.needed else "–")
    shown.append("**lost**" if figures.lost() else "missed" if figures.missed() else "reached")
    return shown


def gather(data):
    known = {row.name: row for row in ROWS}
    return [Figures(known[name], sides) for name, sides in data["rows"].items() if name in known and "here" in sides]


def table(data):
    """(lines, is there a peer whose results differ?)"""
    all_figures = sorted(gather(data), key=Figures.order)
    head = ["work", "here", "of the limit", *SIDES, "ratio", "of the best", "target", "which takes", ""]
    rule = ["---"] + ["---:"] * (len(head) - 4) + ["---", "---:", "---"]
    body = [head, rule] + [cells(f) for f in all_figures]
    lines = ["| " + " | ".join(row) + " |" for row in body]
    lost, missed = sum(f.lost() for f in all_figures), sum(f.missed() for f in all_figures)
    reached = len(all_figures) - missed
    beyond = sum(f.missed() and f.needed is not None and f.needed > 1 for f in all_figures)
    others = len(all_figures) - beyond
    lines += ["", f"{reached} of {len(all_figures)} rows reach their target; {lost} are behind the strongest peer. The "
                  f"targets of {beyond} are beyond the limit that this run measured" +
                  (f": of the {others} others {reached / others:.0%} reach theirs." if others else ".")]
    if any(f.noisy for f in all_figures):
        lines += ["", "\\* No quiet window was found for this figure: something else ran beside it."]
    lines += [f"\n{name} is missing: {why}" for name, why in data["absent"].items()]
    wrong = [(row, name, text) for row, names in data["checked"].items() for name, text in names.items() if text]
    lines += [f"\n{row}: {name} is not timed, its results differ ({text[0]})" for row, name, text in wrong]
    return lines, bool(wrong)


# ---- what stands in the way of the rows that miss their target ---------------------------------------------------------

SHOWN, LEAST_SHARE, FAR_FROM_LIMIT = 6, 0.03, 0.3


def short_of_target(data):
    """The rows of works that miss their target, those that are behind first."""
    return [f.row for f in sorted(gather(data), key=Figures.order) if f.missed()]


def bound(figures):
    """What the target needs, in words."""
    words = [f"Its target is {figures.row.limit:.0%} of the limit."] if figures.row.limit else []
    if figures.needed and figures.needed > FAR_FROM_LIMIT:
        words.append(f"{figures.row.ratio:g} times as fast as the strongest peer is {figures.needed:.0%} of the limit" +
                     (": no program can reach it here." if figures.needed > 1 else "."))
    return " ".join(words) or "Neither arithmetic nor memory limits it: the time goes to small commands and between them."


def commands(run):
    """A table of what takes most of a run's time. Commands are timed in further runs, so their sum may differ a little."""
    profile = sorted(run["profile"], key=lambda c: -c["seconds"] * c["times"])
    sums = [c["seconds"] * c["times"] for c in profile]
    whole = max(run["value"], sum(sums))
    shown = sum(seconds >= LEAST_SHARE * whole for seconds in sums[:SHOWN])
    yield from ("| share | once | times | of the arithmetic | GB/s | command |", "| ---: | ---: | ---: | ---: | ---: | --- |")
    for c, seconds in zip(profile[:shown], sums):
        yield (f"| {seconds / whole:.0%} | {c['seconds'] * 1e6:.1f} µs | {c['times']:.0f} | {c['limit_fraction']:.0%} "
               f"| {c['bytes_per_second'] * 1e-9:.1f} | {c['command']} |")
    if profile[shown:]:
        times = sum(c["times"] for c in profile[shown:])
        yield f"| {sum(sums[shown:]) / whole:.0%} | | {times:.0f} | | | all others |"
    if sum(sums) < (1 - LEAST_SHARE) * whole:
        yield f"| {1 - sum(sums) / whole:.0%} | | | | | between commands |"


def profiles(data):
    """Lines: a part for each row that misses its target."""
    for figures in sorted(gather(data), key=Figures.order):
        run = data.get("profiles", {}).get(figures.row.name)
        if run and "profile" in run:  # the row `size` has none
            yield from ("", f"### {figures.row.name}", "", bound(figures), "", *commands(run))


# ---- the short table of README.md --------------------------------------------------------------------------------------

FAMILIES = (("matrix products, f32, 256 to 2048", "gemm-f32-"), ("matrix product, bf16, 1024", "gemm-bf16-"),
            ("matrix-vector product, 4096", "gemv-"), ("one operation on few elements", "add-"),
            ("five element-wise operations on 16 M elements", "chain5-"), ("convolution 3×3", "conv3x3-"),
            ("convolution 3×3, `--numerics fast`", "conv3x3-64-56-fast"),
            ("small policy network, forward", "policy-forward-"), ("small policy network, training step", "policy-train-"),
            ("four transformer blocks, forward", "transformer-forward-"),
            ("four transformer blocks, forward and backward", "transformer-train-"),
            ("convolutional network, forward", "cnn-forward-"), ("convolutional network, training step", "cnn-train-"),
            ("convolutional network, forward, `--numerics fast`", "cnn-forward-32-fast"),
            ("convolutional network, training step, `--numerics fast`", "cnn-train-32-fast"),
            ("language model, prompt of 512 tokens", "llm-prompt-"), ("language model, generation", "llm-generate-"),
            ("peak memory of training, relative to the other library", "peak-memory-"))
BEGIN, END = "<!-- what bench/compare.py --record found -->", "<!-- end of it -->"


def span(values):
    least, most = f"{min(values):.2g}", f"{max(values):.2g}"
    return least if least == most else f"{least} to {most}"


def family_of(name):
    """The longest prefix that fits."""
    return max((prefix for _, prefix in FAMILIES if name.startswith(prefix)), key=len, default=None)


def summary(data):
    """Lines: a family of rows, its ratios, the peers that are strongest somewhere in it."""
    known = gather(data)
    lines = ["| work | speed ratio | strongest library |", "| --- | ---: | --- |"]
    for title, prefix in FAMILIES:
        rows = [f for f in known if family_of(f.row.name) == prefix and f.ratio]
        if not rows:
            continue
        ratios = [1 / f.ratio if f.row.share else f.ratio for f in rows]
        shown = f"{100 * min(ratios):.2g} to {100 * max(ratios):.2g} %" if rows[0].row.share else span(ratios)
        lines.append(f"| {title} | {shown} | {', '.join(sorted({f.strongest for f in rows}))} |")
    return lines


def write_readme(data, options, today):
    path = ROOT / "README.md"
    before, rest = path.read_text().split(BEGIN)
    after = rest.split(END)[1]
    head = f"On {processor()}, {options.threads} threads, {today}; all rows:"
    link = f"[docs/measured/cpu-{today}.md](docs/measured/cpu-{today}.md)."
    path.write_text(before + "\n".join([BEGIN, head, link, "", *summary(data), END]) + after)


# ---- a dated record ----------------------------------------------------------------------------------------------------


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def record(data, options, lines):
    folder = ROOT / "docs" / "measured"
    folder.mkdir(parents=True, exist_ok=True)
    today = datetime.date.today().isoformat()
    versions = ", ".join(f"{name} {version}".strip() for name, version in data["versions"].items())
    rounds = max(len(sides["here"]) for sides in data["rows"].values())
    text = [f"# CPU compared with other libraries, {today}", "",
            f"`bench/compare.py` at {data['commit']} on {processor()}, {options.threads} threads; {versions}.", "",
            "Time of one run: the median of up to twenty samples, and of "
            f"up to {rounds} rounds with new processes; sides take turns.",
            "Ratio: the strongest library's time divided by ours (memory and size: bytes). \"of the best\": the ratio of the",
            "shortest samples, which other work on the machine disturbs least. Rows that lose come first, then those",
            "that miss their target. [bench/README.md](../../bench/README.md) says how it is measured.", "",
            f"![ratios](cpu-{today}.svg)", "", *lines, "", "## Rows that miss their target", "",
            "The commands of each such row by `trunnion bench ROW --profile`, in a run of its own: share of the time, time of",
            "one, count, part of the arithmetic limit, and bytes moved per second.",
            *profiles(data), ""]
    (folder / f"cpu-{today}.md").write_text("\n".join(text))
    (folder / f"cpu-{today}.svg").write_text(plot(sorted(gather(data), key=Figures.order), today))
    write_readme(data, options, today)
    print(f"\nwritten to docs/measured/cpu-{today}.md and .svg, and to README.md")


# ---- the plot: a bar a row, ratios on a logarithmic scale --------------------------------------------------------------

LEFT, WIDTH, STEP, TOP, RIGHT = 250, 520, 20, 56, 80
COLOURS = ("#c0392b", "#d99a2b", "#2e7d5b")  # lost, missed, reached


def plot(all_figures, today):
    rows = [f for f in all_figures if f.ratio and f.row.name not in ("start", "size")]  # hundreds, which say little
    low, high = min(0.5, *(f.ratio for f in rows)), max(2, *(f.ratio for f in rows))

    def x(ratio):
        return LEFT + WIDTH * (math.log(ratio) - math.log(low)) / (math.log(high) - math.log(low))

    height = TOP + STEP * len(rows) + 24
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + RIGHT}" height="{height}" '
           'font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="12" y="22" font-size="15">Times as fast as the strongest peer, {today}</text>',
           '<text x="12" y="40" fill="#555">bar: ratio (logarithmic); tick: target; red: behind, yellow: short of the '
           'target, green: reached</text>']
    for mark in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100):
        if low <= mark <= high:
            out.append(f'<line x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{TOP}" y2="{height - 18}" '
                       f'stroke="{"#333" if mark == 1 else "#ddd"}"/>'
                       f'<text x="{x(mark):.1f}" y="{height - 4}" text-anchor="middle" fill="#555">{mark:g}</text>')
    for i, f in enumerate(rows):
        y = TOP + STEP * i
        begin, end = sorted((x(1), x(f.ratio)))
        colour = COLOURS[f.order()[0]]
        out.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{f.row.name}</text>'
                   f'<rect x="{begin:.1f}" y="{y + 4}" width="{max(end - begin, 1):.1f}" height="12" fill="{colour}"/>'
                   f'<text x="{max(end, x(1)) + 4:.1f}" y="{y + 14}">{f.ratio:.2f}</text>')
        target = 1 / f.row.share if f.row.share else None if f.row.most else f.row.ratio
        if target and low <= target <= high:
            out.append(f'<line x1="{x(target):.1f}" x2="{x(target):.1f}" y1="{y + 2}" y2="{y + 18}" stroke="#111" '
                       'stroke-width="2"/>')
    return "\n".join([*out, "</svg>"]) + "\n"
