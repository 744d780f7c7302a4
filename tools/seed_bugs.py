#!/usr/bin/env python3
"""seed_bugs.py [--keep] [NUMBER…] — does the proof of laziness notice when laziness is broken?

Each bug below is a small edit of the recorder or the planner, of the kind that is made by mistake. The tree is copied to
a temporary folder and the tests of laziness are built there, once as it is (all must pass), then again with each bug
(one must fail).
An edit whose text is no longer in the sources fails as well: then the bug has to be sown anew, not the test dropped.

  NUMBER…   only these bugs
  --keep    leave the temporary folder
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ["CMakeLists.txt", "cli", "cmake", "include", "src", "tests", "LICENSE", "README.md"]
TESTS = ["test_laziness", "test_programs", "test_program_failures", "test_cache"]
PROGRAMS = "600"  # enough for every bug here, and a few seconds when all is well
SECONDS = 180     # a bug may also make a program run for ever

# what is wrong | file | what stands there (white space does not count) | what is put there
BUGS = [
    ("a state is written while later kernels still read it", "core/layout.c",
     "if (tn_group_reads_slot(g, &g->groups[g->order[i]], home)) return false;", ";"),
    ("a state is written by a kernel that reads it elsewhere", "core/layout.c",
     "if (tn_group_reads_slot(g, maker, home) && !same_place_only(g, maker, home, element)) return false;",
     "(void)element;"),
    ("states are written before what runs last", "core/layout.c",
     "if (!maker->commit && !maker->appends) return false;", ";"),
    ("a dying operand is written over though it is read at other places", "core/layout.c",
     "|| !group->buffer_same_place[b]) continue; if (tn_dtype_size",
     ") continue; if (tn_dtype_size"),
    ("memory is free one kernel too early", "core/layout.c",
     "if (a->blocks[i].last >= position)", "if (a->blocks[i].last > position)"),
    ("a value lives only until its first reader", "core/layout.c",
     "if (g->groups[v->pulls[k]].position > last) last = g->groups[v->pulls[k]].position;",
     "if (k == 0) last = g->groups[v->pulls[k]].position;"),
    ("places in the arena are forgotten", "core/plan.c",
     "patch(p, at, v->place, v->byte_offset + first)", "patch(p, at, v->place, first)"),
    ("equal kernels become one launch without a look at their memory", "core/plan.c",
     "if (touches(g, group, before) || touches(g, before, group)) return false;", "(void)group; (void)before;"),
    ("a view's offset is dropped", "core/lower.c",
     "v->node->rank, v->offset, v->stride); if (tn_dtype_is_quantized",
     "v->node->rank, 0, v->stride); if (tn_dtype_is_quantized"),
    ("what was computed in a loop is used behind it", "core/lower.c",
     "if (e->region != 0 && e->region != w->region) continue;", ""),
    ("results are stored before all operands are loaded", "core/lower.c",
     "pull(lw, w, w->group->members[i], w->space);", ";"),
    ("values of small types are not rounded where they are made", "core/lower.c",
     "return loaded || moved ? r :", "return loaded || moved || true ? r :"),
    ("a value is used at any index, not only at its own", "core/lower.c",
     "if (!at_own_place(w, v->node, at) || lw->mask != KIR_NONE) return give_up(lw, w, value);", ""),
    ("kernels are joined in a circle", "core/fuse.c",
     "return space_fits(g, to, v) && !reads_any(g, group, v->pulls, v->pull_count);", "return space_fits(g, to, v);"),
    ("kernels do not wait for what they read", "core/fuse.c",
     "reader->deps[reader->dep_count++] = v->group;", "reader->deps[reader->dep_count] = v->group;"),
    ("equal operations with other attributes are shared", "core/values.c",
     "return memcmp(m->i, n->i, (size_t)n->n_i * sizeof *n->i) == 0 &&", "return"),
    ("a plan is found again for views of other strides", "core/key.c",
     "put(at, (uint64_t)n->layout[d]);", "put(at, 0);"),
    ("a plan is found again though other values are kept", "core/key.c",
     "mark = b->marks[n->index] & OUTPUT ? 1 : 0", "mark = 0"),
    ("a plan is found again at another size", "core/flush.c",
     "return b->size_count == 0 || memcmp(p->sizes, b->sizes, b->size_count * sizeof *b->sizes) == 0;",
     "(void)p; (void)b; return true;"),
    ("dials keep the value of the first run", "core/plan.c",
     "p->dials[i] = dials[p->dial_source[i]];", "if (p->runs == 0) p->dials[i] = dials[p->dial_source[i]];"),
    ("a packed weight is used after it was written", "hal/forms.c",
     "return e && atomic_load_explicit(&e->version, memory_order_acquire) == b->version;", "(void)b; return e;"),
    ("what is appended to a cache does not wait for who reads the cache as it was", "core/plan.c",
     "if (other == group || !tn_group_reads_slot(g, other, home)) continue;", "(void)home; continue;"),
    ("what is appended to a cache does not wait for what it is made of", "core/plan.c",
     "last = needed->position > last ? needed->position : last;", "(void)needed;"),
    ("a handle keeps its view after its base was written", "graph/tensor.c",
     "return !s || t->version == s->version ?", "return !s || t->base || t->version == s->version ?"),
    ("a write through a view forgets the writes before it", "graph/tensor.c",
     "dst->base ? assign_view(s->value, place, fitted)", "dst->base ? assign_view(dst->base->node, place, fitted)"),
    ("a view's place is taken from its own memory", "graph/tensor.c",
     "a.i[0] = place->layout[0];", "a.i[0] = 0;"),
    ("a launch keeps the first inputs", "core/capture.c",
     "g->bound[in->slot] = n->buffer;", "tn_buffer_release(n->buffer); tn_buffer_retain(g->bound[in->slot]);"),
    ("a launch does not notice that it wrote states", "core/capture.c",
     "if (s == TN_OK || torn) mark_written(g);", "(void)mark_written;"),
    ("kernels that write states are not prepared", "core/plan.c",
     "if (c->commit && !committing) TRY(prepare_commits(p, i));", "(void)prepare_commits;"),
    ("a launch hands out the state itself", "core/capture.c",
     "if (is_state(g, o)) TRY(tn_buffer_new", "if (is_state(g, o) && false) TRY(tn_buffer_new"),
    ("a refused write takes the place of what views look at", "graph/tensor.c",
     "dst->failed = pin(error);", "{ unpin(dst->node); dst->node = pin(error); }"),
    ("a kernel's dials are counted from the wrong one", "core/plan.c",
     "m->p->dial_source[m->next_dial - m->p->dials] = dial < 0 ? -1 : dial;",
     "m->p->dial_source[m->next_dial - m->p->dials] = dial < 0 ? -1 : 0;"),
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


def run(command, folder, limit=None, **environment):
    """Exit code (None when time ran out) and output."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", env=dict(os.environ, **environment), start_new_session=True)
    try:
        out, _ = process.communicate(timeout=limit)
        return process.returncode, out
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return None, ""


def build(folder):
    return run(["cmake", "--build", "build", "-j", os.environ.get("JOBS", "2"), "--target", *TESTS], folder)


def configure(folder):
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy2(source, folder / name)
    options = ["-DTRUNNION_SHARED=OFF", "-DCMAKE_C_FLAGS_RELEASE=-O1"]
    code, out = run(["cmake", "-S", ".", "-B", "build", *options], folder)
    if code == 0:
        code, out = build(folder)
    return code == 0, out


def test(folder):
    """None when all pass; else what the first failure says."""
    for name in TESTS:
        code, out = run([f"build/{name}"], folder, SECONDS, TRUNNION_PROGRAMS=PROGRAMS, TRUNNION_BRIEF="1",
                        TMPDIR=str(folder))
        if code != 0:
            return f"{name}: {first_difference(code, out)}"
    return None


def first_difference(code, out):
    if code is None:
        return "does not end"
    for line in out.splitlines():
        if line.startswith("seed ") or "killed in the program" in line:
            return line.strip()
    failed = re.search(r"\[  FAILED  \] (\w+)", out)
    return failed.group(1) if failed else f"ended with {code}"


def try_bug(folder, bug):
    """(caught, words)"""
    _, name, old, new = bug
    path = folder / "src" / name
    source = path.read_text(encoding="utf-8")
    wrong = sow(source, old, new)
    if wrong is None:
        return False, f"its text does not stand in src/{name} exactly once: sow it anew"
    path.write_text(wrong, encoding="utf-8")
    code, out = build(folder)
    words = "does not build:\n" + out[-2000:]
    caught = False
    if code == 0:
        noticed = test(folder)
        caught = noticed is not None
        words = noticed or "not noticed"
    path.write_text(source, encoding="utf-8")
    return caught, words


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="trunnion-bugs-"))
    missed = 0
    try:
        built, out = configure(folder)
        if not built:
            print(out[-4000:])
            print("the tree does not build as it is")
            return 1
        noticed = test(folder)
        if noticed:
            print(f"without any bug, {noticed}")
            return 1
        numbers = arguments.numbers or range(1, len(BUGS) + 1)
        for number in numbers:
            start = time.monotonic()
            caught, words = try_bug(folder, BUGS[number - 1])
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
