#!/usr/bin/env python3
"""seed_bugs.py [--keep] [NUMBER…] — does the proof of laziness notice when laziness is broken?

Each bug below is a small edit of the recorder or the planner, of the kind that is made by mistake. The tree is copied
to a temporary folder and the tests of laziness are built there, once as it is (all must pass), then again with each bug
(one must fail). A bug names the test that notices it soonest; only if that one says nothing, the others are asked.
A run ends with its first failure, and when it takes many times the processor's time of a run without bugs.
An edit whose text is no longer in the sources fails as well: then the bug has to be sown anew, not the test dropped.

  NUMBER…   only these bugs
  --keep    leave the temporary folder
"""

import argparse
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPIED = ["CMakeLists.txt", "cli", "cmake", "include", "src", "tests", "LICENSE", "README.md"]
LAZINESS, RANDOM, FAILURES, CACHE = TESTS = ["test_laziness", "test_programs", "test_program_failures", "test_cache"]
PROGRAMS = "600"  # enough for every bug here, and a few seconds when all is well
SECONDS = 180     # a bug may also make a program wait for ever
SLOWER = 4        # times as much of the processor's time as without a bug, and
MORE_SECONDS = 5  # some more, is what a program takes that does not end
# Quickly built: what touches every number is not vectorized, and drivers have no part in laziness.
OPTIONS = ["-DTRUNNION_SHARED=OFF", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1"] + [
    f"-DTRUNNION_{part}=OFF" for part in "OPENCL CUDA ROCM VULKAN WEBGPU METAL TORCH ONNXRUNTIME".split()]
FAILURE = re.compile(r"^seed \d+, |killed in the program|^\[  FAILED  \]")

# what is wrong | file | what stands there (white space does not count) | what is put there | noticed soonest by
BUGS = [
    ("a state is written while later kernels still read it", "plan/layout.c",
     "if (tn_group_reads_slot(g, &g->groups[g->fusion.order[i]], home)) return false;", ";", RANDOM),
    ("a state is written by a kernel that reads it elsewhere", "plan/layout.c",
     "if (tn_group_reads_slot(g, maker, home) && !same_place_only(g, maker, home, element)) return false;",
     "(void)element;", RANDOM),
    ("states are written before what runs last", "plan/layout.c",
     "if (!maker->order.commit && !maker->order.appends) return false;", ";", FAILURES),
    ("a dying operand is written over though it is read at other places", "plan/layout.c",
     "|| !group->lowered.buffer_same_place[b]) continue; if (tn_dtype_size",
     ") continue; if (tn_dtype_size", RANDOM),
    ("memory is free one kernel too early", "plan/layout.c",
     "a->released < position;", "a->released <= position;", RANDOM),
    ("a value lives only until its first reader", "plan/fuse.c",
     "last = (int)tn_max64(last, g->groups[v->fusion.pulls[k]].order.position);",
     "if (k == 0) last = g->groups[v->fusion.pulls[k]].order.position;", RANDOM),
    ("places in the arena are forgotten", "plan/plan.c",
     "patch(p, at, v->memory.place, v->memory.offset + first)", "patch(p, at, v->memory.place, first)", RANDOM),
    ("equal kernels become one launch without a look at their memory", "plan/plan.c",
     "if (touches(g, group, before) || touches(g, before, group)) return false;", "(void)group; (void)before;", RANDOM),
    ("a view's offset is dropped", "plan/lower.c",
     "v->node->rank, v->offset, v->stride); if (tn_dtype_is_quantized",
     "v->node->rank, 0, v->stride); if (tn_dtype_is_quantized", RANDOM),
    ("what was computed in a loop is used behind it", "plan/lower.c",
     "if (e->region != 0 && e->region != w->region) continue;", "", RANDOM),
    ("results are stored before all operands are loaded", "plan/lower.c",
     "pull(lw, w, w->group->members[i], w->space);", ";", RANDOM),
    ("values of small types are not rounded where they are made", "plan/lower.c",
     "return loaded || moved ? r :", "return loaded || moved || true ? r :", RANDOM),
    ("a value is used at any index, not only at its own", "plan/lower.c",
     "if (!at_own_place(w, v->node, at) || lw->mask != KIR_NONE) return give_up(lw, w, value);", "", RANDOM),
    ("kernels are joined in a circle", "plan/fuse.c",
     "return !reads_any(g, group, v->fusion.pulls, v->fusion.pull_count);", "return true;", RANDOM),
    ("kernels do not wait for what they read", "plan/fuse.c",
     "reader->order.deps[reader->order.dep_count++] = v->group;",
     "reader->order.deps[reader->order.dep_count] = v->group;", RANDOM),
    ("equal operations with other attributes are shared", "plan/values.c",
     "return memcmp(m->i, n->i, (size_t)n->n_i * sizeof *n->i) == 0 &&", "return", FAILURES),
    ("a plan is found again for views of other strides", "plan/plan_key.c",
     "put_key(at, (uint64_t)n->layout[1 + d]);", "put_key(at, 0);", RANDOM),
    ("a plan is found again though other values are kept", "plan/plan_key.c",
     "mark = b->scratch.marks[n->index] & OUTPUT ? 1 : 0", "mark = 0", RANDOM),
    ("a plan is found again at another size", "plan/flush.c",
     "return b->key.size_count == 0 || memcmp(p->key.sizes, b->key.sizes, b->key.size_count * sizeof *b->key.sizes) == 0;",
     "(void)p; (void)b; return true;", RANDOM),
    ("runtime scalars keep the value of the first run", "plan/plan.c",
     "p->scalars[i] = scalars[p->scalar_source[i]];", "if (p->runs.count == 0) p->scalars[i] = scalars[p->scalar_source[i]];", RANDOM),
    ("a packed weight is used after it was written", "hal/memory.c",
     "return e && atomic_load_explicit(&e->version, memory_order_acquire) == b->version;",
     "(void)b; return e;", RANDOM),
    ("what is appended to a cache does not wait for who reads the cache as it was", "plan/plan.c",
     "if (other == group || !tn_group_reads_slot(g, other, home)) continue;", "(void)home; continue;", CACHE),
    ("what is appended to a cache does not wait for what it is made of", "plan/plan.c",
     "last = needed->order.position > last ? needed->order.position : last;", "(void)needed;", CACHE),
    ("a handle keeps its view after its base was written", "tensor/tensor.c",
     "return !s || t->version == s->version ?", "return !s || t->base || t->version == s->version ?", RANDOM),
    ("a write through a view forgets the writes before it", "tensor/tensor.c",
     "tn_handle_of(dst)->base ? assign_view(s->value, place, fitted)",
     "tn_handle_of(dst)->base ? assign_view(tn_handle_of(dst)->base->node, place, fitted)", RANDOM),
    ("a view's place is taken from its own memory", "tensor/tensor.c",
     "a.i[0] = place->layout[0];", "a.i[0] = 0;", RANDOM),
    ("a launch keeps the first inputs", "plan/capture.c",
     "g->bound[in->slot] = n->buffer;", "tn_buffer_release(n->buffer); tn_buffer_retain(g->bound[in->slot]);", RANDOM),
    ("a launch does not notice that it wrote states", "plan/capture.c",
     "if (s == TN_OK || partially_committed) mark_written(g);", "(void)mark_written;", LAZINESS),
    ("kernels that write states are not prepared", "plan/plan.c",
     "if (c->commit && !committing) TRY(prepare_kernels(p, i));", "(void)prepare_kernels;", FAILURES),
    ("a launch hands out the state itself", "plan/capture.c",
     "if (is_state(g, o)) TRY(tn_buffer_new", "if (is_state(g, o) && false) TRY(tn_buffer_new", LAZINESS),
    ("a refused write spoils its target", "tensor/tensor.c",
     "if (ok != TN_OK) return tn_refuse_write(ok);",
     "if (ok != TN_OK) { storage_set(r, s, tn_node_error(ok, \"spoilt\")); return tn_refuse_write(ok); }", LAZINESS),
    ("a kernel's runtime scalars are counted from the wrong one", "plan/plan.c",
     "m->p->scalar_source[m->next_scalar - m->p->scalars] = scalar < 0 ? -1 : scalar;",
     "m->p->scalar_source[m->next_scalar - m->p->scalars] = scalar < 0 ? -1 : 0;", RANDOM),
]


def pattern(text):
    """A regular expression for a piece of C in which white space does not count."""
    pieces = re.findall(r"\w+|[^\w\s]", text)
    return r"\s*".join(re.escape(piece) for piece in pieces)


def sow(source, old, new):
    """The source with the bug, or None when the text does not stand there exactly once."""
    found = re.findall(pattern(old), source)
    if len(found) != 1:
        return None
    return re.sub(pattern(old), lambda _: new, source)


class Tree:
    """A copy of the sources, its build, and how long the tests take there."""

    def __init__(self, folder):
        self.folder, self.clean_seconds = folder, {}
        self.environment = os.environ | {"TRUNNION_PROGRAMS": PROGRAMS, "TRUNNION_BRIEF": "1", "TMPDIR": str(folder)}
        self.environment["PATH"] = f"{ROOT}/.deps/venv/bin:{os.environ['PATH']}"
        self.environment["CCACHE_BASEDIR"] = str(folder)  # wherever the copy lies, its objects are the same
        for name in COPIED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, folder / name)

    def call(self, *command):
        ended = subprocess.run(command, cwd=self.folder, env=self.environment, text=True, errors="replace",
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return ended.returncode == 0, ended.stdout

    def configure(self):
        tools = ["-GNinja"] if shutil.which("ninja", path=self.environment["PATH"]) else []
        if shutil.which("ccache"):
            tools.append("-DCMAKE_C_COMPILER_LAUNCHER=ccache")
        return self.call("cmake", "-S", ".", "-B", "build", *tools, *OPTIONS)

    def build(self, *tests):
        return self.call("cmake", "--build", "build", "-j", os.environ.get("JOBS", "2"), "--target", *tests)

    def limit(self, name):
        """Of the processor's time, in seconds: on a busy machine, too, no test looks as if it had no end."""
        clean = self.clean_seconds.get(name)
        return SECONDS if clean is None else round(SLOWER * clean) + MORE_SECONDS

    def test(self, name):
        """None when it passes; else what its first failure says."""
        seconds = self.limit(name)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        test = subprocess.Popen(["stdbuf", "-oL", f"build/{name}"], cwd=self.folder, env=self.environment, text=True,
                                errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                start_new_session=True, preexec_fn=lambda: resource.setrlimit(
                                    resource.RLIMIT_CPU, (seconds, seconds)))
        timer = threading.Timer(SECONDS, os.killpg, (test.pid, signal.SIGKILL))
        timer.start()
        said = next((line.strip() for line in test.stdout if FAILURE.search(line)), None)
        if said:
            os.killpg(test.pid, signal.SIGKILL)
        test.communicate()
        timer.cancel()
        self.clean_seconds.setdefault(name, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
        if said or test.returncode == 0:
            return said
        stopped = -test.returncode in (signal.SIGKILL, signal.SIGXCPU)
        return "does not end" if stopped else f"ended with {test.returncode}"

    def ask(self, names):
        """None when all these tests pass, or what the first failure says; whether they could be built."""
        built, out = self.build(*names)
        if not built:
            return "does not build:\n" + out[-2000:], False
        failures = (f"{name}: {said}" for name in names if (said := self.test(name)))
        return next(failures, None), True


def try_bug(tree, bug):
    """(caught, words)"""
    _, name, old, new, soonest = bug
    path = tree.folder / "src" / name
    source = path.read_text(encoding="utf-8")
    wrong = sow(source, old, new)
    if wrong is None:
        return False, f"its text does not stand in src/{name} exactly once: sow it anew"
    path.write_text(wrong, encoding="utf-8")
    words, built = tree.ask([soonest])
    if not words:
        words, built = tree.ask([test for test in TESTS if test != soonest])
    path.write_text(source, encoding="utf-8")
    return words is not None and built, words or "not noticed"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="trunnion-bugs-"))
    missed, begun = 0, time.monotonic()
    try:
        tree = Tree(folder)
        configured, out = tree.configure()
        noticed = tree.ask(TESTS)[0] if configured else out[-4000:]
        if noticed:
            print(f"without any bug: {noticed}")
            return 1
        print(f"without any bug: built and tested in {time.monotonic() - begun:.0f} s", flush=True)
        numbers = arguments.numbers or range(1, len(BUGS) + 1)
        for number in numbers:
            start = time.monotonic()
            caught, words = try_bug(tree, BUGS[number - 1])
            missed += not caught
            verdict, seconds = "caught" if caught else "MISSED", time.monotonic() - start
            print(f"{number:3}  {verdict}  {seconds:4.0f} s  {BUGS[number - 1][0]}")
            print(f"                     {words}", flush=True)
        print(f"{len(numbers) - missed} passed, {missed} failed, 0 skipped")
    finally:
        if arguments.keep:
            print(folder)
        else:
            shutil.rmtree(folder)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
