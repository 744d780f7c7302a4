"""gen_prelude.py [--check] — writes src/gen/render_prelude.h: the functions of kir_math.h as text for other languages,
and the texts of src/kir/texts.

Rendered kernels call the same functions as the interpreter, so there is one definition: this transcribes it. Macros
that define functions are expanded; what every language spells its own way (types, fma, bit casts, infinities) becomes a
word behind a dollar sign, for which each dialect has a spelling (render.c). Functions stand in an order in
which each needs only earlier ones, with the numbers of those it needs; only what a kernel uses, directly or through
others, is put into its source.

What a language has to itself stands in src/kir/texts as its own text: comments are left out, and a file that is
included is put in.

--check compares instead of writing, and fails if the file differs.
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
MATH = ROOT / "src/kir/kir_math.h"
TABLES = ROOT / "src/kir/kir_tables.c"
TEXTS = ROOT / "src/kir/texts"
OUT = ROOT / "src/gen/render_prelude.h"

# The texts' names in C.
TEXT_FILES = {"kir_matrix_cuda": "matrix.cu", "kir_wide_cuda": "wide.cu", "kir_matrix_hip": "matrix.hip",
              "kir_matrix_msl": "matrix.metal", "kir_fused_wgsl": "fused.wgsl"}

JOINT = "\x01"  # stands for ## while parameters are replaced: no letter of any name
FLOATS, INTS = ["f32", "f64"], ["i32", "i64", "u32", "u64"]
ROOTS = [f"kir_{op}_{t}" for op in ("exp", "log", "sin", "cos", "tanh", "erf") for t in FLOATS]
ROOTS += [f"kir_{op}_{t}" for op in ("min", "max") for t in FLOATS + INTS]
ROOTS += [f"kir_{op}_{t}" for op in ("div", "mod", "shl", "shr") for t in INTS]
ROOTS += [f"kir_abs_{t}" for t in ("i32", "i64")]
ROOTS += [f"kir_cast_{f}_{i}" for f in FLOATS for i in INTS]
ROOTS += ["kir_from_f16", "kir_to_f16", "kir_from_bf16", "kir_to_bf16", "kir_philox_u32", "kir_narrow_bits"]

# Tables that kir_math.h declares: the renderer prints them from the library's own.
TABLE_NAMES = ["kir_two_over_pi", "kir_erf_table"]

# 32-bit integers divide through doubles on the processor, for its vectors' sake; the text of the 64-bit function gives
# the same quotients and asks for no doubles.
AS_64_BITS = {"kir_div_i32": "kir_div_i64"}

INTRINSICS = ["fabs", "sqrt", "floor", "ceil", "trunc", "rint", "fmod", "fma", "copysign"]
WORDS = [(rf"\b__builtin_{name}f\(", f"${name}_f32(") for name in INTRINSICS]
WORDS += [(rf"\b__builtin_{name}\(", f"${name}_f64(") for name in INTRINSICS]
WORDS += [(rf"\bkir_{way}_{t}\(", f"${way}_{t}(") for way in ("bits", "from_bits") for t in FLOATS]
WORDS += [(rf"\b{c}\b", f"${word}") for c, word in [
    ("float", "f32"), ("double", "f64"), ("int32_t", "i32"), ("int", "i32"), ("int64_t", "i64"), ("uint32_t", "u32"),
    ("uint64_t", "u64"), ("uint16_t", "u16"), ("uint8_t", "u8"), ("bool", "bool"), ("INFINITY", "inf"), ("NAN", "nan")]]
WORDS += [(rf"\bkir_{t}\b", f"${t}") for t in FLOATS + INTS]
WORDS += [(r"\bINT32_MAX\b", "0x7fffffff"), (r"\bINT64_MAX\b", "0x7fffffffffffffff"),
          (r"\bUINT32_MAX\b", "0xffffffffU"), (r"\bUINT64_MAX\b", "0xffffffffffffffffU")]


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def read_macros(text):
    """Splits off all #define lines: {name: (parameters or None, body)}, and the text without any directive."""
    macros, rest, lines = {}, [], iter(text.splitlines())
    for line in lines:
        if not line.startswith("#"):
            rest.append(line)
            continue
        while line.endswith("\\"):
            line = line[:-1].rstrip() + " " + next(lines).strip()
        define = re.match(r"#define (\w+)(?:\(([^)]*)\))?\s*(.*)", line)
        if define:
            names = define.group(2)
            macros[define.group(1)] = ([n.strip() for n in names.split(",")] if names is not None else None, define.group(3))
    return macros, "\n".join(rest)


def arguments_at(text, start):
    """The arguments of the call whose '(' is at `start`, and the place behind its ')'."""
    depth, found, at = 0, [""], start
    while True:
        c = text[at]
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return [a.strip() for a in found], at + 1
        if c == "," and depth == 1:
            found.append("")
        elif at > start:
            found[-1] += c
        at += 1


def expand_calls(text, macros):
    """Replaces the calls of macros that define functions, and of constants."""
    for name, (names, body) in macros.items():
        if names is None:
            text = re.sub(rf"\b{name}\b", lambda m, body=body: body, text)
            continue
        while True:
            call = re.search(rf"\b{name}\(", text)
            if not call:
                break
            values, end = arguments_at(text, call.end() - 1)
            piece = re.sub(r"\s*##\s*", JOINT, body)
            for parameter, value in zip(names, values):
                piece = re.sub(rf"\b{parameter}\b", lambda m, v=value: v, piece)
            text = text[:call.start()] + "\n" + piece.replace(JOINT, "") + text[end:]
    return text


def functions_of(text):
    """{name: text} of each function, in order."""
    found = {}
    for head in re.finditer(r"(?:static inline |static )?\b[\w]+ \*?(\w+)\([^()]*\) \{", text):
        depth, at = 1, head.end()
        while depth:
            depth += (text[at] == "{") - (text[at] == "}")
            at += 1
        found[head.group(1)] = text[head.start():at]
    return found


def tidy(text):
    """One statement a line, indented by its depth, without a line's inner breaks."""
    text = re.sub(r"\s+", " ", text)
    out, depth, parens, line = [], 0, 0, ""
    for c in text:
        parens += (c == "(") - (c == ")")
        line += c
        if c == "}":
            depth -= 1
        if c in "{};" and not parens:
            out.append("    " * (depth if c != "}" or line.strip() != "}" else depth) + line.strip())
            line = ""
        if c == "{":
            depth += 1
    return "\n".join(out) + "\n"


def own_pointer(parameter):
    """A pointer among the parameters, or an array: of the item's own variables, but for tables."""
    constant, kind, name = parameter.groups()
    return parameter.group(0) if constant == "$table " else f"{constant or ''}$own{kind} {name}"


def transcribe(text):
    text = re.sub(r"^(static inline |static )?", "$function ", text.strip())
    text = re.sub(r"\bconst uint32_t \*words\b", "$constant uint32_t *words", text)
    for pattern, word in WORDS:
        text = re.sub(pattern, lambda m, word=word: word, text)
    head, body = text.split("{", 1)
    head = re.sub(r"(\$table |const )?(\$\w+) (\*\w+|\w+\[\d+\])(?=[,)])", own_pointer, head)
    text = head + "{" + body
    return tidy(text)


def all_functions():
    macros, text = read_macros(without_comments(MATH.read_text(encoding="utf-8")))
    constants = {"KIR_MAGIC_F32", "KIR_MAGIC_F64", "KIR_TRIG_NEAR"}
    makers = {n: m for n, m in macros.items() if m[1].startswith("static inline") or n in constants or n == "KIR_PLAIN_CASTS"}
    text = expand_calls(text, {n: makers[n] for n in sorted(makers, key=lambda n: (n != "KIR_PLAIN_CASTS", n))})
    for enumerator in re.finditer(r"\b(KIR_\w+) = (\d+)", text):
        text = text.replace(enumerator.group(1) + "]", enumerator.group(2) + "]").replace(
            enumerator.group(1) + " -", enumerator.group(2) + " -")
    found = functions_of(without_comments(TABLES.read_text(encoding="utf-8")))
    for name, body in functions_of(text).items():
        if name in ("kir_bits_f32", "kir_from_bits_f32", "kir_bits_f64", "kir_from_bits_f64"):
            continue
        found[name] = body
    for name, model in AS_64_BITS.items():
        found[name] = found[model].replace("64", "32")
    return found


def calls_of(body, names):
    return [n for n in names if re.search(rf"\b{n}\b", body)]


def ordered(found):
    """The names that ROOTS need, each behind those it needs."""
    done = []

    def visit(name):
        if name in done:
            return
        for other in calls_of(found[name], found):
            if other != name:
                visit(other)
        done.append(name)

    for root in ROOTS:
        visit(root)
    return done


def text_of(name):
    text = re.sub(r"/\*.*?\*/\n?", "", (TEXTS / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r'#include "([^"]*)"\n', lambda match: text_of(match.group(1)), text)


def own_texts():
    """Each text of a file as a string of C."""
    return "".join(f"/* texts/{file} */\nconst char {name}[] =\n{as_c_string(text_of(file))};\n"
                   for name, file in TEXT_FILES.items())


def as_c_string(text):
    """A literal for each line of the text; lines that are too long for C's are cut at a space."""
    out = []
    for line in text.splitlines():
        pieces = textwrap.wrap(line, 96, initial_indent="", drop_whitespace=False, break_on_hyphens=False,
                               replace_whitespace=False, expand_tabs=False)
        out += pieces[:-1] + [(pieces or [""])[-1] + "\n"]
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return "\n".join(f'     "{piece.translate(escapes)}"' for piece in out)


def generate():
    found = all_functions()
    names = ordered(found)
    number = {name: i + 1 for i, name in enumerate(TABLE_NAMES + names)}
    assert len(number) < 256
    rows = []
    for name in names:
        text = transcribe(found[name])
        needs = [number[n] for n in calls_of(found[name], TABLE_NAMES + names) if n != name]
        double = "true" if "$f64" in text or "_f64(" in text else "false"
        needed = "".join(f"\\{n:03o}" for n in needs)
        rows.append(f'    {{"{name}", "{needed}", {double},\n{as_c_string(text)}}},\n')
    head = f"""/* render_prelude.h — the functions of kir_math.h as text. Generated by tools/gen/gen_prelude.py; do not edit.
 *
 * $words are spelled by the dialect. `needs`: the numbers of the rows that this one calls, counted from 1; the first
 * {len(TABLE_NAMES)} numbers are tables, which the renderer prints itself. Below them stand the languages' own texts. */
"""
    enum = "enum {\n" + "".join(f"    PRELUDE_{n[4:].upper()} = {number[n]},\n" for n in TABLE_NAMES)
    enum += f"    PRELUDE_TABLES = {len(TABLE_NAMES)},\n    PRELUDE_ROWS = {len(names)}\n}};\n"
    struct = """
typedef struct prelude_row {
    const char *name, *needs;
    bool f64; /* mentions doubles itself */
    const char *text;
} prelude_row;

"""
    body = "static const prelude_row PRELUDE[PRELUDE_ROWS] = {\n" + "".join(rows) + "};\n\n" + own_texts()
    return head + enum + struct + body


def main():
    new = generate()
    if "--check" in sys.argv[1:]:
        same = OUT.is_file() and OUT.read_text(encoding="utf-8") == new
        if not same:
            print(f"{OUT.relative_to(ROOT)} differs from what {MATH.relative_to(ROOT)} says")
        return int(not same)
    OUT.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
