"""ref_template.py — what Jinja makes of chat templates: the reference for src/text/jinja_*.c.

Without arguments it writes tests/golden/templates.json: the templates and expressions of tools/text/template_cases.py over
its conversations, rendered by the jinja2 package in the environment that transformers sets up. With --compare LIBRARY
FILE… it renders every file (and every *.jinja inside a *.whl) over the same conversations with jinja2 and with
libtrunnion-text, and tells what differs. Run it with a Python that has jinja2.
"""

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import sys
import time
import zipfile

import jinja2
import jinja2.ext
import jinja2.sandbox

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from text import template_cases  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "templates.json"
NOW = 1700000000  # 2023-11-14 22:13:20 UTC


class Generation(jinja2.ext.Extension):
    """{% generation %}: text like other."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def environment():
    """As transformers.utils.chat_template_utils makes it."""
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW).strftime(form)
    return env


def expected(env, template, variables):
    """{"text": …} or {"error": …}."""
    try:
        return {"text": env.from_string(template).render(**variables)}
    except Exception as error:  # noqa: BLE001 - whatever it refuses, we have to refuse
        return {"error": f"{type(error).__name__}: {error}"}


# ---- the golden file
# ---------------------------------------------------------------------------------------------------


def write_golden():
    env = environment()
    cases = []
    for name, template in template_cases.TEMPLATES.items():
        for title, variables in template_cases.CONVERSATIONS.items():
            cases.append({"name": f"{name}: {title}", "template": name, "variables": title,
                          **expected(env, template, variables)})
    for source in template_cases.EXPRESSIONS:
        cases.append({"name": source, "source": source, **expected(env, source, template_cases.VALUES)})
    head = {"provenance": {"written_by": "tools/text/ref_template.py", "with": [f"jinja2 {jinja2.__version__}"], "now": NOW,
                           "TZ": "UTC"},
            "templates": template_cases.TEMPLATES, "conversations": template_cases.CONVERSATIONS,
            "values": template_cases.VALUES}
    dump = lambda value: json.dumps(value, ensure_ascii=True, separators=(",", ":"))  # noqa: E731
    parts = [f"{dump(key)}:{dump(value)}" for key, value in head.items()]
    parts.append('"cases":[\n' + ",\n".join(dump(c) for c in cases) + "\n]")
    GOLDEN.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    print(f"wrote {GOLDEN.relative_to(ROOT)}: {len(cases)} cases, {GOLDEN.stat().st_size} bytes")


# ---- beside our library
# ------------------------------------------------------------------------------------------------


class Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("capacity", ctypes.c_size_t)]


class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("now", ctypes.c_int64), ("max_steps", ctypes.c_int64),
                ("max_memory", ctypes.c_int64)]


class Ours:
    def __init__(self, path):
        path = pathlib.Path(path).resolve()
        self.core = ctypes.CDLL(str(path.parent / "libtrunnion.so"), ctypes.RTLD_GLOBAL)
        self.text = ctypes.CDLL(str(path))
        self.core.tn_error.restype = ctypes.c_char_p

    def render(self, template, variables):
        source, values = template.encode(), json.dumps(variables).encode()
        handle, out, options = ctypes.c_void_p(), Bytes(), Options(0x544E0000 | ctypes.sizeof(Options), NOW, 20_000_000, 256 << 20)
        if self.text.tn_chat_template_new(source, ctypes.c_size_t(len(source)), ctypes.byref(handle)):
            return {"error": self.core.tn_error().decode(errors="replace")}
        status = self.text.tn_chat_template_render(handle, values, ctypes.c_size_t(len(values)), ctypes.byref(options),
                                              ctypes.byref(out))
        self.text.tn_chat_template_free(handle)
        result = {"error": self.core.tn_error().decode(errors="replace")}
        if status == 0:
            result = {"text": ctypes.string_at(out.data, out.size).decode()}
        self.text.tn_bytes_free(ctypes.byref(out))
        return result


def sources(paths):
    for path in map(pathlib.Path, paths):
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    if name.endswith(".jinja"):
                        yield name, archive.read(name).decode()
        else:
            yield path.name, path.read_text()


def compare(library, paths):
    env, ours = environment(), Ours(library)
    passed = failed = 0
    for name, template in sources(paths):
        for title, variables in template_cases.CONVERSATIONS.items():
            want, got = expected(env, template, variables), ours.render(template, variables)
            same = got == want if "text" in want else "error" in got
            passed += same
            failed += not same
            if not same:
                print(f"{name}: {title}\n  jinja2: {str(want)[:600]}\n  ours:   {str(got)[:600]}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed or not passed else 0


def main():
    parser = argparse.ArgumentParser(description="Jinja's own renderings of chat templates")
    parser.add_argument("--compare", nargs="+", metavar=("LIBRARY", "FILE"))
    options = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    if options.compare:
        return compare(options.compare[0], options.compare[1:])
    write_golden()
    return 0


if __name__ == "__main__":
    sys.exit(main())
