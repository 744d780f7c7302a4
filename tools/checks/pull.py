"""pull.py BUILD — `trunnion pull` and `trunnion list` against a server of its own on loopback.

Downloads that are whole, cut off, continued, refused by a server that cannot continue, of a wrong checksum, absent;
folders and GGUF files of a hub; names that would lead out of a folder. Needs the program curl.
"""

import hashlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

DATA = bytes(i * 7 % 251 for i in range(300_000))
SUM = hashlib.sha256(DATA).hexdigest()
CONFIG = json.dumps({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                     "num_attention_heads": 4, "max_position_embeddings": 128, "vocab_size": 100}).encode()


class Site(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cuts = 0         # answers to /cut that end early
    ranges = []      # of what was asked
    tokens = []

    def log_message(self, *words):
        pass

    def send(self, data, cut=None, can_continue=True, pause=0):
        first = 0
        asked = self.headers.get("Range")
        Site.ranges.append(asked)
        if asked and can_continue:
            first = int(asked.split("=")[1].split("-")[0])
            if first >= len(data):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - first))
        self.end_headers()
        for at in range(first, len(data), 30_000) if pause else ():
            self.wfile.write(data[at:at + 30_000])
            self.wfile.flush()
            time.sleep(pause)
        if not pause:
            self.wfile.write(data[first:cut and first + cut])
        if cut:
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True

    def do_GET(self):
        path = self.path.split("?")[0]
        Site.tokens.append(self.headers.get("Authorization"))
        if path == "/cut.gguf" and Site.cuts > 0:
            Site.cuts -= 1
            self.send(DATA, cut=100_000)
        elif path in ("/whole.gguf", "/cut.gguf", "/name"):
            self.send(DATA)
        elif path == "/slow.gguf":
            self.send(DATA, pause=0.05)
        elif path == "/plain.gguf":
            self.send(DATA, can_continue=False)
        elif path == "/away.gguf":
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path in FILES:
            self.send(FILES[path])
        else:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()


def listing(*files, sums=True):
    rows = []
    for name, data in files:
        row = {"type": "file", "path": name, "size": len(data)}
        if name.endswith((".safetensors", ".gguf")):
            row["lfs"] = {"oid": hashlib.sha256(data if sums else b"other").hexdigest(), "size": len(data)}
        rows.append(row)
    return json.dumps(rows + [{"type": "directory", "path": "onnx", "size": 0}]).encode()


POOLING = b'{"pooling_mode_mean_tokens": true}'
FOLDER = (("config.json", CONFIG), ("1_Pooling/config.json", POOLING), ("model.safetensors", DATA),
          ("pytorch_model.bin", b"no"), ("onnx/model.json", b"no"), ("README.md", b"no"), (".gitattributes", b"no"))
QUANTS = (("m-Q4_K_M.gguf", DATA), ("m-Q8_0.gguf", b"x"), ("m-Q8_0-fast.gguf", b"x"), ("sub/deep-F16.gguf", DATA))
MANY = (("config.json", CONFIG), *((f"{i}.json", b"{}") for i in range(998)))  # and a folder: 1000 entries
FILES = {"/api/models/me/folder/tree/main": listing(*FOLDER), "/api/models/me/wrong/tree/main": listing(*FOLDER, sums=False),
         "/api/models/me/quants/tree/main": listing(*QUANTS),
         "/api/models/me/evil/tree/main": listing(("config.json", CONFIG), ("1_x/../../evil.json", b"{}")),
         "/api/models/me/odd/tree/main": b"{}", "/api/models/me/many/tree/main": listing(*MANY)}
for repository, files in (("folder", FOLDER), ("wrong", FOLDER), ("quants", QUANTS), ("evil", (("config.json", CONFIG),))):
    FILES |= {f"/me/{repository}/resolve/main/{name}": data for name, data in files}


class Suite:
    def __init__(self, program, cache, port):
        self.program, self.models, self.at = program, cache / "models", f"http://127.0.0.1:{port}"
        self.environment = os.environ | {"TRUNNION_CACHE": str(cache), "HF_ENDPOINT": self.at, "HF_TOKEN": "secret"}
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            self.environment.pop(name, None)
        self.passed = self.failed = 0

    def expect(self, good, text):
        self.passed += bool(good)
        self.failed += not good
        if not good:
            print(f"failed: {text}", flush=True)

    def run(self, *words, **other):
        return subprocess.run([self.program, *words], capture_output=True, text=True, timeout=120,
                              env=self.environment | other)

    def pulls(self, what, *words, name, data=DATA):
        got = self.run("pull", what, *words, "--json")
        self.expect(got.returncode == 0, f"pull {what}: {got.stderr}")
        file = self.models / name
        self.expect(file.is_file() and file.read_bytes() == data, f"pull {what}: another file")
        self.expect(not list(self.models.glob("*.part*")), f"pull {what}: leaves {list(self.models.glob('*.part*'))}")
        return json.loads(got.stdout) if got.returncode == 0 else {}

    def refuses(self, *words, say, code=1, leaves=(), **other):
        got = self.run("pull", *words, **other)
        said = " ".join(got.stderr.split())
        self.expect(got.returncode == code and say in said, f"pull {words}: exit {got.returncode}, {said}")
        there = sorted(p.name for p in self.models.glob("*.part")) if self.models.exists() else []
        self.expect(there == list(leaves), f"pull {words}: leaves {there}")

    def together(self):
        """Three processes that download one file, each begun while the one before has a part of it."""
        pulls = []
        for _ in range(3):
            pulls.append(subprocess.Popen([self.program, "pull", f"{self.at}/slow.gguf"], env=self.environment, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            time.sleep(0.15)
        told = [p.communicate(timeout=120)[1] for p in pulls]
        self.expect(not any(p.returncode for p in pulls), f"three at once: {told}")
        self.expect((self.models / "slow.gguf").read_bytes() == DATA, "three at once: another file")
        self.expect(any("waiting for it" in text for text in told), f"three at once: none waited: {told}")
        self.expect(not list(self.models.glob("*.part*")), "three at once: a partial file is left")
        (self.models / "slow.gguf").unlink()

    def addresses(self):
        told = self.pulls(f"{self.at}/whole.gguf", name="whole.gguf")
        self.expect(told.get("bytes") == len(DATA) and told.get("files") == 1, f"pull says {told}")
        again = self.run("pull", f"{self.at}/whole.gguf")
        self.expect(again.returncode == 0 and "there already" in " ".join(again.stdout.split()), f"again: {again.stdout}{again.stderr}")
        self.pulls(f"{self.at}/name?download=true#x", name="name")
        self.pulls(f"{self.at}/whole.gguf", "--name", "mine.gguf", "--sha256", SUM.upper(), name="mine.gguf")
        self.refuses(f"{self.at}/whole.gguf", "--name", "mine.gguf", "--sha256", "0" * 64, say="another SHA-256")
        self.refuses(f"{self.at}/whole.gguf", "--name", "bad.gguf", "--sha256", "0" * 64, say=f"the SHA-256 {SUM}, expected 000")
        self.refuses(f"{self.at}/absent.gguf", say="does not exist (HTTP status 404)")
        self.refuses(f"{self.at}/away.gguf", say="only http and https are supported")
        self.refuses("file:///etc/hostname", "--name", "x", say="only http and https are supported")
        self.refuses("http://127.0.0.1:1/x.gguf", say="does not answer", leaves=())
        self.refuses(f"{self.at}/", say="choose one with --name", code=2)
        self.refuses(f"{self.at}/whole.gguf", "--name", "../x", say="--name", code=2)
        self.refuses(f"{self.at}/whole.gguf", "--sha256", "12", say="--sha256", code=2)
        self.refuses("nonsense", say="neither an address", code=2)
        self.refuses(f"{self.at}/other.gguf", say="'curl'", PATH="/nonexistent")

    def interrupted(self):
        Site.cuts, Site.ranges = 2, []
        self.pulls(f"{self.at}/cut.gguf", name="cut.gguf")
        self.expect(Site.ranges == [None, "bytes=100000-", "bytes=200000-"], f"ranges {Site.ranges}")
        (self.models / "cut.gguf").unlink()
        Site.cuts, Site.ranges = 1000, []
        part = self.models / "cut.gguf.part"
        part.write_bytes(DATA[:50_000])
        (self.models / "cut.gguf.part.url").write_text(f"{self.at}/other")  # it is another file's: not continued
        broken, Site.send = Site.send, lambda self, data, **how: setattr(self, "close_connection", True)
        self.refuses(f"{self.at}/cut.gguf", say="the same command continues it")
        Site.send = broken
        Site.cuts = 1
        got = self.run("pull", f"{self.at}/cut.gguf")
        self.expect(got.returncode == 0 and (self.models / "cut.gguf").read_bytes() == DATA, f"cut: {got.stderr}")
        (self.models / "cut.gguf").unlink()
        part.write_bytes(DATA[:50_000])
        (self.models / "cut.gguf.part.url").write_text(f"{self.at}/cut.gguf")
        listed = json.loads(self.run("list", "--json").stdout)["models"]
        row = next((m for m in listed if m["name"] == "cut.gguf.part"), {})
        self.expect(row.get("complete") is False and row.get("bytes") == 50_000, f"list: {listed}")
        Site.cuts, Site.ranges = 0, []
        self.pulls(f"{self.at}/cut.gguf", name="cut.gguf")
        self.expect(Site.ranges == ["bytes=50000-"], f"ranges {Site.ranges}")
        for name in ("plain.gguf", "whole2.gguf"):  # a server that cannot continue; all of it is there, and more
            size = 50_000 if name == "plain.gguf" else len(DATA) + 10
            url = f"{self.at}/{name.replace('2', '')}"
            (self.models / f"{name}.part").write_bytes(b"x" * size)
            (self.models / f"{name}.part.url").write_text(url)
            self.pulls(url, "--name", name, name=name)

    def hub(self):
        Site.tokens = []
        told = self.run("pull", "me/folder", "--json")
        self.expect(told.returncode == 0 and json.loads(told.stdout)["files"] == 3, f"folder: {told.stdout}{told.stderr}")
        self.expect(set(Site.tokens) == {"Bearer secret"}, f"tokens {Site.tokens}")
        folder = self.models / "folder"
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        self.expect(files == ["1_Pooling/config.json", "config.json", "model.safetensors"], f"folder: {files}")
        self.expect("model.safetensors" in told.stderr, f"folder: names no files: {told.stderr}")
        quiet = self.run("pull", "me/folder", "--name", "quiet", "--quiet", "--json")
        self.expect(quiet.returncode == 0 and not quiet.stderr, f"--quiet: {quiet.stderr}")
        (folder / "model.safetensors").unlink()
        fits = self.run("fit", "folder", "--json")
        self.expect(fits.returncode == 0, f"fit of a name: {fits.stderr}")
        self.refuses("me/wrong", say="expected", leaves=("wrong.part",))
        shutil.rmtree(self.models / "wrong.part")
        self.refuses("me/evil", say="leads out of its folder", leaves=("evil.part",))
        self.expect(not (self.models / "evil.json").exists(), "a file outside its folder")
        shutil.rmtree(self.models / "evil.part")
        (self.models / "mixed.part").mkdir()  # an interrupted download of another repository, with files of the same sizes
        (self.models / "mixed.part/config.json").write_bytes(b" " * len(CONFIG))
        (self.models / "mixed.part/model.safetensors").write_bytes(b"x" * len(DATA))
        mixed = self.run("pull", "me/folder", "--name", "mixed")
        self.expect(mixed.returncode == 0 and (self.models / "mixed/config.json").read_bytes() == CONFIG
                    and (self.models / "mixed/model.safetensors").read_bytes() == DATA, f"files of another: {mixed.stderr}")
        self.refuses("me/many", say="1000 files or more")
        self.refuses("me/odd", say="not a list of files")
        self.refuses("me/absent", say="HTTP status 404")
        self.refuses("me/quants", say="me/quants:FILE")
        self.pulls("me/quants:q4_k_m", name="m-Q4_K_M.gguf")
        self.pulls("me/quants:m-Q8_0.gguf", name="m-Q8_0.gguf", data=b"x")
        told = self.pulls("me/quants:F16", name="deep-F16.gguf")
        self.expect(told.get("name") == "deep-F16.gguf", f"a file of a subfolder: {told}")
        Site.ranges = []
        self.pulls("me/quants:F16", name="deep-F16.gguf")
        self.expect(len(Site.ranges) == 1, f"a file that is there with its checksum is fetched again: {Site.ranges}")
        self.refuses("me/quants:Q8_0", say="2 GGUF files")
        self.refuses("me/quants:Q2_K", say="0 GGUF files")
        self.refuses("me/folder/more", say="neither an address", code=2)
        kinds = {m["name"]: m["kind"] for m in json.loads(self.run("list", "--json").stdout)["models"]}
        self.expect(kinds.get("m-Q8_0.gguf") == "gguf" and kinds.get("folder") == "folder", f"list: kinds {kinds}")
        listed = self.run("list")
        self.expect(listed.returncode == 0 and "folder" in listed.stdout and "293.0 KiB" in listed.stdout,
                    f"list: {listed.stdout}{listed.stderr}")


def main():
    if not shutil.which("curl"):
        print("skipped: no curl\n0 passed, 0 failed, 1 skipped")
        return 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.daemon_threads = True
    server.handle_error = lambda *about: None  # of connections that this closes itself
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="trunnion-pull-") as folder:
        suite = Suite(pathlib.Path(sys.argv[1]).resolve() / "trunnion", pathlib.Path(folder), server.server_address[1])
        empty = suite.run("list")
        suite.expect(empty.returncode == 0 and "no models" in empty.stdout, f"list of nothing: {empty.stdout}")
        suite.together()
        suite.addresses()
        suite.interrupted()
        suite.hub()
    server.shutdown()
    print(f"{suite.passed} passed, {suite.failed} failed, 0 skipped")
    return 1 if suite.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
