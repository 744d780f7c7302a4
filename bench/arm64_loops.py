"""arm64_loops.py — the innermost loops of the ARM64 kernels in instructions and, by llvm-mca, in cycles.

There is no ARM64 machine to measure on. This compiles the kernels with aarch64-linux-gnu-gcc, finds in each function the
loop with the largest share of multiplications, and prints a row of Markdown: multiplications, all instructions, cycles, and
the share of these in which the model's multipliers are busy. A matrix instruction multiplies twice as many numbers. Packages: gcc-aarch64-linux-gnu, llvm-19.
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = ("-O2 -ftree-vectorize --param=vect-epilogues-nomask=0 -std=c17 -D_GNU_SOURCE -ffp-contract=off -fno-math-errno "
         "-fno-trapping-math -DTN_ISA_SUFFIX=base").split()
# what; source; further flags; function
KERNELS = [
    ("f32 product, 12 × 8 tile", "tiles", "", "tile_full_12"),
    ("f64 product, 12 × 4 tile", "tiles_f64", "", "tile_full_12"),
    ("convolution NHWC, 12 × 8 tile", "tiles", "", "tile_nhwc_12"),
    ("one row by a matrix (f32)", "tiles", "", "tile_wide_1"),
    ("bytes u8 × i8, 12 × 8 tile (i8mm)", "tiles_bytes", "-march=armv8.2-a+dotprod+i8mm -DTN_DOT_SUFFIX=i8mm", "tile_full_12"),
    ("bf16 pairs, 12 × 8 tile (BF16)", "tiles_bf16", "-march=armv8.2-a+bf16 -UTN_ISA_SUFFIX -DTN_ISA_SUFFIX=bfdot", "tile_full_12"),
    ("Q4_0 panel, 12 rows (dot products)", "qtile", "-march=armv8.2-a+dotprod -DTN_DOT_SUFFIX=dotprod", "plain_full"),
    ("Q4_1 panel, 12 rows (dot products)", "qtile", "-march=armv8.2-a+dotprod -DTN_DOT_SUFFIX=dotprod", "with_minimum_full"),
    ("Q4_1 panel, 12 rows (i8mm)", "qtile", "-march=armv8.2-a+dotprod+i8mm -DTN_DOT_SUFFIX=i8mm", "with_minimum_full"),
    ("Q4_0 panel, 12 rows (i8mm)", "qtile", "-march=armv8.2-a+dotprod+i8mm -DTN_DOT_SUFFIX=i8mm", "plain_full"),
    ("Q8_0 panel, 12 rows (dot products)", "qtile", "-march=armv8.2-a+dotprod -DTN_DOT_SUFFIX=dotprod", "plain_wide_full"),
    ("Q4_0 one row (dot products)", "qtile", "-march=armv8.2-a+dotprod -DTN_DOT_SUFFIX=dotprod", "stripe_q4_0"),
]
# LLVM's models and their pipes for 128-bit multiplications. Its model of Apple's cores has three; the cores have four.
PROCESSORS = {"apple-m1": 3, "neoverse-v1": 4, "neoverse-n1": 2}
MULTIPLY = re.compile(r"\s(fmla|[us]{0,2}(?:dot|mmla)|bf(?:dot|mmla))\s")


def instructions(lines):
    return [line for line in lines if line.startswith("\t") and not line.startswith("\t.")]


def innermost(assembly, function):
    """The loop of `function` with the largest share of multiplications, twice those of a dot product for matrix instructions."""
    body = assembly[assembly.index(f"\n{function}:\n"):]
    body = body[:body.index("\t.size")].splitlines()
    labels, best, share = {}, [], 0
    for i, line in enumerate(body):
        if label := re.match(r"(\.L\w+):", line):
            labels[label[1]] = i
        jump = re.match(r"\t(?:b\.?\w*|cbn?z|tbn?z)\t.*?(\.L\w+)$", line)
        if not jump or jump[1] not in labels:
            continue
        loop = instructions(body[labels[jump[1]]:i + 1])
        if any(line.startswith("\tb\t") for line in loop[:-1]):  # of some loops
            continue
        of_loop = sum((1 + ("mmla" in x)) * bool(MULTIPLY.search(x)) for x in loop) / len(loop)
        if of_loop > share:
            best, share = loop, of_loop
    return best


def cycles(loop, processor, folder):
    path = folder / "loop.s"
    path.write_text("\n".join(loop) + "\n")
    out = subprocess.run(["llvm-mca-19", "-mtriple=aarch64-linux-gnu", f"-mcpu={processor}", "-mattr=+i8mm,+dotprod,+bf16",
                          "-iterations=300", path], check=True, capture_output=True, text=True).stdout
    return int(re.search(r"Total Cycles:\s+(\d+)", out)[1]) / 300


def main():
    print(f"| kernel | multiplications | instructions | {' | '.join(f'{cpu}: cycles | busy' for cpu in PROCESSORS)} |")
    print("|---|---|---|" + "---|---|" * len(PROCESSORS))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for what, source, more, function in KERNELS:
            out = folder / "kernel.s"
            subprocess.run(["aarch64-linux-gnu-gcc", *FLAGS, *more.split(), "-Iinclude", "-Isrc", "-S", f"src/cpu/{source}.c", "-o",
                            out], check=True, cwd=ROOT)
            loop = innermost(out.read_text(), function)
            counts = collections.Counter(bool(MULTIPLY.search(x)) for x in loop)
            times = {cpu: cycles(loop, cpu, folder) for cpu in PROCESSORS}
            busy = [f"{times[cpu]:.1f} | {100 * counts[True] / pipes / times[cpu]:.0f} %" for cpu, pipes in PROCESSORS.items()]
            print(f"| {what} | {counts[True]} | {len(loop)} | {' | '.join(busy)} |", flush=True)


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
