"""web.py — builds the web page and the npm package, in build-web.

build-web/site is the page: any server of static files can offer it. build-web/site/trunnion is the npm package, which
the page uses too. The compiler is that of cross.py; the module is built twice, with and without relaxed SIMD.

  --serve PORT  offers the page at http://localhost:PORT afterwards (for trying it here; it is no part of the page)
"""

import argparse
import functools
import gzip
import hashlib
import http.server
import os
import pathlib
import shutil
import subprocess
import sys

import cross
import cross_libraries
import digits

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEB = ROOT / "web"
BUILD = ROOT / "build-web"
SITE = BUILD / "site"
PACKAGE = SITE / "trunnion"
MODULES = {"trunnion.wasm.gz": ("simd", "OFF"), "trunnion-relaxed.wasm.gz": ("relaxed", "ON")}
PAGE = ("index.html", "style.css", "page.js", "worker.js")
SCRIPTS = ("trunnion.js", "wasi.js", "webgpu.js", "index.d.ts", "package.json", "README.md")
CACHED = ("trunnion/trunnion.js", "trunnion/wasi.js", "trunnion/webgpu.js", "trunnion/digits.csv")  # and one module
MOST_BYTES = 3_000_000  # of what a visitor loads before a model


def build_module(folder, relaxed, wrappers):
    """The module, made in build-web/FOLDER."""
    target = next(target for target in cross.TARGETS if target.name == "wasm32-wasi")
    compiler = [wrappers / "zig-cc", "-target", target.triple]
    packages = cross_libraries.build(cross.DEPS, target.name, compiler, wrappers / "zig-ar", target.without)
    environment = os.environ | {"PKG_CONFIG_LIBDIR": str(packages)}
    place = BUILD / folder
    place.mkdir(parents=True, exist_ok=True)
    log = place / "log.txt"
    with open(log, "w") as out:
        # Kernels have their own levels of optimization; all else should be small.
        made = subprocess.run([ROOT / "tools" / "build.sh", place, "trunnion_web",
                               f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake' / 'zig.cmake'}", "-DTN_ZIG_TARGET=wasm32-wasi",
                               f"-DTN_ZIG_WRAPPERS={wrappers}", "-DTRUNNION_SHARED=OFF", "-DTRUNNION_TEXT=ON", "-DTRUNNION_WEBGPU=ON",
                               f"-DTRUNNION_WASM_RELAXED={relaxed}", "-DCMAKE_C_FLAGS_RELEASE=-Oz", "-DTRUNNION_WERROR=ON"],
                              env=environment, stdout=out, stderr=out, cwd=ROOT)
    if made.returncode != 0:
        sys.exit(f"web.py: the module does not compile; see {log.relative_to(ROOT)}")
    return place / "trunnion_web.wasm"


def write_offline(files):
    """offline.js with the list of what it keeps, and a name that changes when one of them does."""
    digest = hashlib.sha256(b"".join((SITE / name).read_bytes() for name in (*files, *(f"trunnion/{m}" for m in MODULES))))
    text = (WEB / "page" / "offline.js").read_text()
    text = text.replace("@NAME@", f"trunnion-{digest.hexdigest()[:16]}").replace("'@FILES@'", str(["./", *files])[1:-1])
    (SITE / "offline.js").write_text(text)


def build():
    """Builds everything; returns the folder of the page."""
    wrappers = cross.prepare()
    modules = {name: build_module(folder, relaxed, wrappers) for name, (folder, relaxed) in MODULES.items()}
    shutil.rmtree(SITE, ignore_errors=True)
    PACKAGE.mkdir(parents=True)
    for name, path in modules.items():
        (PACKAGE / name).write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    for name in SCRIPTS:
        shutil.copy(WEB / name, PACKAGE)
    for name in PAGE:
        shutil.copy(WEB / "page" / name, SITE)
    shutil.copy(ROOT / "LICENSE", PACKAGE)
    subprocess.run([sys.executable, ROOT / "tools" / "digits.py"], check=True)
    shutil.copyfile(digits.cache_folder() / "data" / "digits.csv", PACKAGE / "digits.csv")
    write_offline((*PAGE, *CACHED))
    return SITE


def loaded_bytes(module):
    """What a visitor loads whose browser takes this module."""
    return sum((SITE / name).stat().st_size for name in (*PAGE, *CACHED, "offline.js", f"trunnion/{module}"))


class Handler(http.server.SimpleHTTPRequestHandler):
    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {".js": "text/javascript", ".wasm": "application/wasm"}

    def log_message(self, *_):
        pass


def server(port=0):
    """A server of the page on this machine."""
    return http.server.ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Handler, directory=SITE))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", type=int, metavar="PORT")
    o = parser.parse_args()
    build()
    for module in MODULES:
        size = loaded_bytes(module)
        print(f"{SITE.relative_to(ROOT)}: {size} bytes with {module}")
        if size > MOST_BYTES:
            sys.exit(f"web.py: that exceeds {MOST_BYTES} bytes")
    if o.serve:
        print(f"http://localhost:{o.serve}")
        server(o.serve).serve_forever()


if __name__ == "__main__":
    main()
