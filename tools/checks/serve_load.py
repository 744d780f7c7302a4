"""serve_load.py BUILD [SECONDS [CLIENTS]] — `trunnion serve` under load: many clients at once, the real one among them.

First OpenAI's Python client, as its users call it: answers, streams, schemas, embeddings, models, errors. Then CLIENTS
threads (default 64) for SECONDS (default 600) on loopback, each request of a random kind: short and long, whole and
streamed, by a schema, embeddings; clients that go away in the middle, that read slowly, bodies that are too long or no
JSON. Every answer has a code that it may have (no 500), no request waits longer than a minute, the server answers
afterwards as before, and its memory does not grow. The client is fetched into .deps/openai once.
"""

import collections
import json
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from text import smollm2  # noqa: E402
from checks import serve  # noqa: E402
from checks.command import Report  # noqa: E402

VENV = ROOT / ".deps" / "openai"
LONGEST = 60        # seconds that a request may take
GROWTH = 24 << 20   # bytes of memory over the whole time
BUSY = 503
PARALLEL = 16

CLIENT = """
import json, sys
import openai
port, key, name = sys.argv[1:4]
client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)
talk = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Name a color."}]
ask = dict(model=name, messages=talk, temperature=0, max_tokens=12)
whole = client.chat.completions.create(**ask)
pieces = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
assert whole.choices[0].message.content == text, (whole, text)
assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
schema = {"type": "object", "properties": {"color": {"type": "string", "maxLength": 10}}, "required": ["color"],
          "additionalProperties": False}
answer = client.chat.completions.create(model=name, messages=talk, temperature=0, max_tokens=60, response_format={
    "type": "json_schema", "json_schema": {"name": "color", "schema": schema, "strict": True}})
assert set(json.loads(answer.choices[0].message.content)) == {"color"}, answer
chances = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2).choices[0].logprobs
assert len(chances.content) == 12 and chances.content[0].top_logprobs[0].logprob <= 0
plain = client.completions.create(model=name, prompt="Once upon a time", max_tokens=8, temperature=0, stop=["."])
assert plain.choices[0].finish_reason in ("stop", "length") and plain.usage.prompt_tokens == 4
vectors = client.embeddings.create(model="small-encoder", input=["hello", "hello world"]).data
assert len(vectors) == 2 and len(vectors[0].embedding) == 16
assert [m.id for m in client.models.list()] == [name, "small-encoder"] and client.models.retrieve(name).id == name
for error, call in ((openai.NotFoundError, lambda: client.completions.create(model="other", prompt="x")),
                    (openai.BadRequestError, lambda: client.completions.create(model=name, prompt="")),
                    (openai.AuthenticationError, lambda: client.with_options(api_key="no").models.list())):
    try:
        call()
        raise SystemExit(f"{error} was not raised")
    except error as raised:
        assert raised.body["message"], raised.body
print("openai", openai.__version__)
"""


def fetch_client():
    """Its Python; None if pip cannot fetch it."""
    python = VENV / "bin" / "python"
    if not python.exists() and subprocess.run([sys.executable, "-m", "venv", VENV]).returncode != 0:
        return None
    wanted = [python, "-m", "pip", "install", "-q", "openai>=1.40"]
    return python if subprocess.run(wanted, stdout=subprocess.DEVNULL).returncode == 0 else None


def check_client(report, server):
    python = fetch_client()
    if not python:
        report.skip("pip could not fetch openai")
        return
    result = subprocess.run([python, "-c", CLIENT, str(server.port), serve.KEY, smollm2.path().stem],
                            capture_output=True, text=True)
    report.add(result.returncode == 0, f"OpenAI's client: {(result.stdout + result.stderr).strip()[-800:]}")


# ---- load ------------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {
    "type": "object", "properties": {"n": {"type": "integer"}, "w": {"enum": ["a", "b"]}}, "required": ["n", "w"]}}}


def go_away(server, noise):
    """Closes the connection while the answer is written, or before."""
    s = serve.open_request(server, stream=noise.random() < 0.5, max_tokens=noise.randint(1, 200))
    time.sleep(noise.random() * 2)
    s.close()
    return 200


def read_slowly(server, noise):
    s = serve.open_request(server, stream=True, max_tokens=noise.randint(1, 60), grammar=None)
    data, end = b"", time.monotonic() + LONGEST
    while b"[DONE]" not in data and b"HTTP/1.1 503" not in data and time.monotonic() < end:
        time.sleep(0.05)
        part = s.recv(200)
        if not part:
            break
        data += part
    s.close()
    return int(data[9:12] or b"0") if b"[DONE]" in data or data.startswith(b"HTTP/1.1 503") else 0


def ask_wrongly(server, noise):
    body = noise.choice([b"{", b"\xff", b"[1, 2", b'{"messages": 1}', b'{"prompt": "' + b"x" * 100000 + b'"}',
                         json.dumps({"prompt": "word " * 3000}).encode(), noise.randbytes(300)])
    path = noise.choice(["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
    try:
        return server.call("POST", path, body)[0]
    except (ConnectionError, socket.timeout):
        return 413 if len(body) > 65536 else 0  # refused while the body was still being sent


def ask_chat(server, noise):
    return server.post("/v1/chat/completions", messages=serve.user(f"Tell me about {noise.randint(1, 99)}."),
                       max_tokens=noise.randint(1, 40), seed=noise.randint(0, 9))[0]


def ask_schema(server, noise):
    return server.post("/v1/chat/completions", messages=serve.user("A number?"), max_tokens=20,
                       seed=noise.randint(0, 9), response_format=SCHEMA)[0]


def stream_text(server, noise):
    _, good = server.events("/v1/completions", prompt="Once " * noise.randint(1, 200), max_tokens=noise.randint(1, 40))
    return 200 if good else BUSY


def embed(server, noise):
    return server.post("/v1/embeddings", input=["hello world"] * noise.randint(1, 30))[0]


KINDS = {ask_chat: (200, BUSY), stream_text: (200, BUSY), ask_schema: (200, BUSY), embed: (200, BUSY), go_away: (200,),
         read_slowly: (200, BUSY), ask_wrongly: (400, 404, 413)}


class Load:
    def __init__(self, server, seconds, clients):
        self.server, self.end = server, time.monotonic() + seconds
        self.codes, self.wrong, self.longest = collections.Counter(), [], 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(clients)]

    def work(self, number):
        noise = random.Random(number)
        while time.monotonic() < self.end:
            kind, start = noise.choice(list(KINDS)), time.monotonic()
            try:
                code = kind(self.server, noise)
            except Exception as error:  # a client that fails is a finding
                code = repr(error)
            seconds = time.monotonic() - start
            with self.lock:
                self.codes[code] += 1
                self.longest = max(self.longest, seconds)
                if code not in KINDS[kind] or seconds > LONGEST:
                    self.wrong.append((kind.__name__, code, round(seconds, 1)))
            if code == BUSY:
                time.sleep(0.2 + noise.random())

    def run(self):
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        self.server.await_metric("trunnion_requests_running", lambda n: n == 0)


def fill_caches(server):
    """Every sequence up to its end: caches take memory when they are first written."""
    threads = [threading.Thread(target=server.post, args=("/v1/completions",), kwargs={
        "prompt": f"{i} " + "word " * 470, "max_tokens": 30, "grammar": "root ::= [a-z ]{400,999}"})
        for i in range(PARALLEL)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def check_load(report, server, seconds, clients):
    ask = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 12}
    before = server.post("/v1/completions", **ask)[1]["choices"]
    fill_caches(server)
    Load(server, min(20, seconds), clients).run()  # until buffers and plans are there
    memory, load = server.resident(), Load(server, seconds, clients)
    load.run()
    grown = server.resident() - memory
    counts = ", ".join(f"{code}: {n}" for code, n in sorted(load.codes.items(), key=str))
    report.add(not load.wrong, f"{clients} clients for {seconds:.0f} s, answers by code: {counts}; the longest took "
               f"{load.longest:.1f} s" + "".join(f"\n  {w}" for w in load.wrong[:20]))
    report.add(load.codes[200] > clients, "most of them are answered")
    report.add(server.post("/v1/completions", **ask)[1]["choices"] == before, "then it answers as before")
    report.add(grown < GROWTH, f"memory grew by {grown / (1 << 20):.1f} MiB to {server.resident() / (1 << 20):.0f} MiB")
    report.add(server.end()[0] == serve.ENDED_BY_SIGTERM, "and ends when it is told to")


def main():
    program = (ROOT / sys.argv[1] / "trunnion").resolve()
    seconds, clients = (float(sys.argv[2]) if len(sys.argv) > 2 else 600), int(sys.argv[3]) if len(sys.argv) > 3 else 64
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        if not smollm2.is_there():
            report.skip(f"no model at {smollm2.path()}; tools/text/smollm2.py fetches it")
        else:
            encoder = serve.encoder_folder(pathlib.Path(folder))
            with serve.serving(program, "-m", str(smollm2.path()), "--embed", str(encoder), "--context", "512",
                               "--parallel", str(PARALLEL), "--max-body", "64K", "--queue", "24", "--api-key", serve.KEY,
                               key=serve.KEY) as server:
                check_client(report, server)
                check_load(report, server, seconds, clients)
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return 1 if report.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
