"""record.py — the record of tools/gpu_report: which device, what machine, and the rows of all stages, as JSON and Markdown."""

import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAME_LENGTH = 48


def listing(options):
    ended = subprocess.run([options.build / "trunnion", "devices", "--json", "--fresh"], capture_output=True, text=True)
    return json.loads(ended.stdout) if ended.returncode == 0 else None


def find(listed, name):
    """The device that a name of `trunnion devices` means, or None."""
    devices = [(b["name"], d) for b in listed["backends"] if b["available"] for d in b["devices"]]
    return next((d for backend, d in devices if name in (backend, d["id"])), None)


def choose(options):
    """(names of devices, what is wrong with the request or None)"""
    listed = listing(options)
    if not listed:
        return [], "`trunnion devices --json` failed"
    names = options.device.split(",") if options.device else [listed["recommended"]]
    if names == ["cpu"] and not options.device:
        return [], "this machine has no device that is recommended over the CPU; see `trunnion devices`, and name one with --device"
    for name in names:
        if not find(listed, name):
            reasons = [f"{b['reason']} {b['fix']}" for b in listed["backends"] if b["name"] == name.split(":")[0]]
            return [], f"there is no device {name}: {(reasons or ['see `trunnion devices`'])[0]}"
    return names, None


def git(*words):
    ended = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
    return ended.stdout.strip()


def processor():
    try:
        found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def driver():
    """NVIDIA's or AMD's own words on driver and card, where their tools are installed."""
    for command in (["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.mem",
                     "--format=csv,noheader"], ["rocm-smi", "--showproductname", "--showdriverversion", "--csv"]):
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if ended.returncode == 0:
            return ended.stdout.strip()
    return ""


def begin(options, device):
    info = find(listing(options), device)
    commit = (git("rev-parse", "--short", "HEAD") or "unknown") + "+" * bool(git("status", "--porcelain", "--untracked-files=no"))
    return {"format": 1, "date": str(datetime.date.today()), "device": device, "info": info, "driver": driver(), "commit": commit,
            "processor": processor(), "threads": os.cpu_count(), "system": platform.platform(), "quick": options.quick,
            "stages": []}


def slug(made):
    words = re.sub(r"[^a-z0-9]+", "-", f"{made['device'].split(':')[0]} {made['info']['name']}".lower())
    return f"gpu-{words[:NAME_LENGTH].strip('-')}-{made['date']}"


def cell(value):
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "/").replace("\n", " ")


def table(rows):
    """One Markdown table; its columns are the keys of the rows, in the order in which they appear."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(cell(row.get(c, "")) for c in columns) + " |" for row in rows]


def page(made, about):
    info = made["info"]
    kind = " It is a software device: its times say nothing of a GPU." if info.get("software") else ""
    words = (f"Written by `make gpu-report`{' (--quick)' if made['quick'] else ''}: device {made['device']}, commit {made['commit']}; "
             f"on {made['processor']}, {made['threads']} threads, {made['system']}.{kind}")
    lines = [f"# {info['name']}, {made['date']}", "", *textwrap.wrap(words, 120, break_on_hyphens=False), ""]
    if made["driver"]:
        lines += [f"Driver: {made['driver']}.", ""]
    lines += table([{"stage": s["stage"], "result": s["verdict"], "seconds": s["seconds"], "why": s["reason"]}
                    for s in made["stages"]]) + [""]
    for stage in made["stages"]:
        if stage["rows"]:
            lines += [f"## {stage['stage']}", "", *textwrap.wrap(about.get(stage["stage"], ""), 120), "", *table(stage["rows"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def write(made, about, folder):
    """Both files, each complete or not at all. Returns the path without its ending."""
    folder.mkdir(parents=True, exist_ok=True)
    for ending, text in ((".json", json.dumps(made, indent=1) + "\n"), (".md", page(made, about))):
        part = folder / f"{slug(made)}{ending}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / f"{slug(made)}{ending}")
    return folder / f"{slug(made)}.md"
