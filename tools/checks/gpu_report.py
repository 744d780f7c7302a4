"""gpu_report.py BUILD [DEVICE…] — tools/gpu_report: a stage that fails, crashes or hangs costs only itself.

With DEVICEs (of tools/checks/certify_all.py's table) the whole report is rehearsed on each, with small sizes.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools" / "checks")]
import certify_all  # noqa: E402
from device_work import Report  # noqa: E402
from finetune import make_model  # noqa: E402

WANTED = {"passes": ("ok", 1), "fails": ("failed", 2), "raises": ("failed", 1), "crashes": ("failed", 0), "hangs": ("hung", 1),
          "ends": ("ok", 1)}


def report_on(build, *arguments, environment=None):
    return subprocess.run([sys.executable, ROOT / "tools" / "gpu_report", "--build", build, *arguments], capture_output=True,
                          text=True, env=environment)


def is_alive(pid):
    try:
        return "Z" != pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def check_failures(report, build, folder):
    begun, sleeper = time.monotonic(), pathlib.Path(folder) / "sleeper"
    ended = report_on(build, "--device", "cpu", "--out", folder, "--seconds", "2", "--stages",
                      ROOT / "tools" / "checks" / "report_stages.py", "--python", sleeper)
    files = list(pathlib.Path(folder).glob("gpu-cpu-*.json"))
    made = json.loads(files[0].read_text()) if files else {"stages": []}
    got = {s["stage"]: (s["verdict"], len(s["rows"])) for s in made["stages"]}
    report.add(got == WANTED and ended.returncode == 1, f"stages end as they should: {got}, exit status {ended.returncode}")
    reasons = {s["stage"]: s["reason"] for s in made["stages"]}
    report.add("no such thing" in reasons.get("raises", "") and "1 of 2" in reasons.get("fails", ""), f"reasons: {reasons}")
    report.add(sleeper.exists() and not is_alive(sleeper.read_text()), "what a stage started ends with it")
    report.add(time.monotonic() - begun < 30, "no stage takes much longer than its limit")
    page = files[0].with_suffix(".md").read_text() if files else ""
    report.add("7 differs / from 8" in page and "| hangs | hung |" in page and "## ends" in page, "the page has all stages")


def check_usage(report, build, folder):
    listed = report_on(build, "--list")
    report.add(listed.returncode == 0 and {"devices", "certify", "graphs"} <= {line.split()[0] for line in listed.stdout.splitlines()},
               "--list")
    for words in (["--stage", "none"], ["--device", "cuda:77"], ["--build", folder]):
        ended = report_on(build, "--device", "cpu", "--out", folder, *words)
        report.add(ended.returncode == 2 and ended.stderr, f"wrong usage: {' '.join(words)}: {ended.stderr.strip()[-100:]}")
    ended = report_on(build, "--device", "cpu", "--quick", "--out", folder, "--stage", "devices", "--stage", "copies")
    made = json.loads(next(pathlib.Path(folder).glob("gpu-cpu-*.json")).read_text())
    rows = [row for stage in made["stages"] for row in stage["rows"]]
    report.add(ended.returncode == 0 and any(row.get("GB/s", 0) > 0 for row in rows), "two real stages, on the CPU")


def rehearse(report, build, name, folder):
    environment, missing = certify_all.environment(name, build)
    if not environment:
        report.skipped += 1
        print(f"skipped: {name}: {missing}")
        return
    environment["TRUNNION_CACHE"] = os.environ.get("TRUNNION_CACHE") or str(pathlib.Path.home() / ".cache" / "trunnion")
    environment["TRUNNION_REPORT_MODEL"] = f"{folder}/model"
    device = certify_all.DEVICES[name][1]
    ended = report_on(build, "--device", device, "--quick", "--out", folder, environment=environment)
    files = list(pathlib.Path(folder).glob(f"gpu-{device}-*.json"))
    if not files:
        report.add(False, f"{name}: {ended.stderr[-400:]}")
        return
    made = json.loads(files[0].read_text())
    bad = [f"{s['stage']}: {s['reason']}: {[r for r in s['rows'] if 'failed' in r]}" for s in made["stages"] if s["verdict"] != "ok"]
    report.add(not bad and len(made["stages"]) > 10, f"{name}: {len(made['stages'])} stages, {'; '.join(bad) or 'all passed'}")
    if not bad:
        print(f"ran on: {device} ({name}: the GPU report, with small sizes)")


def main():
    build, report = (ROOT / sys.argv[1]).resolve(), Report()
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) == 2:
            check_failures(report, build, folder)
            check_usage(report, build, folder)
        else:
            make_model(pathlib.Path(folder) / "model")
        for name in sys.argv[2:]:
            rehearse(report, build, name, folder)
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return report.failed != 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
