"""serve.py BUILD — `trunnion serve` as clients have it, over HTTP on loopback, with the demo's language model.

Answers are compared with those of `trunnion generate`: whole and streamed, alone and together with others. Then wrong
requests, each with its code; clients that go away, do not read or send slowly; a full queue; time limits; the end by a
signal; memory. Skipped without the model (tools/text/smollm2.py) and without libmicrohttpd.
"""

import base64
import concurrent.futures
import contextlib
import http.client
import json
import math
import pathlib
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from text import smollm2  # noqa: E402
from checks.command import Report  # noqa: E402

PATIENCE = 120
KEY = "a secret"
ENDED_BY_SIGTERM = 143
ENDLESS = 'root ::= [a-z ]+ "~~~~"'  # a limit ends the answer


class Server:
    """`trunnion serve` at a free port."""

    def __init__(self, program, *options, key=None):
        self.key = key
        self.process = subprocess.Popen([program, "serve", "--port", "0", "--json", "--threads", "2", *options],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.facts = json.loads(line) if line.strip() else {}
        self.port = self.facts.get("port", 0)
        self.words = "" if self.port else self.process.stderr.read()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def call(self, method, path, body=None, headers=None):
        """Returns the code, the headers and the body."""
        connection = self.connect()
        own = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection.request(method, path, body, own if headers is None else headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, response.headers, data

    def post(self, path, **fields):
        """Returns the code and the object."""
        code, _, data = self.call("POST", path, fields)
        return code, json.loads(data)

    def events(self, path, **fields):
        """A streamed answer: the objects, and whether it ended as it should."""
        code, headers, data = self.call("POST", path, fields | {"stream": True})
        parts = data.decode().split("\n\n")
        good = code == 200 and headers["Content-Type"] == "text/event-stream" and parts[-2:] == ["data: [DONE]", ""]
        return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]], good

    def metric(self, name):
        _, _, data = self.call("GET", "/metrics")
        for line in data.decode().splitlines():
            if line.split(" ")[0] == name:
                return float(line.split(" ")[1])
        return math.nan

    def await_metric(self, name, reached):
        """Waits until the metric is as asked for."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if reached(self.metric(name)):
                return True
            time.sleep(0.05)
        return False

    def resident(self):
        """Bytes of memory."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status")
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmRSS"))

    def end(self):
        """SIGTERM. Returns the exit status and how long it took."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self):
        start = time.monotonic()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.process.wait(), time.monotonic() - start


@contextlib.contextmanager
def serving(program, *options, key=None):
    server = Server(program, *options, key=key)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end()
        server.process.stdout.close()
        server.process.stderr.close()


def generate(program, *options):
    result = subprocess.run([program, "generate", "-m", smollm2.path(), "--greedy", "--json", "--threads", "2", *options],
                            capture_output=True, text=True)
    return json.loads(result.stdout) if result.returncode == 0 else {"text": result.stderr, "ids": []}


def encoder_folder(folder):
    """A small BERT of random weights. Returns its path."""
    folder = folder / "small-encoder"
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d", "##a", "##b", "hello", "world"]
    hidden, inner, longest = 16, 32, 32
    shapes = {"embeddings.word_embeddings.weight": (len(words), hidden),
              "embeddings.position_embeddings.weight": (longest, hidden),
              "embeddings.token_type_embeddings.weight": (2, hidden), "embeddings.LayerNorm.weight": (hidden,),
              "embeddings.LayerNorm.bias": (hidden,)}
    parts = {"attention.self.query": (hidden, hidden), "attention.self.key": (hidden, hidden),
             "attention.self.value": (hidden, hidden), "attention.output.dense": (hidden, hidden),
             "attention.output.LayerNorm": (hidden,), "intermediate.dense": (inner, hidden),
             "output.dense": (hidden, inner), "output.LayerNorm": (hidden,)}
    for name, shape in parts.items():
        shapes |= {f"encoder.layer.0.{name}.weight": shape, f"encoder.layer.0.{name}.bias": shape[:1]}
    noise, header, data = random.Random(7), {}, b""
    for name, shape in shapes.items():
        values = struct.pack(f"<{math.prod(shape)}f", *(noise.gauss(0, 0.3) for _ in range(math.prod(shape))))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "bert", "num_hidden_layers": 1, "hidden_size": hidden, "intermediate_size": inner,
        "num_attention_heads": 2, "max_position_embeddings": longest, "type_vocab_size": 2, "vocab_size": len(words),
        "layer_norm_eps": 1e-12, "hidden_act": "gelu"}))
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {word: i for i, word in enumerate(words)}}}))
    return folder


def user(text):
    return [{"role": "user", "content": text}]


# ---- what is answered ------------------------------------------------------------------------------------------------

def check_answers(program, report, server):
    chat, plain = "/v1/chat/completions", "/v1/completions"
    asked = {"messages": user("Name three colors."), "temperature": 0, "max_tokens": 20}
    expected = generate(program, "--chat", "-p", "Name three colors.", "-n", "20")
    code, whole = server.post(chat, **asked)
    choice = whole["choices"][0]
    report.add(code == 200 and choice["message"] == {"role": "assistant", "content": expected["text"]}
               and choice["finish_reason"] == "length" and whole["object"] == "chat.completion",
               f"a chat answers as generate does: {expected['text'][:40]!r}…")
    usage = whole["usage"]
    report.add((usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
               == (len(expected["prompt_ids"]), 20, len(expected["prompt_ids"]) + 20), "usage counts tokens")
    events, good = server.events(chat, **asked, stream_options={"include_usage": True})
    deltas = [e["choices"][0]["delta"] for e in events if e["choices"]]
    report.add(good and deltas[0]["role"] == "assistant" and len(deltas) == 21
               and "".join(d.get("content", "") for d in deltas) == expected["text"]
               and events[-2]["choices"][0]["finish_reason"] == "length" and events[-1]["usage"]["completion_tokens"] == 20,
               "the stream has the same text, a piece a token, and the usage behind it")
    cached = events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    report.add(cached == usage["prompt_tokens"] - 1, f"the same prompt again computes one token: {cached} are cached")

    expected = generate(program, "-p", "The capital of France is", "-n", "12")
    code, whole = server.post(plain, prompt="The capital of France is", temperature=0, max_tokens=12)
    report.add(code == 200 and whole["choices"][0]["text"] == expected["text"], "a completion continues as generate does")
    code, of_ids = server.post(plain, prompt=expected["prompt_ids"], temperature=0, max_tokens=12)
    report.add(code == 200 and of_ids["choices"][0]["text"] == expected["text"], "the same of token ids")
    events, good = server.events(plain, prompt="The capital of France is", temperature=0, max_tokens=12)
    report.add(good and "".join(e["choices"][0]["text"] for e in events) == expected["text"], "the same as a stream")
    code, stopped = server.post(plain, prompt="The capital of France is", temperature=0, max_tokens=12, stop=["\n", "q"])
    report.add(code == 200 and stopped["choices"][0] == {"index": 0, "text": expected["text"].split("\n")[0],
                                                         "logprobs": None, "finish_reason": "stop"}, "a stop string ends it")
    events, good = server.events(plain, prompt="The capital of France is", temperature=0, max_tokens=12, stop="\n\nThe")
    report.add(good and "".join(e["choices"][0]["text"] for e in events) == expected["text"].split("\n\nThe")[0],
               "a stream shows no part of a stop string")
    _, default = server.post(plain, prompt="One", temperature=0)
    report.add(default["usage"]["completion_tokens"] == 16, "a completion has 16 tokens unless the request says more")


def check_sampling(program, report, server):
    plain = "/v1/completions"
    asked = {"prompt": "My favorite animal is", "max_tokens": 12, "temperature": 1.5}
    text = lambda **more: server.post(plain, **asked, **more)[1]["choices"][0]["text"]  # noqa: E731
    first, again, other = text(seed=3), text(seed=3), text(seed=4)
    expected = generate_drawn(program, "My favorite animal is", 12, 1.5, 3)
    report.add(first == again == expected and first != other, "the seed decides the draw, as generate's does")
    greedy = text(top_p=0, seed=1)
    report.add(greedy == text(top_k=1, seed=2) and greedy != first, "top_p 0 and top_k 1 take the most probable token")
    loud = generate(program, "-p", "My favorite animal is", "-n", "12", "--frequency-penalty", "2",
                    "--presence-penalty", "1.5")["text"]
    code, penalised = server.post(plain, prompt="My favorite animal is", max_tokens=12, temperature=0,
                                  frequency_penalty=2, presence_penalty=1.5)
    report.add(code == 200 and penalised["choices"][0]["text"] == loud, "penalties are generate's")
    code, chances = server.post(plain, prompt="My favorite animal is", max_tokens=3, temperature=0, logprobs=2)
    expected = generate(program, "-p", "My favorite animal is", "-n", "3", "--logprobs", "2")["logprobs"]
    found = chances["choices"][0]["logprobs"]
    report.add(found["token_logprobs"] == [e["logprob"] for e in expected] and
               [sorted(t.values()) for t in found["top_logprobs"]] == [sorted(t["logprob"] for t in e["top"]) for e in expected]
               and "".join(found["tokens"]) == chances["choices"][0]["text"], "log probabilities of a completion")
    events, good = server.events("/v1/chat/completions", messages=user("Hi"), max_tokens=4, temperature=0, logprobs=True,
                                 top_logprobs=1)
    tokens = [t for e in events for t in (e["choices"][0]["logprobs"] or {"content": []})["content"]]
    report.add(good and len(tokens) == 4 and all(bytes(t["bytes"]).decode() == t["token"] and len(t["top_logprobs"]) == 1
                                                 for t in tokens), "log probabilities of a streamed chat")


def generate_drawn(program, prompt, count, temperature, seed):
    result = subprocess.run([program, "generate", "-m", smollm2.path(), "-p", prompt, "-n", str(count), "--temperature",
                             str(temperature), "--seed", str(seed), "--json"], capture_output=True, text=True)
    return json.loads(result.stdout)["text"]


def check_schema(report, server):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"},
                                               "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2}},
              "required": ["name", "age", "tags"], "additionalProperties": False}
    for temperature in (0, 1):
        code, answer = server.post("/v1/chat/completions", messages=user("Describe a cat named Tom."), max_tokens=120,
                                   temperature=temperature, seed=1, response_format={
                                       "type": "json_schema", "json_schema": {"name": "cat", "schema": schema}})
        text = answer["choices"][0]["message"]["content"] if code == 200 else str(answer)
        try:
            cat = json.loads(text)
            good = set(cat) == {"name", "age", "tags"} and isinstance(cat["age"], int) and len(cat["name"]) <= 12
        except json.JSONDecodeError:
            good = answer["choices"][0]["finish_reason"] == "length" and text.startswith("{")
        report.add(good, f"an answer by a schema, temperature {temperature}: {text!r}")
    code, answer = server.post("/v1/chat/completions", messages=user("A JSON object with one number."), max_tokens=40,
                               temperature=0, response_format={"type": "json_object"})
    report.add(code == 200 and answer["choices"][0]["message"]["content"].startswith("{"), "an answer that is a JSON object")
    code, answer = server.post("/v1/completions", prompt="Is water wet?", max_tokens=8, temperature=0,
                               grammar='root ::= "yes" | "no"')
    report.add(code == 200 and answer["choices"][0]["text"] in ("yes", "no")
               and answer["choices"][0]["finish_reason"] == "stop", "an answer by a grammar")


TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"],
    "$defs": {"city": {"enum": ["Paris", "Rome"]}}}}}, {"type": "function", "function": {"name": "now"}}]


def calls_of(choice):
    """The calls of an answer: names and arguments."""
    calls = choice.get("message", choice.get("delta", {})).get("tool_calls") or []
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


def check_definitions(report, server, ask):
    """Definitions of the parameters of several tools."""
    def tools(folder, *values):
        return [{"type": "function", "function": {"name": f"f{i}", "parameters": {
            "type": "object", "properties": {"x": {"$ref": f"#/{folder}/d"}}, "required": ["x"], folder: {"d": {"enum": v}}}}}
            for i, v in enumerate(values)]

    for folder in ("$defs", "definitions"):
        for choice, values in (("required", (["A"], ["A"])), ({"type": "function", "function": {"name": "f1"}}, (["B"], ["A"]))):
            code, answer = server.post("/v1/chat/completions", **ask, tools=tools(folder, *values), tool_choice=choice)
            report.add(code == 200 and calls_of(answer["choices"][0])[0][1] == {"x": "A"}, f"{folder} of two tools: {answer}")
        code, answer = server.post("/v1/chat/completions", **ask, tools=tools(folder, ["A"], ["B"]), tool_choice="required")
        report.add(code == 400 and folder in answer["error"]["message"], f"{folder} that differ: {answer}")


def check_tools(report, server):
    chat, ask = "/v1/chat/completions", {"messages": user("Is it warm in Rome?"), "max_tokens": 60, "temperature": 0}
    by_name = {"type": "function", "function": {"name": "get_weather"}}
    _, answer = server.post(chat, **ask, tools=TOOLS, tool_choice=by_name)
    choice = answer["choices"][0]
    report.add([n for n, _ in calls_of(choice)] == ["get_weather"] and calls_of(choice)[0][1]["city"] in ("Paris", "Rome")
               and choice["message"]["content"] is None and choice["finish_reason"] == "tool_calls",
               f"a demanded call follows its schema: {choice}")
    message, first = choice["message"], calls_of(choice)
    events, good = server.events(chat, **ask, tools=TOOLS, tool_choice=by_name)
    last = events[-1]["choices"][0]
    report.add(good and calls_of(last) == first and last["finish_reason"] == "tool_calls" and last["delta"]["tool_calls"][0]["index"] == 0
               and not any(e["choices"][0]["delta"].get("content") for e in events), "the same as a stream")
    _, answer = server.post(chat, **ask, tools=TOOLS, tool_choice="required")
    report.add(len(calls_of(answer["choices"][0])) == 1, f"any call that is demanded: {answer['choices'][0]}")
    written = {  # what models write by themselves: (the text, what is shown of it, the calls)
        'Yes. <tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call><tool_call>{"name": "now"}</tool_call>':
            ("Yes.", [("get_weather", {"city": "Rome"}), ("now", {})]),
        '{"name": "get_weather", "parameters": {"city": "Paris"}}': (None, [("get_weather", {"city": "Paris"})]),
        '[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]': (None, [("now", {})] * 2),
        '{"name": "other", "arguments": {}}': ('{"name": "other", "arguments": {}}', []),
        "1 < 2 <tool": ("1 < 2 <tool", []), '<tool_call>{"name": 3}</tool_call>': ('<tool_call>{"name": 3}</tool_call>', [])}
    for text, (shown, calls) in written.items():
        grammar = "root ::= " + json.dumps(text)
        _, answer = server.post(chat, **ask, tools=TOOLS, grammar=grammar)
        events, good = server.events(chat, **ask, tools=TOOLS, grammar=grammar)
        choice, last = answer["choices"][0], events[-1]["choices"][0]
        streamed = "".join(e["choices"][0]["delta"].get("content") or "" for e in events)
        report.add((choice["message"]["content"], calls_of(choice)) == (shown, calls) and good and calls_of(last) == calls
                   and streamed == (shown or "") and last["finish_reason"] == choice["finish_reason"]
                   == ("tool_calls" if calls else "stop"), f"calls in {text[:40]!r}: {choice}, streamed {streamed!r}")
    two = "root ::= " + json.dumps('[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]')
    _, answer = server.post(chat, **ask, tools=TOOLS, grammar=two, parallel_tool_calls=False)
    report.add(len(calls_of(answer["choices"][0])) == 1, f"parallel_tool_calls false: one call: {answer['choices'][0]}")
    check_definitions(report, server, ask)
    plain = server.post(chat, **ask)[1]
    report.add(server.post(chat, **ask, tools=TOOLS, tool_choice="none")[1]["choices"] == plain["choices"],
               "tool_choice none: as without tools")
    turns = [*user("Is it warm in Rome?"), message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"],
                                                     "content": "31 degrees"}]
    code, answer = server.post(chat, messages=turns, tools=TOOLS, max_tokens=12, temperature=0)
    spelt = [*user("Is it warm in Rome?"), {"role": "assistant", "content": '<tool_call>{"name": "get_weather", "arguments": '
             + message["tool_calls"][0]["function"]["arguments"] + "}</tool_call>"},
             *user("<tool_response>31 degrees</tool_response>")]
    _, expected = server.post(chat, messages=spelt, max_tokens=12, temperature=0)
    _, without = server.post(chat, messages=turns, max_tokens=12, temperature=0)
    report.add(code == 200 and without["choices"] == expected["choices"] and answer["usage"]["prompt_tokens"]
               > without["usage"]["prompt_tokens"] + 40, "calls and results are part of the prompt")


def check_tool_template(program, report, folder):
    """A template that has places for tools and calls gets them: the model's file with another template."""
    template = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if loop.first and tools %} "
                "{{ tools[0].function.name }}{% endif %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }} "
                "{{ c.id }}{% endfor %}{{ m.tool_call_id or '' }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n")
    path, own = folder / "tools.gguf", json.loads(subprocess.run([program, "info", str(smollm2.path()), "--json"],
                                                                 capture_output=True, text=True).stdout)["chat_template"].encode()
    data = smollm2.path().read_bytes()
    room = len(own) - len(template.encode())
    report.add(data.count(own) == 1 and room > 6, "the model's template can be replaced")
    path.write_bytes(data.replace(own, template.encode() + b"{#" + b" " * (room - 4) + b"#}"))
    call = [{"id": "a1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}]
    given = [*user("Go"), {"role": "assistant", "content": None, "tool_calls": call},
             {"role": "tool", "tool_call_id": "a1", "content": "31"}]
    same = [*user("Go get_weather"), {"role": "assistant", "content": "Rome a1"}, {"role": "tool", "content": "31a1"}]
    with serving(program, str(path), "--context", "256", "--parallel", "1") as server:
        ask = {"max_tokens": 8, "temperature": 0}
        answers = [server.post("/v1/chat/completions", messages=given, tools=TOOLS, **ask)[1],
                   server.post("/v1/chat/completions", messages=same, **ask)[1]]
        report.add(answers[0].get("choices") == answers[1].get("choices", 0)
                   and answers[0]["usage"]["prompt_tokens"] == answers[1]["usage"]["prompt_tokens"],
                   f"a template with tools has tools, calls and results: {answers}")
    path.unlink()


def check_together(report, server):
    """More requests than sequences: all get the tokens that they get alone."""
    prompts = [f"{i} little birds sat on a" for i in range(10)]
    ask = lambda i: server.post("/v1/completions", prompt=prompts[i], temperature=0, max_tokens=16 + i)[1]  # noqa: E731
    alone = [ask(i)["choices"][0]["text"] for i in range(10)]
    steps, rows = server.metric("trunnion_decode_steps_total"), server.metric("trunnion_decode_rows_total")
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        together = [answer["choices"][0]["text"] for answer in pool.map(ask, range(10))]
    steps, rows = (server.metric("trunnion_decode_steps_total") - steps, server.metric("trunnion_decode_rows_total") - rows)
    report.add(together == alone, "ten requests at once have the tokens that they have alone")
    report.add(rows > 2 * steps, f"they are computed together: {rows:.0f} tokens in {steps:.0f} passes")


def check_embeddings(program, report, server, folder):
    texts = ["hello world", "a b c", "d"]
    result = subprocess.run([program, "embed", "-m", folder, "--json", *texts], capture_output=True, text=True)
    expected = json.loads(result.stdout)["embeddings"]
    code, answer = server.post("/v1/embeddings", input=texts, model="small-encoder")
    found = [row["embedding"] for row in answer.get("data", [])]
    close = len(found) == 3 and all(abs(a - b) < 1e-6 for x, y in zip(found, expected) for a, b in zip(x, y))
    report.add(code == 200 and close and answer["usage"]["prompt_tokens"] == 4 + 5 + 3, "embeddings are embed's")
    _, packed = server.post("/v1/embeddings", input=texts[0], encoding_format="base64")
    raw = base64.b64decode(packed["data"][0]["embedding"])
    report.add(list(struct.unpack(f"<{len(raw) // 4}f", raw)) == found[0], "the same in base64")


def check_lists(report, server):
    name = smollm2.path().stem
    code, _, data = server.call("GET", "/v1/models")
    report.add(code == 200 and [m["id"] for m in json.loads(data)["data"]] == [name, "small-encoder"], "models are listed")
    code, _, data = server.call("GET", f"/v1/models/{name}")
    report.add(code == 200 and json.loads(data)["id"] == name, "a model is found by its name")
    code, headers, data = server.call("GET", "/", headers={})
    report.add(code == 200 and headers["Content-Type"].startswith("text/html") and b"/v1/chat/completions" in data,
               "the page to chat needs no key")
    code, _, data = server.call("GET", "/health", headers={})
    report.add(code == 200 and json.loads(data) == {"status": "ok"}, "neither does /health")
    code, headers, data = server.call("GET", "/metrics")
    lines = [line for line in data.decode().splitlines() if not line.startswith("#")]
    report.add(code == 200 and headers["Content-Type"].startswith("text/plain") and len(lines) > 60 and
               all(len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0 for line in lines), "metrics")


# ---- what is refused -------------------------------------------------------------------------------------------------

def check_refusals(report, server):
    chat, plain, embed = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
    hello = {"messages": user("Hi"), "max_tokens": 1}
    nested = b'{"messages": ' + b"[" * 100 + b"]" * 100 + b"}"
    cases = [
        (400, chat, b""), (400, chat, b"{"), (400, chat, b"[]"), (400, chat, b'"text"'), (400, chat, b"\xff\xfe{}"),
        (400, chat, b'{"messages": [{"role": "user", "content": "\xff"}]}'), (400, chat, nested), (400, chat, {}),
        (400, chat, {"messages": []}), (400, chat, {"messages": 3}), (400, chat, {"messages": ["Hi"]}),
        (400, chat, {"messages": [{"content": "Hi"}]}), (400, chat, {"messages": [{"role": 3, "content": "Hi"}]}),
        (400, chat, {"messages": [{"role": "user", "content": 3}]}),
        (400, chat, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        (400, chat, {"messages": user("a\0b")}), (404, chat, hello | {"model": "gpt-4"}), (400, chat, hello | {"model": 4}),
        (400, chat, hello | {"max_tokens": 0}), (400, chat, hello | {"max_tokens": "many"}),
        (400, chat, hello | {"max_tokens": 1.5}), (400, chat, hello | {"temperature": -1}),
        (400, chat, hello | {"temperature": "hot"}), (400, chat, hello | {"top_p": 2}), (400, chat, hello | {"n": 2}),
        (400, chat, hello | {"stream": 1}), (400, chat, hello | {"stop": [""]}), (400, chat, hello | {"stop": [3]}),
        (400, chat, hello | {"stop": ["x"] * 17}), (400, chat, hello | {"seed": "x"}),
        (400, chat, hello | {"tools": [{"type": "function"}]}), (400, chat, hello | {"tools": "now"}),
        (400, chat, hello | {"tools": TOOLS, "tool_choice": "always"}), (400, chat, hello | {"tools": TOOLS, "tool_choice": 3}),
        (400, chat, hello | {"tools": TOOLS, "tool_choice": {"function": {"name": "other"}}}),
        (400, chat, hello | {"tools": TOOLS, "tool_choice": "required", "grammar": 'root ::= "a"'}),
        (400, chat, hello | {"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}),
        (400, chat, {"messages": [{"role": "assistant", "content": "", "tool_calls": 3}]}),
        *[(400, chat, {"messages": [*hello["messages"], {"role": "assistant", "content": "", "tool_calls": [call]}]})
          for call in ({"id": [0] * 600, "function": {"name": "f"}}, {"id": "a", "function": {"name": [0] * 600}},
                       {"id": "a", "function": 3}, 3)],
        (400, chat, hello | {"tools": [{"type": "function", "function": {"name": "a\0b"}}]}),
        (400, chat, hello | {"tool_choice": "required"}), (400, chat, hello | {"tools": [], "tool_choice": "required"}),
        (400, plain, {"prompt": "x", "tools": TOOLS}), (400, chat, hello | {"logit_bias": {"1": 5}}),
        (400, chat, hello | {"top_logprobs": 3}), (400, chat, hello | {"logprobs": True, "top_logprobs": 21}),
        (400, chat, hello | {"response_format": {"type": "xml"}}), (400, chat, hello | {"response_format": "json"}),
        (400, chat, hello | {"response_format": {"type": "json_schema"}}),
        (400, chat, hello | {"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "x"}}}}),
        (400, chat, hello | {"grammar": "root ::= ("}), (400, chat, {"messages": user("long " * 600)}),
        (400, plain, {}), (400, plain, {"prompt": ""}), (400, plain, {"prompt": ["a", "b"]}), (400, plain, {"prompt": [-1]}),
        (400, plain, {"prompt": [10 ** 9]}), (400, plain, {"prompt": [[1, 2], [3]]}), (400, plain, {"prompt": "x", "echo": True}),
        (400, plain, {"prompt": "word " * 5000}), (400, embed, {"input": []}), (400, embed, {"input": [""], "dimensions": 3}),
        (400, embed, {"input": {"a": 1}}), (400, embed, {"input": "a " * 100}), (400, embed, {"input": [[99]]}),
        (400, embed, {"input": "a", "encoding_format": "hex"}), (404, embed, {"input": "a", "model": "other"}),
        (413, chat, b'{"messages": "' + b"x" * 70000 + b'"}'), (404, "/v1/nothing", {}), (405, "/v1/models", {}),
        (404, "/v1/models/", {}),
        (400, plain, {"prompt": "a a a", "max_tokens": 9, "grammar": "root ::= " + '(("a"? "a"?){1,99}){1,99} ' * 2 + '"b"'}),
    ]
    wrong = []
    for code, path, body in cases:
        found, _, data = server.call("POST", path, body)
        try:
            error = json.loads(data)["error"]
            good = found == code and error["message"] and error["type"] == "invalid_request_error"
        except (KeyError, json.JSONDecodeError):
            good = False
        if not good:
            wrong.append((code, path, str(body)[:60], found, data[:200]))
    report.add(not wrong, f"{len(cases)} wrong requests are refused with their code" + "".join(f"\n  {w}" for w in wrong))
    code, _, _ = server.call("GET", "/v1/models/other")
    report.add(code == 404, "an unknown model is not found")
    code, headers, _ = server.call("GET", "/v1/chat/completions")
    report.add(code == 405 and "POST" in headers["Allow"], "a method that is not allowed")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"Authorization": f"Bearer {KEY}x"}):
        code, got, data = server.call("POST", chat, hello, headers)
        report.add(code == 401 and json.loads(data)["error"]["code"] == "invalid_api_key" and "WWW-Authenticate" in got,
                   f"no answer without the key: {headers}")


def raw(server, data, wait=5):
    """What the server says to these bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as s:
        s.sendall(data)
        try:
            return s.recv(65536)
        except (TimeoutError, ConnectionError):
            return b""


def check_bytes(report, server):
    """What is no HTTP, or only nearly."""
    key = f"Authorization: Bearer {KEY}\r\n".encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + key
    report.add(raw(server, b"nonsense\r\n\r\n")[:12] in (b"HTTP/1.1 400", b""), "bytes that are no HTTP")
    report.add(raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100000 + b"\r\n\r\n").startswith(b"HTTP/1.1 4"),
               "headers that are too long")
    report.add(raw(server, head + b"Content-Length: 99999999999\r\n\r\n").startswith(b"HTTP/1.1 413"),
               "a length beyond the limit is refused before the body")
    chunk = b"Transfer-Encoding: chunked\r\n\r\n" + (b"4000\r\n" + b"x" * 0x4000 + b"\r\n") * 6 + b"0\r\n\r\n"
    report.add(raw(server, head + chunk).startswith(b"HTTP/1.1 413"), "neither may chunks be longer together")
    body = json.dumps({"messages": user("Hi"), "max_tokens": 1}).encode()
    slow = f"Content-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as s:
        for part in [head, slow, *(body[i:i + 10] for i in range(0, len(body), 10))]:
            s.sendall(part)
            time.sleep(0.01)
        report.add(s.recv(65536).startswith(b"HTTP/1.1 200"), "a body that comes in pieces")


# ---- clients and limits ----------------------------------------------------------------------------------------------

def open_request(server, **fields):
    """Sends a request for a long answer and returns the socket."""
    body = json.dumps({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 400,
                       "grammar": "root ::= [a-z ]{400,999}"} | fields).encode()
    s = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    key = f"Authorization: Bearer {server.key}\r\n" if server.key else ""
    s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{key}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return s


def check_disconnects(report, server):
    """Clients that go away leave their sequences to others, whether they stream or not, and close or reset."""
    before = server.metric("trunnion_disconnects_total")
    clients = [open_request(server, stream=i % 2 == 0) for i in range(4)]
    busy = server.await_metric("trunnion_requests_running", lambda n: n == 4)
    for client in clients[:2]:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets the connection
    for client in clients:
        client.close()
    idle = server.await_metric("trunnion_requests_running", lambda n: n == 0)
    count = server.metric("trunnion_disconnects_total") - before
    report.add(busy and idle and count == 4, f"clients that go away free their sequences: {count:.0f} of 4")


def check_slow_reader(report, server):
    """A client that does not read holds nobody up, and gets all in the end."""
    slow = open_request(server, stream=True, max_tokens=200, logprobs=20)
    start = time.monotonic()
    code, answer = server.post("/v1/completions", prompt="A quick", temperature=0, max_tokens=8)
    report.add(code == 200 and answer["usage"]["completion_tokens"] == 8,
               f"others are answered while a client does not read ({time.monotonic() - start:.1f} s)")
    server.await_metric("trunnion_requests_running", lambda n: n == 0)
    data = b""
    while b"[DONE]" not in data and (part := slow.recv(1 << 20)):
        data += part
    slow.close()
    report.add(b"data: [DONE]" in data and data.count(b"data: {") == 201, "and it gets all of its answer later")


def check_queue(program, report):
    """One sequence and one place in the queue: the third request is refused; time limits; the end."""
    options = ["-m", str(smollm2.path()), "--context", "1024", "--parallel", "1", "--queue", "1", "--grace", "20"]
    with serving(program, *options, "--timeout", "2") as server:
        first = open_request(server, max_tokens=900, grammar=ENDLESS)  # for more than two seconds
        server.await_metric("trunnion_requests_running", lambda n: n == 1)
        second = open_request(server, prompt="word " * 800, max_tokens=1)
        server.await_metric("trunnion_requests_waiting", lambda n: n == 1)
        code, headers, data = server.call("POST", "/v1/completions", {"prompt": "x"})
        report.add(code == 503 and int(headers["Retry-After"]) >= 1 and json.loads(data)["error"]["code"] == "overloaded",
                   "a request beyond the queue gets 503 and when to try again")
        report.add(b'"finish_reason": "length"' in read_all(first), "an answer beyond the time limit is cut")
        answer = read_all(second)
        report.add(answer.startswith(b"HTTP/1.1 503") and b'"timeout"' in answer,
                   "the one that waited, and whose prompt was not computed in time, is refused")
    with serving(program, "-m", str(smollm2.path()), "--context", "2048", "--parallel", "1", "--timeout", "1") as server:
        code, answer = server.post("/v1/completions", prompt="word " * 1900, max_tokens=1)
        report.add(code == 503 and answer["error"]["code"] == "timeout", f"a prompt beyond the time limit has no answer: {code}")
    with serving(program, *options, "--max-body", "64M", "--verbose") as server:
        check_gone_waiting(report, server)
        check_bodies(report, server)
        report.add(server.call("GET", "/v1/models/%1b%5b2Jx%0aforged")[0] == 404, "a path with control characters")
        idle = server.connect()
        idle.request("GET", "/health")
        idle.getresponse().read()
        running, waiting = open_request(server, max_tokens=60, stream=True), None
        server.await_metric("trunnion_requests_running", lambda n: n == 1)
        waiting = open_request(server)
        server.await_metric("trunnion_requests_waiting", lambda n: n == 1)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        idle.request("POST", "/v1/completions", json.dumps({"prompt": "x"}))
        late = idle.getresponse()
        report.add(late.status == 503 and json.loads(late.read())["error"]["code"] == "stopping",
                   "a request at the end, on an open connection, is refused")
        status, seconds = server.wait()
        answer, refused = read_all(running), read_all(waiting)
        report.add(status == ENDED_BY_SIGTERM and b"data: [DONE]" in answer and answer.count(b"data: {") == 61,
                   f"SIGTERM lets a running answer end ({seconds:.1f} s)")
        report.add(refused.startswith(b"HTTP/1.1 503"), "and refuses one that waits")
        log = server.process.stderr.read()
        report.add("GET /v1/models/?[2Jx?forged: 404" in log and "\x1b" not in log, f"which the log does not have: {log[-400:]!r}")
    with serving(program, *options[:-1], "0") as server:
        running = open_request(server)
        server.await_metric("trunnion_requests_running", lambda n: n == 1)
        status, seconds = server.end()
        answer = read_all(running)
        report.add(status == ENDED_BY_SIGTERM and b'"finish_reason": "length"' in answer and seconds < 10,
                   f"without time for it an answer is cut at the end ({seconds:.1f} s)")


def check_gone_waiting(report, server):
    """A waiting client that goes away leaves its place in the queue at once."""
    running = open_request(server, max_tokens=900, grammar=ENDLESS)
    server.await_metric("trunnion_requests_running", lambda n: n == 1)
    waiting = open_request(server)
    server.await_metric("trunnion_requests_waiting", lambda n: n == 1)
    waiting.close()
    left = server.await_metric("trunnion_requests_waiting", lambda n: n == 0)
    report.add(left and server.metric("trunnion_requests_running") == 1, "a client that goes away leaves the queue at once")
    running.close()
    report.add(server.await_metric("trunnion_requests_running", lambda n: n == 0), "and the running one its sequence")


def check_bodies(report, server):
    """All bodies that are being read have a common limit, 256 MiB."""
    size, block = 64 << 20, b" " * (1 << 20)
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(4)]
    for s in slow:
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(63):
            s.sendall(block)
    code, _, data = server.call("POST", "/v1/completions", block * 32)
    report.add(code == 503 and json.loads(data)["error"]["code"] == "overloaded", f"bodies beyond the common limit: {code}")
    for s in slow:
        s.close()
    end = time.monotonic() + PATIENCE
    while (code := server.call("POST", "/v1/completions", block * 32)[0]) == 503 and time.monotonic() < end:
        time.sleep(0.05)
    report.add(code == 400, f"and when the others are gone there is place again: {code}")


def read_all(s):
    data = b""
    s.settimeout(PATIENCE)
    with contextlib.suppress(ConnectionError), s:
        while part := s.recv(1 << 20):
            data += part
            if b"\r\n\r\n" in data and (b"0\r\n\r\n" in data[-7:] or whole(data)):
                break
    return data


def whole(data):
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return lengths and len(body) >= int(lengths[0])


def check_memory(report, server):
    """Many requests of all kinds leave no memory behind."""
    def ask(i):
        kind = i % 4
        if kind == 0:
            return server.post("/v1/chat/completions", messages=user(f"Say {i}"), max_tokens=2, logprobs=True,
                               response_format={"type": "json_object"})[0]
        if kind == 1:
            return server.call("POST", "/v1/chat/completions", {"messages": [{"role": "user"}] * 50, "max_tokens": "x"})[0]
        if kind == 2:
            return server.post("/v1/embeddings", input=["hello"] * 20)[0]
        open_request(server, stream=True, max_tokens=50).close()
        return 200
    def many(count):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            codes = list(pool.map(ask, range(count)))
        server.await_metric("trunnion_requests_running", lambda n: n == 0)
        return codes
    many(80)
    before = server.resident()
    codes = many(240)
    grown = server.resident() - before
    report.add(set(codes) == {200, 400} and grown < 8 << 20, f"320 requests: memory grew by {grown / 1024:.0f} KiB")


def check_drafts(program, report):
    """Tokens guessed from the text change no answer, neither alone nor in a batch."""
    prompts = ("one two three four five six, one two three four five six, one two three four",
               "red green blue, red green blue, red green blue, red")
    expected = [generate(program, "-p", prompt, "-n", "40")["text"] for prompt in prompts]
    with serving(program, "-m", str(smollm2.path()), "--context", "256", "--parallel", "2", "--draft", "ngrams") as server:
        def ask(prompt):
            return server.post("/v1/completions", prompt=prompt, temperature=0, max_tokens=40)
        def counts():
            return [server.metric(f"trunnion_{name}_total") for name in ("draft_accepted", "draft_tokens", "decode_rows", "decode_steps")]
        code, answer = ask(prompts[0])
        accepted, drafted, rows, steps = counts()
        report.add(code == 200 and answer["choices"][0]["text"] == expected[0] and 0 < accepted <= drafted,
                   f"with --draft ngrams the answer is the same; {accepted:.0f} of {drafted:.0f} guesses were right")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            texts = [answer["choices"][0]["text"] for _, answer in pool.map(ask, prompts)]
        accepted, drafted, rows, steps = (now - before for now, before in zip(counts(), (accepted, drafted, rows, steps)))
        report.add(texts == expected and rows > steps and 0 < accepted <= drafted,
                   f"two at once too, {rows:.0f} tokens in {steps:.0f} steps; {accepted:.0f} of {drafted:.0f} guesses were right")


def check_sites(program, report):
    """Without a key, pages of other sites get nothing."""
    own = {"Content-Type": "application/json"}
    rows = (("of this machine", {"Host": "localhost:1"}, 200), ("IPv6", {"Host": "[::1]:80"}, 200),
            ("another host", {"Host": "evil.example"}, 403), ("allowed", {"Host": "good.example"}, 200),
            ("a name like an address", {"Host": "127.evil.example"}, 403),
            ("own page", {"Host": "127.0.0.1:80", "Origin": "http://127.0.0.1:80"}, 200),
            ("another page", {"Host": "127.0.0.1:80", "Origin": "https://evil.example"}, 403),
            ("a file's page", {"Host": "127.0.0.1:80", "Origin": "null"}, 403),
            ("an allowed page", {"Host": "127.0.0.1:80", "Origin": "http://good.example:99"}, 200))
    others = (("an address", {"Host": "192.168.7.7:80"}, 200), ("the machine", {"Host": socket.gethostname()}, 200),
              ("another host, for other machines", {"Host": "evil.example", "Origin": "http://evil.example"}, 403))
    wrong = []
    for listening, asked in (("127.0.0.1", rows), ("0.0.0.0", others)):
        with serving(program, "-m", str(smollm2.path()), "--context", "64", "--parallel", "1", "--allow-host",
                     "good.example", "--host", listening) as server:
            codes = [server.call("GET", "/v1/models", None, own | headers)[0] for _, headers, _ in asked]
        wrong += [f"{name}: {code}" for (name, _, expected), code in zip(asked, codes) if code != expected]
    report.add(not wrong, f"requests for other hosts and of other sites' pages are refused {wrong}")


def check_start(program, report):
    """What keeps the server from starting is said."""
    wrong = subprocess.run([program, "serve", "-m", smollm2.path(), "--api-key", "k", "--allow-host", "name"],
                           capture_output=True, text=True, timeout=PATIENCE)
    report.add(wrong.returncode == 2 and "--allow-host has no effect" in wrong.stderr, "--allow-host with a key")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options, words in (["--port", port], "cannot listen"), (["--host", "no.such.host.invalid"], "host"):
            result = subprocess.run([program, "serve", "-m", smollm2.path(), "--context", "64", "--parallel", "1", *options],
                                    capture_output=True, text=True, timeout=PATIENCE)
            report.add(result.returncode == 1 and words in result.stderr, f"{' '.join(options)}: {result.stderr[-90:]!r}")


def check_early(program, report):
    """Requests that come while the model is loaded are answered."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([program, "serve", "-m", smollm2.path(), "--context", "64", "--port", str(port), "--threads", "2"],
                               stderr=subprocess.PIPE, text=True)
    early, end = [], time.monotonic() + PATIENCE
    while len(early) < 5 and process.poll() is None and time.monotonic() < end:
        try:
            early.append(socket.create_connection(("127.0.0.1", port), PATIENCE))
        except ConnectionRefusedError:
            time.sleep(0.002)
    loading = not select.select([process.stderr], [], [], 0)[0]
    for s in early:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    codes = [read_all(s).split(b" ")[1:2] for s in early]
    report.add(loading and codes == [[b"200"]] * 5, f"five requests while the model is loaded: {codes}, loading: {loading}")
    process.terminate()
    process.communicate(timeout=PATIENCE)


def main():
    program = (ROOT / sys.argv[1] / "trunnion").resolve()
    report = Report()
    if not smollm2.is_there():
        report.skip(f"no model at {smollm2.path()}; tools/text/smollm2.py fetches it")
        print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        encoder = encoder_folder(pathlib.Path(folder))
        with serving(program, "-m", str(smollm2.path()), "--embed", str(encoder), "--context", "512", "--parallel", "4",
                     "--max-body", "64K", "--queue", "32", "--api-key", KEY, key=KEY) as server:
            if "libmicrohttpd" in server.words:
                report.skip(server.words.strip().splitlines()[-1])
            elif report.add(server.port > 0, f"serves {server.facts.get('model')}{server.words}") or server.port > 0:
                check_lists(report, server)
                check_answers(program, report, server)
                check_sampling(program, report, server)
                check_schema(report, server)
                check_tools(report, server)
                check_together(report, server)
                check_embeddings(program, report, server, encoder)
                check_refusals(report, server)
                check_bytes(report, server)
                check_disconnects(report, server)
                check_slow_reader(report, server)
                check_memory(report, server)
                report.add(server.end()[0] == ENDED_BY_SIGTERM, "an idle server ends at once")
        if not report.skipped:
            check_queue(program, report)
            check_tool_template(program, report, pathlib.Path(folder))
            check_drafts(program, report)
            check_sites(program, report)
            check_start(program, report)
            check_early(program, report)
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return 1 if report.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
