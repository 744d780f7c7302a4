"""python3 tools/gpu_report — what a GPU does with Trunnion: checks, trainings and times, in one record.

Run by `make gpu-report` on any machine with a device. Every stage of stages.py runs in a child process with a time
limit. A stage that fails, crashes or hangs is recorded with its reason, and the next one starts. The record, gpu-DEVICE-DATE.md
and .json, is written after each stage, so that a run that is stopped leaves what it had. Exit status 1 if a stage
failed.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import record  # noqa: E402

STAGE_SECONDS = 540  # a stage must end in less than 9 minutes
GRACE_SECONDS = 20   # for the child itself, after its last command was stopped


def load_stages(path):
    spec = importlib.util.spec_from_file_location("report_stages", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(arguments):
    parser = argparse.ArgumentParser(prog="make gpu-report", description="checks and times a device, writes one record")
    parser.add_argument("--device", help="names of `trunnion devices`, separated by commas; a record for each "
                                         "(default: the recommended device)")
    parser.add_argument("--stage", action="append", default=[], help="only this stage; may be given more than once")
    parser.add_argument("--list", action="store_true", help="list the stages")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the record (default docs/measured)")
    parser.add_argument("--build", type=pathlib.Path, default="build", help="folder with the command `trunnion`")
    parser.add_argument("--quick", action="store_true", help="small sizes and samples: a rehearsal on a software device")
    parser.add_argument("--seconds", type=float, default=STAGE_SECONDS, help="time limit of a stage (%(default)s)")
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch (default: this one)")
    parser.add_argument("--stages", type=pathlib.Path, default=HERE / "stages.py", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def run_child(options, stages):
    """One stage in this process; each row is on disk before the next command starts. Returns the exit status."""
    with open(options.rows, "a", encoding="utf-8") as file:
        def add(row):
            file.write(json.dumps(row) + "\n")
            file.flush()
        session = stages.Session(options, add, time.monotonic() + options.seconds)
        stages.STAGES[options.child].run(session)
    return 0


def stop_group(child):
    """Ends the child and all that it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def run_stage(options, name, device, folder):
    """{"stage", "verdict": ok, failed, hung, "seconds", "reason", "rows"}"""
    rows = pathlib.Path(folder) / f"{name}.jsonl"
    rows.write_text("")
    command = [sys.executable, str(HERE), "--child", name, "--rows", str(rows), "--device", device, "--build", str(options.build),
               "--seconds", str(options.seconds), "--python", options.python, "--stages", str(options.stages),
               *["--quick"] * options.quick]
    begun, verdict, reason = time.monotonic(), "ok", ""
    with open(pathlib.Path(folder) / f"{name}.err", "w+", encoding="utf-8", errors="replace") as err:
        child = subprocess.Popen(command, stdout=err, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = child.wait(options.seconds + min(GRACE_SECONDS, options.seconds))
        except subprocess.TimeoutExpired:
            verdict, reason = "hung", f"stopped after {time.monotonic() - begun:.0f} s"
        except BaseException:  # Ctrl-C: the child is in a session of its own
            stop_group(child)
            raise
        stop_group(child)
        err.seek(0)
        last = err.read().strip().splitlines()[-1:]
    if verdict == "ok" and code != 0:
        verdict, reason = "failed", f"exit status {code}: {' '.join(last)}"
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    bad = [row for row in found if row.get("failed")]
    if verdict == "ok" and bad:
        verdict, reason = "failed", f"{len(bad)} of {len(found)} rows failed"
    return {"stage": name, "verdict": verdict, "seconds": round(time.monotonic() - begun, 1), "reason": reason, "rows": found}


def report_device(options, stages, names, device):
    """Runs the stages on one device. Returns whether all passed."""
    made = record.begin(options, device)
    with tempfile.TemporaryDirectory(prefix="gpu-report-") as folder:
        for name in names:
            print(f"{device}: {name} …", file=sys.stderr, flush=True)
            done = run_stage(options, name, device, folder)
            made["stages"].append(done)
            print(f"{device}: {name}: {done['verdict']} in {done['seconds']} s{': ' * bool(done['reason'])}{done['reason']}",
                  file=sys.stderr, flush=True)
            path = record.write(made, {n: s.about for n, s in stages.STAGES.items()}, options.out)
    print(f"written: {path} and .json")
    return all(s["verdict"] == "ok" for s in made["stages"])


def main():
    options = parse(sys.argv[1:])
    options.build = options.build.resolve()
    stages = load_stages(options.stages)
    if options.child:
        return run_child(options, stages)
    if options.list:
        print("\n".join(f"{name:10} {stage.about}" for name, stage in stages.STAGES.items()))
        return 0
    unknown = [name for name in options.stage if name not in stages.STAGES]
    if unknown:
        print(f"there is no stage {unknown[0]}; there are {', '.join(stages.STAGES)}", file=sys.stderr)
        return 2
    if not (options.build / "trunnion").exists():
        print(f"there is no {options.build / 'trunnion'}; run make first, or name its folder with --build", file=sys.stderr)
        return 2
    options.out = (options.out or HERE.parent.parent / "docs" / "measured").resolve()
    devices, wrong = record.choose(options)
    if wrong:
        print(wrong, file=sys.stderr)
        return 2
    names = options.stage or list(stages.STAGES)
    return 0 if all([report_device(options, stages, names, device) for device in devices]) else 1


if __name__ == "__main__":
    sys.exit(main())
