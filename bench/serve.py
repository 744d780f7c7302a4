"""serve.py — `trunnion serve` and llama.cpp's server on the same file, with the same threads: throughput and first token.

    serve.py [--build build] [--streams 1 8 32] [--tokens 64] [--threads 2] [--rounds 3] [--without-peer]

Both servers start once for each number of streams and answer by turns. A round sends as many streamed completions at
once as there are streams, each with a prompt of its own of about 40 tokens, greedy. Printed are medians over the
rounds: tokens a second of all streams together, the time to the first token (median and longest of the streams), and
the processor time of the server for each token, which other work on the machine changes least. tools/peers/llama_cpp.sh
builds the peer.
"""

import argparse
import http.client
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from peers import built  # noqa: E402
from text import smollm2  # noqa: E402

PATIENCE = 300
CONTEXT = 512
PROMPT = "Story {}, round {}. Once upon a time, in a small village near the sea, there lived a girl who wanted to know " \
         "everything about the stars, the moon and the sun. One day she"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, name, command, port):
        self.name, self.port = name, port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not self.is_ready():
            time.sleep(0.1)

    def is_ready(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def seconds(self):
        """Of processor time."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.process.terminate()
        self.process.wait()

    def stream(self, number, round_, tokens, out):
        start, first, count = time.monotonic(), None, 0
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        body = {"prompt": PROMPT.format(number, round_), "max_tokens": tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if first is None and event["choices"] and event["choices"][0].get("text"):
                first = time.monotonic() - start
            if event.get("usage"):
                count = event["usage"]["completion_tokens"]
        out[number] = first, count

    def round(self, streams, round_, tokens):
        """Tokens a second, median and longest time to the first token, milliseconds of processor time a token."""
        out, busy, start = [None] * streams, self.seconds(), time.monotonic()
        threads = [threading.Thread(target=self.stream, args=(i, round_, tokens, out)) for i in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall, busy = time.monotonic() - start, self.seconds() - busy
        firsts, total = [first for first, _ in out], sum(count for _, count in out)
        return total / wall, statistics.median(firsts), max(firsts), 1000 * busy / total


def start(options, streams):
    model, threads = str(smollm2.path()), str(options.threads)
    port, other = free_port(), free_port()
    servers = [Server("trunnion", [ROOT / options.build / "trunnion", "serve", "-m", model, "--threads", threads, "--port",
                                   str(port), "--parallel", str(streams), "--context", str(CONTEXT)], port)]
    if not options.without_peer:
        servers.append(Server("llama.cpp", [built.llama_cpp() / "bin" / "llama-server", "-m", model, "-t", threads, "-tb",
                                            threads, "--port", str(other), "-np", str(streams), "-c",
                                            str(CONTEXT * streams)], other))
    return servers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-peer", action="store_true")
    options = parser.parse_args()
    print("| streams | server | tokens/s | first token, median (s) | longest (s) | processor time a token (ms) |")
    print("|---|---|---|---|---|---|")
    for streams in options.streams:
        servers = start(options, streams)
        rows = {server.name: [] for server in servers}
        for round_ in range(options.rounds + 1):  # the first makes plans
            for server in servers:
                row = server.round(streams, round_, options.tokens)
                if round_ > 0:
                    rows[server.name].append(row)
        for server in servers:
            values = [statistics.median(column) for column in zip(*rows[server.name])]
            print(f"| {streams} | {server.name} | {values[0]:.0f} | {values[1]:.3f} | {values[2]:.3f} | {values[3]:.2f} |",
                  flush=True)
            server.end()


if __name__ == "__main__":
    main()
