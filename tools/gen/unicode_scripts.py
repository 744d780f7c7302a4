"""unicode_scripts.py — writes src/gen/scripts.h: which script each character belongs to, as the pre-tokenizer
UnicodeScripts of Hugging Face's library sees it (Unicode's Scripts.txt in the version that the library was built with,
Hiragana and Katakana as Han).

The library is asked, so that nothing can differ: a text is cut where the script changes, and characters of no script
are never cut off. Scripts are numbers here, in the order of their first characters; 0 is none. Needs the package
tokenizers. With --check it compares instead of writing.
"""

import pathlib
import sys

HEADER = pathlib.Path(__file__).resolve().parents[2] / "src" / "gen" / "scripts.h"
CODES = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
LATIN, HAN = "a", "\u6f22"
HEAD = """/* scripts.h — made by tools/gen/unicode_scripts.py out of what Hugging Face's tokenizers {version} does; do not edit.
 *
 * Runs of characters of one script, in order: the low 16 bits of the first one, and the script's number, 0: none.
 * Runs tn_hf_planes[p] … tn_hf_planes[p + 1] − 1 are those of the characters whose other bits are p. */
#ifndef TN_TEXT_SCRIPTS_H
#define TN_TEXT_SCRIPTS_H

#include <stdint.h>
"""


def table(kind, name, values, width):
    rows = [", ".join(map(str, values[i:i + width])) for i in range(0, len(values), width)]
    return f"\nstatic const {kind} {name}[{len(values)}] = {{\n" + "".join(f"    {row},\n" for row in rows) + "};\n"


def beginnings(cutter, text):
    """Places in the text at which a piece begins."""
    return {span[0] for _, span in cutter.pre_tokenize_str(text)}


def of_no_script(cutter):
    """A character between letters of one script is not cut off where it has that script, or none."""
    joined = []
    for letter in (LATIN, HAN):
        cuts = beginnings(cutter, letter + "".join(chr(c) + letter for c in CODES))
        joined.append({c for i, c in enumerate(CODES) if 2 * i + 1 not in cuts and 2 * i + 2 not in cuts})
    return joined[0] & joined[1]


def scripts():
    """{code: number}"""
    from tokenizers import pre_tokenizers

    cutter = pre_tokenizers.UnicodeScripts()
    none = of_no_script(cutter)
    codes = [c for c in CODES if c not in none]
    cuts = beginnings(cutter, "".join(map(chr, codes)))
    number, result, firsts = 0, dict.fromkeys(none, 0), []
    for i, c in enumerate(codes):
        if i in cuts:
            same = [k for k, first in enumerate(firsts) if 1 not in beginnings(cutter, first + chr(c))]
            if not same:
                firsts.append(chr(c))
            number = 1 + (same[0] if same else len(firsts) - 1)
        result[c] = number
    return result


def main():
    import tokenizers

    numbers, runs, planes, last = scripts(), [], [], None
    for c in sorted(numbers):
        if numbers[c] != last or c >> 16 >= len(planes):
            if c >> 16 >= len(planes):
                planes.append(len(runs))
            runs.append((c & 0xffff if runs else 0, numbers[c]))
        last = numbers[c]
    text = HEAD.format(version=tokenizers.__version__)
    text += table("uint16_t", "tn_hf_planes", planes + [len(runs)], 16)
    text += table("uint16_t", "tn_hf_run_begins", [r[0] for r in runs], 16)
    text += table("uint8_t", "tn_hf_run_scripts", [r[1] for r in runs], 22) + "\n#endif\n"
    if "--check" in sys.argv:
        return 0 if HEADER.read_text() == text else print(f"{HEADER} is not what the library does") or 1
    HEADER.write_text(text)
    print(f"{HEADER}: {len(runs)} runs of {max(numbers.values())} scripts")
    return 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
