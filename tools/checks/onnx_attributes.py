"""onnx_attributes.py — src/onnx/onnx_attributes.c beside the schemas of the onnx package and of ONNX Runtime.

Every operator of the table must have, from each of its rows' opset on, exactly the attributes that the schema of that
opset has: the same names, kinds and requirements. What the import knowingly leaves out stands in LEFT_OUT.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TABLE = ROOT / "src" / "onnx" / "onnx_attributes.c"
LETTERS = {"FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "FLOATS": "F", "INTS": "I",
           "STRINGS": "S", "GRAPHS": "G", "SPARSE_TENSOR": "x", "TYPE_PROTO": "T"}
LEFT_OUT = {("", "Pad", "paddings")}  # of opset 1, under another name than later


def read_table():
    """[(domain, operator, since, {attribute: (letter, required)})]"""
    text = TABLE.read_text()
    macros = {name: "".join(re.findall(r'"([^"]*)"', body))
              for name, body in re.findall(r"#define (\w+) ((?:.*\\\n)*.*)\n", text)}
    domains = re.findall(r'\{"([^"]*)", (\w+)\},', text[text.index("onnx_attribute_tables[] ="):])
    rows = []
    for domain, table in domains:
        start = text.index(f"onnx_attribute_row {table}[]")
        body = text[start:text.index("};\n\n", start)]
        for names, since, rest in re.findall(r'\{((?:\s*"[\w ]+")+), (\d+),([^}]*)\}', body):
            listed = "".join(macros.get(word, quoted) for quoted, word in re.findall(r'"([^"]*)"|([A-Z_]+)', rest))
            attributes = {}
            for rule in listed.split():
                attribute, kind = rule.split("=")[0].split(":")
                attributes[attribute.rstrip("*")] = kind, attribute.endswith("*")
            names = "".join(re.findall('"([^"]*)"', names)).split()
            rows += [(domain, name, int(since), attributes) for name in names]
    return rows


def read_schemas():
    """{(domain, operator): {since: {attribute: (letter, required)}}}, or None without the packages."""
    try:
        import onnx.defs
        from onnxruntime.capi import onnxruntime_pybind11_state as runtime
    except ImportError as missing:
        print(f"skipped: no schemas to compare with: {missing} (tools/setup.sh fetches them)")
        return None
    schemas = {}
    for schema in [*onnx.defs.get_all_schemas_with_history(), *runtime.get_all_operator_schema()]:
        attributes = {a.name: (LETTERS.get(str(a.type).split(".")[-1], "?"), bool(a.required))
                      for a in schema.attributes.values()}
        schemas.setdefault((schema.domain, schema.name), {}).setdefault(schema.since_version, attributes)
    return schemas


def main():
    rows, schemas = read_table(), read_schemas()
    if schemas is None:
        print("0 passed, 0 failed, 1 skipped")
        return 0
    passed = failed = 0
    for domain, name, since, attributes in rows:
        if domain == "ai.onnx.training":  # the preview's table under its older name
            continue
        versions = schemas.get((domain, name)) or schemas.get(("", name), {})
        later = [s for d, n, s, _ in rows if (d, n) == (domain, name) and s > since]
        first = max([v for v in versions if v <= since], default=None)
        meant = [v for v in versions if first is not None and v >= first and (not later or v < min(later))]
        if not meant:
            print(f"{domain}.{name} {since}: there is no such schema")
            failed += 1
        for version in meant:
            wanted = {a: k for a, k in versions[version].items() if (domain, name, a) not in LEFT_OUT}
            if wanted == attributes:
                passed += 1
                continue
            failed += 1
            for a in sorted(wanted.keys() | attributes.keys()):
                if wanted.get(a) != attributes.get(a):
                    print(f"{domain}.{name} {version}: {a} is {attributes.get(a)} here, {wanted.get(a)} in the schema")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
