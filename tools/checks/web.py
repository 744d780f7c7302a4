"""web.py BUILD [node|all] [--picture FILE] — the npm package in Node, and the web page in headless Chromium, used as a person would.

node: only the package, and only if `make web` was run here before. all, the default: builds both, and drives the page
with Playwright, which is put into .deps/web. Results are compared with those of the command in BUILD. --picture writes
a picture of the page while it trains. What is not there (Node, Chromium, the language model) is skipped and said.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import web  # noqa: E402
from text import smollm2  # noqa: E402

PLAYWRIGHT = ROOT / ".deps" / "web"
STEPS = 40
PROMPT = "Once upon a time, the"
MESSAGE = "Name three colors."
ANSWER_TOKENS = 24
GPU_OPS = ["add", "mul", "exp", "matmul", "softmax", "layer_norm", "sum", "gather", "cross_entropy"]
PATIENCE = 300_000  # milliseconds; the page computes on a busy machine


def network(path):
    """An ONNX classifier of pictures of 8 by 8 pixels: red, green or blue."""
    from onnx import TensorProto, helper, save
    node = helper.make_node
    graph = helper.make_graph(
        [node("GlobalAveragePool", ["picture"], ["means"]), node("Flatten", ["means"], ["flat"]),
         node("Mul", ["flat", "ten"], ["scaled"]), node("Softmax", ["scaled"], ["chances"])], "colors",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("chances", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor("ten", TensorProto.FLOAT, [], [10.0])])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))


def png(color, side=32):
    """A picture of one color."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = (b"\0" + bytes(color) * side) * side
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


class Command:
    """What this machine's command computes."""

    def __init__(self, program):
        self.program = program

    def run(self, *arguments):
        return subprocess.run([self.program, *map(str, arguments), "--device", "cpu"], check=True, capture_output=True, text=True).stdout

    def digits(self):
        return self.run("train", "digits", "--seed", 7, "--steps", STEPS, "--json")

    def text(self):
        return PROMPT + json.loads(self.run("generate", "-m", smollm2.path(), "-p", PROMPT, "-n", 8, "--greedy", "--json"))["text"]

    def answer(self):
        asked = ("generate", "-m", smollm2.path(), "--chat", "-p", MESSAGE, "-n", ANSWER_TOKENS, "--greedy", "--json")
        return json.loads(self.run(*asked))["text"]


# ---- the modules ----------------------------------------------------------------------------------------------------

# Source, kernel, and the instruction that it consists of in each module, at least so many times.
VECTORS = [("objects_dot_base.dir/src/cpu/qtile.c.obj", name, {"simd": "i32x4.dot_i16x8_s", "relaxed": "dot_i8x16_i7x16_add"}, 32)
           for name in ("stripe_q4_1", "stripe_q8_0", "with_minimum_full")]
VECTORS.append(("objects_base.dir/src/cpu/tiles.c.obj", "tile_nhwc_4", {"simd": "f64x2.mul", "relaxed": "f32x4.relaxed_madd"}, 8))


def operations(disassembly):
    """The instructions of each function."""
    functions, current = {}, []
    for line in disassembly.splitlines():
        if match := re.match(r"[0-9a-f]+ func\[\d+\] <(.*)>", line):
            current = functions.setdefault(match[1], [])
        elif "|" in line and (words := line.split("|", 1)[1].split()):
            current.append(words[0])
    return functions


def test_vectors():
    """Kernels of both modules are vector code."""
    program = shutil.which("wasm-objdump")
    if not program:
        print("skipped: no wasm-objdump (package wabt), which counts instructions")
        return 0, 0, 1
    passed, failed = 0, 0
    for folder, _ in web.MODULES.values():
        for source, kernel, wanted, least in VECTORS:
            path = web.BUILD / folder / "CMakeFiles" / source
            found = operations(subprocess.run([program, "-d", path], capture_output=True, text=True).stdout).get(kernel, [])
            count = sum(wanted[folder] in operation for operation in found)
            passed, failed = passed + (count >= least), failed + (count < least)
            if count < least:
                print(f"{folder}: {kernel} has {count} of {wanted[folder]} among {len(found)} instructions, expected {least}")
    return passed, failed, 0


# ---- the package ----------------------------------------------------------------------------------------------------

def test_package(command, folder):
    """Runs tests/web/package.mjs; its counts."""
    node = shutil.which("node")
    if not node:
        print("skipped: no Node")
        return 0, 0, 1
    model = [smollm2.path(), command.text()] if smollm2.is_there() else []
    environment = dict(os.environ)
    try:
        network(folder / "colors.onnx")
        environment["NETWORK"] = str(folder / "colors.onnx")
    except ImportError:
        print("skipped: no onnx package, with which the test makes a model")
    result = subprocess.run([node, ROOT / "tests" / "web" / "package.mjs", web.PACKAGE, command.digits(), *model],
                            capture_output=True, text=True, env=environment)
    print(result.stdout, result.stderr, sep="", end="", flush=True)
    words = result.stdout.strip().splitlines()[-1].split() if result.stdout.strip() else []
    counts = [int(word) for word in words[::2]] if len(words) == 6 else [0, 1, 0]
    return counts[0], max(counts[1], int(result.returncode != 0)), counts[2]


# ---- the types ------------------------------------------------------------------------------------------------------

# What trunnion.js exports, and of a class the names of its methods and accessors, also those that it inherits.
EXPORTS = """
const all = await import(process.argv[1]), names = {};
for (const [name, value] of Object.entries(all)) {
  names[name] = [];
  for (let p = value.prototype; p && p !== Object.prototype && p !== Error.prototype; p = Object.getPrototypeOf(p))
    names[name].push(...Object.getOwnPropertyNames(p));
}
console.log(JSON.stringify(names));
"""


def missing_names(package, node):
    """Declared classes, functions and members that trunnion.js does not have, and exports that are not declared."""
    text = (package / "index.d.ts").read_text()
    source = (package / "trunnion.js").read_text()
    there = json.loads(subprocess.run([node, "--input-type=module", "-e", EXPORTS, package / "trunnion.js"], check=True,
                                      capture_output=True, text=True).stdout)
    declared = re.findall(r"^export (?:function|class) (\w+)", text, re.M)
    wrong = sorted(set(declared) ^ set(there))
    for name, body in re.findall(r"^export class (\w+)[^{]*{\n(.*?)^}", text, re.M | re.S):
        members = re.findall(r"^  (?:readonly )?(\w+)\??[:(]", body, re.M)
        wrong += [f"{name}.{m}" for m in members if m not in there.get(name, ()) and not re.search(rf"(this\.|^  ){m} = ", source, re.M)]
    return wrong


def test_types(folder, package):
    """tests/web/types.ts compiles with index.d.ts, and index.d.ts declares what trunnion.js has."""
    compiler, node = shutil.which("tsc"), shutil.which("node")
    if not compiler or not node:
        print("skipped: no TypeScript (package node-typescript)" if node else "skipped: no Node")
        return 0, 0, 1
    place = folder / "types"
    shutil.copytree(package, place / "node_modules" / "trunnion")
    shutil.copy(ROOT / "tests" / "web" / "types.ts", place)
    (place / "package.json").write_text('{"type": "module"}')
    compiled = subprocess.run([compiler, "--noEmit", "--strict", "--noUncheckedIndexedAccess", "--target", "es2022", "--lib",
                               "es2022,dom", "--module", "nodenext", "types.ts"], cwd=place, capture_output=True, text=True)
    wrong = compiled.stdout.splitlines() if compiled.returncode else []
    wrong += [f"index.d.ts and trunnion.js do not agree on {name}" for name in missing_names(package, node)]
    print(*(f"types: {line}" for line in wrong), sep="\n", end="\n" if wrong else "")
    return int(not wrong), int(bool(wrong)), 0


# ---- the page -------------------------------------------------------------------------------------------------------

class Person:
    """Uses the page: each method that begins with `tries` is a test."""

    def __init__(self, context, url, command, folder, picture):
        self.context, self.url, self.command, self.folder, self.picture = context, url, command, folder, picture
        self.page = context.pages[0] if context.pages else context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.errors = []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def opens(self):
        self.page.goto(self.url)
        self.page.wait_for_function("document.getElementById('engine').textContent.startsWith('Version')")

    def text(self, place):
        return self.page.inner_text(f"#{place}")

    def until(self, condition, argument=None):
        self.page.wait_for_function(condition, arg=argument)

    def tab(self, name):
        self.page.click(f"nav button[data-part={name}]")

    def drops(self, zone, name, data):
        """Drops a file with these bytes on a zone."""
        transfer = self.page.evaluate_handle(
            "([name, data]) => { const t = new DataTransfer(); t.items.add(new File([new Uint8Array(data)], name)); return t; }",
            [name, list(data)])
        self.page.dispatch_event(f"#{zone}", "drop", {"dataTransfer": transfer})

    def asks(self, message):
        """Sends a message; returns the answer, and how many different texts were seen while it grew."""
        self.page.fill("#message", message)
        self.page.evaluate("""() => {
            window.seen = new Set();
            window.watch = new MutationObserver(() => window.seen.add(document.querySelector('#talk').lastElementChild?.textContent));
            window.watch.observe(document.querySelector('#talk'), { childList: true, subtree: true, characterData: true });
        }""")
        self.page.click("#send")
        self.until("!document.getElementById('send').disabled")
        return self.page.inner_text("#talk .assistant:last-child"), self.page.evaluate("window.seen.size")

    # ---- the tests

    def tries_training(self):
        self.opens()
        self.tab("train")
        self.page.fill("#steps", "500")
        self.page.click("#start")
        self.until("document.getElementById('progress').textContent.startsWith('step')")
        # The page's own thread is free while the Worker computes.
        slowest = self.page.evaluate("""() => new Promise((done) => {
            let last = performance.now(), most = 0, count = 0;
            const tick = () => {
                most = Math.max(most, performance.now() - last);
                last = performance.now();
                if (++count === 20) done(most); else setTimeout(tick, 10);
            };
            tick();
        })""")
        assert slowest < 1000, f"the page stood still for {slowest} ms"
        self.until("document.getElementById('progress').textContent.endsWith('Done.')")
        accuracy = float(self.text("progress").split("test accuracy ")[1].split(" %")[0])
        assert accuracy >= 97, f"the digits reach {accuracy} %"
        colored = self.page.evaluate("""() => {
            const c = document.getElementById('curve'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            let blue = 0, orange = 0;
            for (let i = 0; i < d.length; i += 4) {
                if (d[i + 2] > 180 && d[i] < 120 && d[i + 3] > 200) blue++;
                if (d[i] > 180 && d[i + 2] < 60 && d[i + 3] > 200) orange++;
            }
            return [blue, orange];
        }""")
        assert min(colored) > 300, f"the curve has {colored} pixels of accuracy and loss"
        box = self.page.locator("#digit").bounding_box()
        x, y = box["x"] + 80, box["y"]
        self.page.mouse.move(x, y + 25)
        self.page.mouse.down()
        self.page.mouse.move(x, y + 80)
        self.page.mouse.move(x, y + 135)
        self.page.mouse.up()
        self.page.wait_for_selector("#guess li")
        assert self.page.locator("#guess li").count() == 3, "three guesses for a drawing"
        if self.picture:
            self.page.screenshot(path=self.picture, full_page=True)
        print(f"page: digits {accuracy} %, {self.text('progress')}; drawn 1: {self.page.inner_text('#guess li:first-child')}")

    def tries_bits(self):
        """Both modules compute the losses of the command."""
        expected = json.loads(self.command.digits())
        for relaxed in (False, True):
            loss, fused = self.page.evaluate("""async ([relaxed, steps]) => {
                const { load, hasFusedSimd } = await import('/trunnion/trunnion.js');
                if (relaxed && !hasFusedSimd()) return [0, false];
                const trunnion = await load({ relaxed });
                const table = await (await fetch('/trunnion/digits.csv')).arrayBuffer();
                const run = await trunnion.trainDigits(table, { seed: 7 });
                let loss;
                for (let i = 0; i < steps; i++) loss = await run.step();
                return [loss, true];
            }""", [relaxed, STEPS])
            if not fused:
                print("skipped: this browser on this processor has no fused relaxed SIMD")
                continue
            assert loss == expected["final_loss"], f"relaxed {relaxed}: loss {loss}, of the command {expected['final_loss']}"

    def tries_kernel_texts(self):
        """The browser's compiler accepts kernels in WGSL: the tests' cases, random programs, and all templates."""
        if self.page.locator("#device option[value=webgpu]").is_disabled():
            print("skipped:", self.page.inner_text("#device option[value=webgpu]"))
            return
        folder = self.folder / "texts"
        folder.mkdir()
        for test, *count in (("test_render", "30"), ("test_workgroup_kernels",)):
            subprocess.run([self.command.program.with_name(test), "--sources", folder, *count], check=True, capture_output=True)
        texts = {path.name: path.read_text() for path in sorted(folder.glob("*.wgsl"))}
        refused = self.page.evaluate("""async (texts) => {
            const adapter = await navigator.gpu.requestAdapter(), device = await adapter.requestDevice(), refused = [];
            for (const [name, code] of Object.entries(texts)) {
                device.pushErrorScope('validation');
                const { messages } = await device.createShaderModule({ code }).getCompilationInfo();
                const error = await device.popErrorScope(), first = messages.find((message) => message.type === 'error');
                if (error || first) refused.push(`${name}:${first?.lineNum}: ${first?.message ?? error.message}`);
            }
            return refused;
        }""", texts)
        assert len(texts) > 150, f"only {len(texts)} kernels were written"
        assert not refused, f"{len(refused)} of {len(texts)} kernels are refused: {refused[:3]}"
        print(f"page: {len(texts)} kernels in WGSL are accepted")

    def tries_webgpu(self):
        """The module waits for the browser's WebGPU: operations, a training, and a network that moves to the GPU."""
        self.tab("train")
        if self.page.locator("#device option[value=webgpu]").is_disabled():
            print("skipped:", self.page.inner_text("#device option[value=webgpu]"))
            return
        found = self.page.evaluate("""async (only) => {
            const { load } = await import('/trunnion/trunnion.js');
            const lines = [], trunnion = await load({ onLine: (line) => lines.push(line) });
            const found = await trunnion.certify({ device: 'webgpu', only, sample: 8 });
            const table = await (await fetch('/trunnion/digits.csv')).arrayBuffer(), losses = [];
            for (const device of trunnion.devices) {
                const run = await trunnion.trainDigits(table, { seed: 7, device });
                losses.push([await run.step(), await run.step(), await run.step()]);
                await run.close();
            }
            return { ...found, losses, refused: lines.filter((line) => line.includes('rejected')) };
        }""", GPU_OPS)
        print(f"ran on: webgpu: the browser's, on SwiftShader; {found['passed']} cases passed, {found['failed']} failed; "
              f"losses of cpu and webgpu {found['losses']}")
        assert found["passed"] > 40 and found["failed"] == 0, f"operations on WebGPU: {found['ops']}"
        assert not found["refused"], f"the browser's compiler refused a kernel: {found['refused']}"
        for cpu, gpu in zip(*found["losses"]):
            assert abs(cpu - gpu) <= 1e-5 * abs(cpu), f"losses {found['losses']}"
        self.tab("classify")
        network(self.folder / "moving.onnx")
        self.page.select_option("#scaling", "unit")
        self.drops("network-drop", "moving.onnx", (self.folder / "moving.onnx").read_bytes())
        self.drops("picture-drop", "green.png", png((0, 200, 0)))
        self.until("document.querySelector('#classes li')?.textContent.startsWith('class 1')")
        before = self.text("classes")
        self.page.evaluate("document.getElementById('classes').replaceChildren()")
        self.page.select_option("#device", "webgpu")
        self.until("document.querySelector('#classes li')?.textContent.startsWith('class 1')")
        assert self.text("classes") == before, f"the GPU says {self.text('classes')}, the processor {before}"
        self.page.select_option("#device", "cpu")

    def tries_a_broken_file(self):
        self.tab("chat")
        self.drops("model-drop", "letter.gguf", b"Dear Sir or Madam")
        self.until("document.getElementById('chat-error').textContent.includes('not a GGUF file')")
        assert self.page.is_disabled("#send"), "nothing can be sent without a model"
        if smollm2.is_there():
            cut = self.folder / "cut.gguf"
            with open(smollm2.path(), "rb") as whole:
                cut.write_bytes(whole.read(5_000_000))
            self.page.set_input_files("#model-file", cut)
            self.until("/byte|file/.test(document.getElementById('chat-error').textContent) && "
                       "document.getElementById('chat-error').textContent.includes('cut.gguf')")
            print("page: a truncated model:", self.text("chat-error"))
        self.tab("classify")
        self.drops("network-drop", "letter.onnx", b"Dear Sir or Madam")
        self.until("document.getElementById('classify-error').textContent.includes('letter.onnx')")
        self.drops("picture-drop", "letter.png", b"Dear Sir or Madam")
        self.until("document.getElementById('classify-error').textContent.includes('not a picture')")

    def tries_classifying(self):
        self.tab("classify")
        network(self.folder / "colors.onnx")
        (self.folder / "labels.txt").write_text("red\ngreen\nblue\n")
        self.page.set_input_files("#labels-file", self.folder / "labels.txt")
        self.page.select_option("#scaling", "unit")
        self.drops("network-drop", "colors.onnx", (self.folder / "colors.onnx").read_bytes())
        for name, color in {"red": (255, 0, 0), "blue": (10, 10, 250)}.items():
            self.drops("picture-drop", f"{name}.png", png(color))
            self.until("(name) => document.querySelector('#classes li')?.textContent.startsWith(name)", name)
            assert self.page.locator("#classes li").count() == 3, "three classes are listed"

    def tries_chatting(self):
        self.tab("chat")
        self.page.set_input_files("#model-file", smollm2.path())
        self.until("!document.getElementById('send').disabled")
        assert "could not be kept" not in self.text("model-state"), self.text("model-state")
        self.page.click("summary")
        self.page.fill("#temperature", "0")
        self.page.fill("#most", str(ANSWER_TOKENS))
        answer, steps = self.asks(MESSAGE)
        expected = self.command.answer()
        assert answer.strip() == expected.strip(), f"the page answers {answer!r}, the command {expected!r}"
        assert steps >= ANSWER_TOKENS // 2, f"the answer came in {steps} steps only"
        print("page:", self.text("speed"))
        # A second message computes only its own tokens; it can be stopped.
        self.page.fill("#most", "200")
        self.page.fill("#message", "Tell me a long story.")
        self.page.click("#send")
        self.until("document.querySelectorAll('#talk .assistant').length === 2 && "
                   "document.querySelector('#talk').lastElementChild.textContent.length > 5")
        self.page.click("#stop")
        self.until("document.getElementById('speed').textContent.includes('cancelled')")

    def tries_reloading(self):
        self.page.reload()
        self.until("!document.getElementById('send').disabled")
        assert smollm2.path().name in self.text("model-state"), f"the model is kept: {self.text('model-state')}"
        self.page.click("summary")
        self.page.fill("#temperature", "0")
        self.page.fill("#most", str(ANSWER_TOKENS))
        assert self.asks(MESSAGE)[0].strip() == self.command.answer().strip(), "the kept model answers as before"

    def tries_without_network(self, server):
        self.until("navigator.serviceWorker.controller !== null")
        server.shutdown()
        server.server_close()
        self.page.reload()
        self.until("document.getElementById('engine').textContent.startsWith('Version')")
        self.tab("train")
        self.page.fill("#steps", "20")
        self.page.click("#start")
        self.until("document.getElementById('progress').textContent.endsWith('Done.')")

    def tries_silence(self):
        """Nothing went wrong that only the browser's console tells, but what a server that has ended causes."""
        wrong = [text for text in self.errors if "ERR_CONNECTION_REFUSED" not in text]
        assert not wrong, f"the console has {wrong}"


def prepare_playwright():
    """Its Python; None if it cannot be had."""
    python = PLAYWRIGHT / "venv" / "bin" / "python"
    if not python.exists():
        made = subprocess.run([sys.executable, "-m", "venv", PLAYWRIGHT / "venv"])
        made = made if made.returncode else subprocess.run([python, "-m", "pip", "install", "-q", "playwright"])
        if made.returncode:
            shutil.rmtree(PLAYWRIGHT, ignore_errors=True)
            return None
    sys.path += [str(path) for path in (PLAYWRIGHT / "venv" / "lib").glob("python3*/site-packages")]
    return python


def test_page(command, folder, picture):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser or not prepare_playwright():
        print("skipped: no Chromium" if not browser else "skipped: Playwright could not be fetched with pip")
        return 0, 0, 1
    from playwright.sync_api import sync_playwright
    server = web.server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    passed, failed, skipped = 0, 0, 0
    with sync_playwright() as play:
        context = play.chromium.launch_persistent_context(str(folder / "profile"), executable_path=browser, headless=True,
                                                          viewport={"width": 820, "height": 720},
                                                          args=["--no-sandbox", "--enable-unsafe-webgpu"])
        print(f"ran on: cpu: WebAssembly in Chromium {context.browser.version if context.browser else ''}".rstrip())
        person = Person(context, f"http://localhost:{server.server_address[1]}/", command, folder, picture)
        tests = [person.tries_training, person.tries_bits, person.tries_kernel_texts, person.tries_webgpu, person.tries_a_broken_file, person.tries_classifying]
        if smollm2.is_there():
            tests += [person.tries_chatting, person.tries_reloading]
        else:
            print("skipped: no language model (tools/text/smollm2.py)")
            skipped += 1
        tests += [lambda: person.tries_without_network(server), person.tries_silence]
        for test in tests:
            try:
                test()
                passed += 1
            except Exception as error:  # a test that fails must not hide the others
                failed += 1
                print(f"page: {getattr(test, '__name__', 'tries_without_network')}: {error}\nconsole: {person.errors[-3:]}", flush=True)
        context.close()
    return passed, failed, skipped


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("part", nargs="?", choices=("node", "all"), default="all")
    parser.add_argument("--picture")
    o = parser.parse_args()
    if o.part == "node" and not web.SITE.exists():
        print("skipped: `make web` was not run here\n0 passed, 0 failed, 1 skipped")
        return 0
    web.build()
    for module in web.MODULES:
        size = web.loaded_bytes(module)
        print(f"size: the page with {module} {size} bytes")
        if size > web.MOST_BYTES:
            print(f"that exceeds {web.MOST_BYTES} bytes\n0 passed, 1 failed, 0 skipped")
            return 1
    command = Command(pathlib.Path(o.build).resolve() / "trunnion")
    with tempfile.TemporaryDirectory(prefix="trunnion-web-") as name:
        folder = pathlib.Path(name)
        counts = [test_package(command, folder)]
        if o.part == "all":
            counts += [test_types(folder, web.PACKAGE), test_vectors(), test_page(command, folder, o.picture)]
    passed, failed, skipped = map(sum, zip(*counts))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
