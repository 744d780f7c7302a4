"""processes.py BUILD [MOMENTS [SEED]] — training on several processes under the launchers of Open MPI and MPICH.

Losses and checkpoints have the bits of one process with the same parts, also with dropout and batch normalization, with
mixed precision, with more processes than parts, and with optimizer state divided among the processes. With layers divided
among them losses differ by rounding only. A call of MPI that fails on one rank ends the step on all. SIGTERM to the launcher saves the run; SIGKILL of a random rank at a
random moment (MOMENTS of them) ends the job with a message, and --resume goes on to the bits of an undisturbed run.
What cannot work is refused. Launchers that are not installed are skipped. Without MOMENTS one moment a launcher, fewer
counts of processes, and layers and optimizer state are divided under the first launcher only: all call the same code.
"""

import ctypes
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIMIT = 120  # seconds for a run
# Open MPI refuses root and more processes than processors unless told otherwise.
LAUNCHERS = {
    "Open MPI": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n"],
    "MPICH": ["mpirun.mpich", "-n"],
}
STEPS, PARTS = 24, 4


class Suite:
    def __init__(self, build, folder):
        self.build, self.folder = build, folder
        self.passed = self.failed = self.skipped = 0

    def expect(self, good, text):
        self.passed += bool(good)
        self.failed += not good
        print(text if good else f"failed: {text}", flush=True)

    def run(self, launcher, words, **more):
        return subprocess.run([*launcher, *map(str, words)], capture_output=True, text=True, timeout=LIMIT, **more)

    def train(self, launcher, save, *words):
        """(JSON object, bytes of the checkpoint); ({}, b"") and the reason on standard output after a failure."""
        path = self.folder / save
        path.unlink(missing_ok=True)
        parts = [] if "--tensor-parallel" in words or "--parts" in words else ["--parts", PARTS]
        line = [self.build / "trunnion", "train", *words, *parts, "--threads", 1, "--json", "--save", path]
        done = self.run(launcher, line)
        try:
            return json.loads(done.stdout), path.read_bytes()
        except (ValueError, OSError):
            print(f"exit status {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")
            return {}, b""


def environment():
    """Without the variables of a launcher around this script."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "MPI"))}


def check_bits(suite, name, launcher, brief):
    example = suite.build / "example_distributed"
    alone = suite.run([], [example]).stdout.split(",")[0]
    for count in (3,) if brief else (2, 3, 5):
        done = suite.run(launcher(count), [example])
        suite.expect(alone and done.stdout.split(",")[0] == alone and f", {count} processes, mpi" in done.stdout,
                     f"{name}: dropout and batch normalization on {count} processes: {done.stdout.strip()} ({alone})")
    for words in (["digits", "--steps", STEPS], ["digits", "--steps", 8, "--model", "cnn", "--amp", "f16"]):
        one, file_of_one = suite.train([], "one.safetensors", *words)
        for count in (2,) if brief else (2, 4):
            several, file = suite.train(launcher(count), "several.safetensors", *words)
            equal = one and file and several.get("final_loss") == one["final_loss"] and file == file_of_one
            suite.expect(equal and several.get("processes") == count,
                         f"{name}: train {' '.join(map(str, words))} on {count} processes: loss and checkpoint as on one")


def check_sharded(suite, name, launcher, brief):
    """ZeRO: the same bits, and a rank keeps its share of the optimizer's state. A checkpoint of N ranks resumes on M."""
    words = ["digits", "--steps", STEPS, "--save-every", 7]
    one, file_of_one = suite.train([], "one.safetensors", *words)
    whole, _ = suite.train(launcher(4), "whole.safetensors", *words)
    for stage in (2, 3) if brief else (1, 2, 3):
        several, file = suite.train(launcher(4), "sharded.safetensors", *words, "--zero", stage)
        suite.expect(one and file and several.get("final_loss") == one["final_loss"] and file == file_of_one,
                     f"{name}: --zero {stage} on 4 processes: loss and checkpoint as on one")
        share = several.get("optimizer_bytes", 0) / max(whole.get("optimizer_bytes", 0), 1)
        suite.expect(0 < share < (0.26 if stage == 3 else 0.8),
                     f"{name}: --zero {stage}: rank 0 keeps {share:.0%} of the optimizer's state")
    if not brief:
        peak = [suite.train(launcher(4), "peak.safetensors", "chars", "--steps", 2, "--zero", stage)[0]
                .get("pool_peak_bytes", 0) for stage in (1, 2, 3)]
        for k in (1, 2):
            suite.expect(0 < peak[k] < 0.95 * peak[k - 1], f"{name}: --zero {k + 1} lowers the peak of a rank from "
                                                           f"{peak[k - 1] / 1e6:.1f} to {peak[k] / 1e6:.1f} MB")
    half = suite.folder / "half.safetensors"
    suite.train(launcher(4), half.name, "digits", "--steps", STEPS // 2, "--zero", 2)
    half.rename(suite.folder / "begun.safetensors")
    again, file = suite.train(launcher(2), "again.safetensors", "digits", "--steps", STEPS, "--zero", 2, "--resume",
                              suite.folder / "begun.safetensors")
    suite.expect(again and file == file_of_one, f"{name}: a checkpoint of 4 processes resumes on 2 to the same bits")
    two = ["digits", "--steps", STEPS, "--parts", 2, "--resume", suite.folder / "begun.safetensors"]
    one, file_of_one = suite.train([], "one.safetensors", *two)
    again, file = suite.train(launcher(2), "again.safetensors", *two, "--zero", 3)
    suite.expect(one and again.get("final_loss") == one["final_loss"] and file == file_of_one,
                 f"{name}: a checkpoint of 4 processes resumes on 2 with --zero 3 as on one with 2 parts")
    scaled = ["chars", "--steps", 3, "--amp", "f16"]  # with clipping and a loss scale, which need the gradients of all
    one, file_of_one = suite.train([], "one.safetensors", *scaled)
    for stage, count in ((2, 2), (3, 4)):
        several, file = suite.train(launcher(count), "scaled.safetensors", *scaled, "--zero", stage)
        suite.expect(one and file and several.get("final_loss") == one["final_loss"] and file == file_of_one,
                     f"{name}: --zero {stage} with clipping and a loss scale: loss and checkpoint as on one")


def numbers_of(data):
    """The f32 numbers of a safetensors file, by name."""
    size = int.from_bytes(data[:8], "little")
    rows = {k: v for k, v in json.loads(data[8:8 + size]).items() if k != "__metadata__" and v["dtype"] == "F32"}
    body = memoryview(data)[8 + size:]
    return {k: list(body[slice(*v["data_offsets"])].cast("f")) for k, v in rows.items()}


def check_divided(suite, name, launcher, brief):
    """Tensor parallelism: losses as on one process but for rounding, each run the same bits, a rank keeps its share. A
    checkpoint of N ranks resumes on M, also on one process."""
    words = ["chars", "--steps", 3 if brief else 6]
    one, file_of_one = suite.train([], "one.safetensors", *words, "--tensor-parallel")  # in a group of one
    runs = {n: suite.train(launcher(n), f"{n}.safetensors", *words, "--tensor-parallel") for n in (2, 4)}
    for n, (several, file) in runs.items():
        near = one and several and abs(several["final_loss"] - one["final_loss"]) < 1e-5 * one["final_loss"]
        suite.expect(near, f"{name}: --tensor-parallel on {n} processes: loss {several.get('final_loss')}, on one "
                           f"{one.get('final_loss')}")
        a, b = numbers_of(file_of_one), numbers_of(file) if file else {}
        worst = max((abs(x - y) for k in a for x, y in zip(a[k], b.get(k, []))), default=1)
        suite.expect(a.keys() == b.keys() and worst < 1e-3, f"{name}: the same weights within {worst:.1e}")
    share = runs[4][0].get("optimizer_bytes", 0) / runs[2][0].get("optimizer_bytes", 1)
    suite.expect(0 < share < 0.62, f"{name}: a rank of 4 keeps {share:.0%} of the optimizer's state of one of 2")
    half = suite.train(launcher(4), "half.safetensors", "chars", "--steps", 1 if brief else 3, "--tensor-parallel")[1]
    for count in (2,) if brief else (2, 1):
        (suite.folder / "begun.safetensors").write_bytes(half)
        more = ["--tensor-parallel"] if count > 1 else []
        again, _ = suite.train(launcher(count) if more else [], "again.safetensors", *words, *more, "--resume",
                               suite.folder / "begun.safetensors")
        suite.expect(again and abs(again["final_loss"] - one["final_loss"]) < 1e-5 * one["final_loss"],
                     f"{name}: a checkpoint of 4 processes resumes on {count}: loss {again.get('final_loss')}")
    if not brief:
        scaled = [suite.train(launcher(2), "scaled.safetensors", "chars", "--steps", 3, "--amp", "f16",
                              "--tensor-parallel") for _ in range(2)]
        suite.expect(scaled[0][1] and scaled[0][1] == scaled[1][1] and scaled[0][0]["loss_scale"] == 65536,
                     f"{name}: f16 with a loss scale: the same bits twice")
    done = suite.run(launcher(3), [suite.build / "trunnion", "train", "chars", "--steps", 1, "--tensor-parallel"])
    suite.expect(done.returncode != 0 and "4 heads cannot be divided among 3 ranks" in done.stderr,
                 f"{name}: 4 heads on 3 processes are refused")


def start(suite, launcher, path, *more):
    line = [suite.build / "trunnion", "train", "chars", "--steps", 12, "--parts", 2, "--threads", 1, "--save", path,
            "--save-every", 1, "--json", *more]
    return subprocess.Popen([*launcher, *map(str, line)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment())


def finish(suite, launcher, path, *more):
    process = start(suite, launcher, path, *more)
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


def ranks_of(process):
    """Process ids of the ranks that the launcher started, itself or through its helpers."""
    found, todo = [], [process.pid]
    while todo:
        pid = todo.pop()
        try:
            children = (pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            todo += map(int, children)
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "trunnion":
                found.append(pid)
        except OSError:
            pass
    return sorted(found)


def wait_for_step(path, process):
    end = time.monotonic() + LIMIT
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)


def check_death(suite, name, launcher, moments, randomness):
    whole = suite.folder / "whole.safetensors"
    code, _, err = finish(suite, [], whole)
    suite.expect(code == 0, f"{name}: the undisturbed run: {err[-200:]}")
    for moment in range(moments):
        path = suite.folder / "killed.safetensors"
        path.unlink(missing_ok=True)
        process = start(suite, launcher(2), path)
        wait_for_step(path, process)
        time.sleep(randomness.random() * 0.3)
        ranks = ranks_of(process)
        victim = randomness.choice(ranks) if ranks else None
        if victim:
            os.kill(victim, signal.SIGKILL)
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        if process.returncode == 0:  # it had ended before
            suite.expect(path.read_bytes() == whole.read_bytes(), f"{name}: moment {moment}: the run was complete")
            continue
        suite.expect(victim and "ignal" in err + out or "KILLED" in err + out,
                     f"{name}: moment {moment}: a killed rank ends the job (exit status {process.returncode})")
        code, out, err = finish(suite, launcher(2), path, "--resume", path)
        ended = code == 0 or "nothing is left to do" in err  # it was killed after the last step
        suite.expect(ended and path.read_bytes() == whole.read_bytes(),
                     f"{name}: moment {moment}: --resume reaches the bits of the undisturbed run {err[-300:]}")


def check_stop(suite, name, launcher):
    """SIGTERM to one rank: all stop after the same step, and the run is saved."""
    whole, path = suite.folder / "whole.safetensors", suite.folder / "stopped.safetensors"
    path.unlink(missing_ok=True)
    process = start(suite, launcher(2), path)
    wait_for_step(path, process)
    ranks = ranks_of(process)
    if ranks:
        os.kill(ranks[-1], signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT)
    suite.expect(ranks and "stopped by" in err and process.returncode != 0,
                 f"{name}: SIGTERM to one rank stops all (exit status {process.returncode})")
    code, _, err = finish(suite, launcher(2), path, "--resume", path)
    suite.expect(code == 0 and path.read_bytes() == whole.read_bytes(),
                 f"{name}: the stopped run goes on to the same bits {err[-300:]}")


def library_of(launcher):
    """The MPI library that `launcher` starts programs for."""
    names = ("libmpi.so.40", "libmpi.so.80") if "openmpi" in launcher(1)[0] else ("libmpich.so.12", "libmpi.so.12")
    for name in names:
        try:
            handle = ctypes.CDLL(name, mode=os.RTLD_LAZY)
        except OSError:
            continue
        with open("/proc/self/maps", encoding="ascii") as maps:
            paths = {line.split()[-1] for line in maps if pathlib.Path(line.split()[-1]).name.startswith(name)}
        del handle
        return paths.pop()
    return None


def check_faults(suite, name, launcher, brief):
    """Each MPI_Isend, MPI_Irecv and MPI_Wait of a step fails once on one rank: all ranks fail, none waits for ever, and
    the next step works."""
    fake = suite.folder / "mpi_faults.so"
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-w", "-shared", "-fPIC", "-o", fake,
                    ROOT / "tests/fakes/mpi_faults.c", "-Wl,--no-as-needed", library_of(launcher), "-ldl"], check=True)
    for count in (2,) if brief else (2, 3):
        try:
            done = suite.run(launcher(count), [suite.build / "test_distributed", "faults"],
                             env=dict(environment(), TRUNNION_MPI_LIB=str(fake)))
            said, code = done.stdout.strip() + done.stderr[-300:], done.returncode
        except subprocess.TimeoutExpired:
            said, code = f"still waiting after {LIMIT} s", 1
        counts = [int(n) for n in re.findall(r"(\d+) (?:failures )?of MPI_", said)]
        suite.expect(code == 0 and len(counts) == 3 and min(counts) > 3, f"{name}: faults on {count} processes: {said}")


def check_refusals(suite, name, launcher):
    done = suite.run(launcher(2), [suite.build / "trunnion", "train", "cartpole", "--steps", 100])
    suite.expect(done.returncode != 0 and "cartpole is trained by one" in done.stderr,
                 f"{name}: cartpole on two processes is refused")
    line = [suite.build / "trunnion", "train", "chars", "--steps", 2, "--tensor-parallel", "--save", suite.folder / "x"]
    for own, other in (("--seed", 4), ("--amp", "bf16"), ("--save-every", 1)):
        done = suite.run([*launcher(1), *map(str, line), ":", "-n", "1"], [*line, own, other])
        suite.expect(done.returncode != 0 and "rank 1 trains another run than rank 0" in done.stderr,
                     f"{name}: another {own} on rank 1 is refused")
    done = suite.run(launcher(2), [*line, "--device", "opencl"])
    suite.expect(done.returncode != 0 and "leave out --device opencl" in done.stderr,
                 f"{name}: layers divided on a GPU are refused")
    other = dict(environment(), TRUNNION_MPI_LIB="/nonexistent/libmpi.so")
    done = suite.run(launcher(2), [suite.build / "trunnion", "train", "digits", "--steps", 2], env=other)
    suite.expect(done.returncode != 0 and "MPI: not found at the path in TRUNNION_MPI_LIB" in done.stderr,
                 f"{name}: a missing library is named")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_ranks(words, count, variables):
    """What torchrun and srun do: `count` processes with their variables; variables(rank) is a dictionary."""
    return [subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=environment() | variables(rank)) for rank in range(count)]


def check_tcp(suite):
    """Launchers without MPI."""
    example = suite.build / "example_distributed"
    alone = suite.run([], [example]).stdout.split(",")[0]
    port = free_port()
    launchers = {
        "torchrun": lambda r, n: {"RANK": str(r), "WORLD_SIZE": str(n), "LOCAL_RANK": str(r), "MASTER_ADDR": "127.0.0.1",
                                  "MASTER_PORT": str(port - 1)},
        "srun": lambda r, n: {"SLURM_PROCID": str(r), "SLURM_NTASKS": str(n), "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
                              "SLURM_JOB_ID": str(port)},
    }
    for name, variables in launchers.items():
        for count in (2, 3):
            ranks = start_ranks([example], count, lambda r: variables(r, count))
            done = [p.communicate(timeout=LIMIT) for p in ranks]
            suite.expect(alone and done[0][0].split(",")[0] == alone and f", {count} processes, tcp" in done[0][0],
                         f"{name}: {count} processes: {done[0][0].strip()} {done[0][1][-200:]}")
    # a stranger at the port, and a rank that is killed: the others end with a message
    line = [suite.build / "trunnion", "train", "digits", "--steps", 100000, "--threads", 1]
    ranks = start_ranks(line, 3, lambda r: launchers["torchrun"](r, 3))
    for _ in range(20):
        try:
            socket.create_connection(("127.0.0.1", port), 1).sendall(b"GET / HTTP/1.0\r\n\r\n")
            break
        except OSError:
            time.sleep(0.05)
    time.sleep(2)
    ranks[1].kill()
    ended = [p.communicate(timeout=LIMIT) for p in ranks]
    suite.expect(ranks[0].returncode != 0 and ranks[2].returncode != 0 and "rank 1" in ended[0][1],
                 f"tcp: a killed rank ends the others: {ended[0][1].strip()[-200:]}")
    lonely = dict(environment(), RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
                  TRUNNION_GROUP_SECONDS="0.3")
    done = suite.run([], [example], env=lonely)
    suite.expect(done.returncode != 0 and "cannot connect to rank 0" in done.stderr, "tcp: a missing rank 0 is named")
    del lonely["MASTER_ADDR"]
    done = suite.run([], [example], env=lonely)
    suite.expect(done.returncode != 0 and "set MASTER_ADDR" in done.stderr, "tcp: a missing address is named")


def check_nccl(suite):
    """Gradients exchanged in device memory: the doubles of CUDA and ROCm in several processes."""
    for backend, library, title in (("cuda", "NVRTC", "NCCL 2.27.3"), ("rocm", "HIPRTC", "RCCL 2.27.3")):
        double = str(suite.build / "doubles" / f"{backend}.so")
        port = free_port()

        def variables(rank, count, backend=backend, library=library, double=double, port=port):
            own = {f"TRUNNION_{backend.upper()}_LIB": double, f"TRUNNION_{library}_LIB": double,
                   "TRUNNION_NCCL_LIB": double, "TMPDIR": str(suite.folder)}
            return own if count == 1 else own | {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank),
                                                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1)}

        results = {}
        for count in (1, 2):
            path = suite.folder / f"{backend}{count}.safetensors"
            line = [suite.build / "trunnion", "train", "digits", "--steps", 4, "--parts", 2, "--device", backend, "--strict",
                    "--threads", 1, "--json", "--save", path]
            ranks = start_ranks(line, count, lambda r: variables(r, count))
            done = [p.communicate(timeout=LIMIT) for p in ranks]
            try:
                results[count] = json.loads(done[0][0]) | {"file": path.read_bytes()}
            except (ValueError, OSError):
                print(done)
        one, two = results.get(1, {}), results.get(2, {})
        suite.expect(one and two and one["final_loss"] == two["final_loss"] and one["file"] == two["file"]
                     and two["device_library"] == title,
                     f"{backend}: two processes with {two.get('device_library')}: loss and checkpoint as on one")
        if two:
            print(f"ran on: {backend} (double), {title}")


def check_mixed_up(suite):
    """The launcher of one library with the other: each process would be alone."""
    other = dict(environment(), TRUNNION_MPI_LIB="libmpi.so.40")
    done = suite.run([*LAUNCHERS["MPICH"], "2"], [suite.build / "trunnion", "train", "digits", "--steps", 2], env=other)
    suite.expect(done.returncode != 0 and "has found 1; use the launcher of this library" in done.stderr,
                 "MPICH's launcher with Open MPI's library is refused")


def main():
    build = (ROOT / sys.argv[1]).resolve()
    moments = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    randomness = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(build, pathlib.Path(folder))
        check_tcp(suite)
        check_nccl(suite)
        brief, first = not moments, True
        for name, words in LAUNCHERS.items():
            if not shutil.which(words[0]):
                suite.skipped += 1
                print(f"skipped: {name}: no {words[0]}")
                continue

            def launcher(count, words=words):
                return [*words, str(count)]

            check_bits(suite, name, launcher, brief)
            if first or not brief:
                check_sharded(suite, name, launcher, brief)
                check_divided(suite, name, launcher, brief)
                check_refusals(suite, name, launcher)
            check_death(suite, name, launcher, moments or 1, randomness)
            check_stop(suite, name, launcher)
            check_faults(suite, name, launcher, brief)
            print(f"ran on: {name}")
            first = False
        if all(shutil.which(words[0]) for words in LAUNCHERS.values()):
            check_mixed_up(suite)
    print(f"{suite.passed} passed, {suite.failed} failed, {suite.skipped} skipped")
    return 1 if suite.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
