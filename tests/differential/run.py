#!/usr/bin/env python3
"""Sends the same unusual requests through crossfade, HAProxy, and Envoy, and compares what reaches a recording server.

usage: run.py [--write] [CROSSFADE]

Every difference needs a reason in reasons.py, and every reason needs a difference. README.md in this directory lists both; the run
fails if it differs from what --write would write. benches/install.sh installs HAProxy and Envoy.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from cases import CASES
from reasons import REASONS

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
# What gateways add on their way, each in its own manner.
ADDED = re.compile(r"^(via|forwarded|x-forwarded-.*|x-request-id|x-envoy-.*|connection|x-crossfade-.*)$")
SILENCE = 0.4
PATIENCE = 15


class Recorder:
    """A server that records what it receives and sends one response per connection."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.requests = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        connection.settimeout(SILENCE)
        read = b""
        record = None
        try:
            while not whole(read):
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                read += piece
                if record is None:
                    record = len(self.requests)
                    self.requests.append(b"")
                self.requests[record] = read
                if b"\r\nexpect: 100-continue" in read.lower() and read.endswith(b"\r\n\r\n"):
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        except OSError:
            pass
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
        except OSError:
            pass
        connection.close()


def split(message):
    """First line, fields, and rest of a message; None while its head is incomplete."""
    at = message.find(b"\r\n\r\n")
    if at < 0:
        return None
    line, *fields = message[:at].decode("latin-1").split("\r\n")
    fields = [tuple(part.strip() for part in field.partition(":")[::2]) for field in fields]
    return line, [(name.lower(), value) for name, value in fields], message[at + 4 :]


def whole(message):
    """Is the request complete according to its framing?"""
    parts = split(message)
    if parts is None:
        return False
    _, fields, body = parts
    fields = dict(fields)
    if "transfer-encoding" in fields:
        return dechunked(body) is not None
    return len(body) >= int(fields.get("content-length") or 0)


def dechunked(body):
    """Payload and trailers of a chunked body; None while it is incomplete."""
    payload = b""
    while True:
        line, found, body = body.partition(b"\r\n")
        if not found:
            return None
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        if len(body) < size + 2:
            return None
        payload, body = payload + body[:size], body[size + 2 :]
    if body.startswith(b"\r\n"):
        return payload, b""
    trailers, found, _ = body.partition(b"\r\n\r\n")
    return (payload, trailers) if found else None


def meaning(message):
    """A request as a set of lines, for comparisons that ignore the order and case of the fields."""
    parts = split(message)
    if parts is None:
        return ["cut: " + message[:60].decode("latin-1")]
    line, fields, body = parts
    lines = [f"{name}: {value}" for name, value in fields if not ADDED.match(name)]
    if dict(fields).get("transfer-encoding", "").lower() == "chunked":
        payload, trailers = dechunked(body) or (body, b"")
        lines += [f"trailer {text}" for text in trailers.decode("latin-1").lower().split("\r\n") if text]
        body = payload
    if body:
        lines.append("body " + body.decode("latin-1"))
    return [line, *sorted(lines)]


def ask(port, request):
    """Sends bytes and returns the statuses of the responses."""
    read = b""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(2 * SILENCE)
        try:
            connection.sendall(request)
            while piece := connection.recv(1 << 16):
                read += piece
                if read.count(b"\r\n\r\nok") >= request.count(b"HTTP/1.1\r\nHost"):
                    break
        except OSError:
            pass
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d\d\d)", read)]


class Proxy:
    """A proxy with its own recorder behind it."""

    def __init__(self, name, command, directory):
        self.name = name
        self.recorder = Recorder()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        arguments = command(self.port, self.recorder.port, directory)
        log = open(directory / f"{name}.log", "wb")
        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    sys.exit(f"{name} does not start: see {log.name}")
                time.sleep(0.02)
        self.results = {}

    def run(self):
        for name, request in CASES.items():
            self.recorder.requests.clear()
            statuses = ask(self.port, request)
            # What was sent before the answer is here; what is sent behind it follows at once.
            time.sleep(0.02)
            # Which port the server has is no difference between two runs.
            own, fixed = (f"127.0.0.1:{port}".encode() for port in (self.recorder.port, "PORT"))
            messages = [message.replace(own, fixed) for message in list(self.recorder.requests)]
            reached = [meaning(message) for message in messages]
            self.results[name] = (statuses, sorted(reached))

    def end(self):
        self.process.terminate()
        self.process.wait()


def crossfade(program):
    def command(port, server, _):
        return [program, "proxy", "--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0", "--threads", "1",
                "--old", f"127.0.0.1:{server}", "--log", "error", "--no-access-log"]

    return command


def haproxy(program):
    def command(port, server, directory):
        path = directory / "haproxy.cfg"
        path.write_text(f"""defaults
    mode http
    timeout connect 5s
    timeout client 10s
    timeout server 10s
listen all
    bind 127.0.0.1:{port}
    server one 127.0.0.1:{server}
""")
        return [program, "-db", "-f", str(path)]

    return command


def envoy(program):
    def command(port, server, directory):
        def address(number):
            return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

        kind = "type.googleapis.com/envoy.extensions.filters"
        manager = {
            "@type": f"{kind}.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "in",
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
                {"match": {"prefix": "/"}, "route": {"cluster": "one", "timeout": "0s"}}]}]},
            "http_filters": [{"name": "envoy.filters.http.router",
                              "typed_config": {"@type": f"{kind}.http.router.v3.Router"}}],
        }
        filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
        cluster = {"name": "one", "type": "STATIC", "load_assignment": {"cluster_name": "one", "endpoints": [
            {"lb_endpoints": [{"endpoint": {"address": address(server)}}]}]}}
        listener = {"name": "in", "address": address(port), "filter_chains": [{"filters": filters}]}
        path = directory / "envoy.json"
        path.write_text(json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
        return [program, "-c", str(path), "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]

    return command


def shown(text):
    """Text for a cell of a table."""
    text = text if len(text) <= 70 else text[:50] + f"… ({len(text)} bytes)"
    text = "".join(c if " " <= c <= "~" else f"\\x{ord(c):02x}" for c in text)
    return "`" + text.replace("|", "\\|").replace("`", "'") + "`"


def cell(result, base):
    """How a proxy handled a request, described by how that differs from crossfade."""
    statuses, reached = result
    refused = "/".join(str(status) for status in statuses if status != 200) or "closed"
    if not reached:
        return refused
    if not base[1]:
        return "passes " + "; ".join(shown(lines[0]) for lines in reached)
    if reached == base[1]:
        return "same"
    ours = {line for lines in base[1] for line in lines}
    theirs = {line for lines in reached for line in lines}
    changes = ["without " + shown(line) for line in sorted(ours - theirs)]
    changes += ["with " + shown(line) for line in sorted(theirs - ours)]
    if len(reached) != len(base[1]):
        changes.append(f"{len(reached)} requests")
    return ", ".join(changes)


def main():
    arguments = sys.argv[1:]
    write = "--write" in arguments
    given = [argument for argument in arguments if argument != "--write"]
    program = given[0] if given else str(ROOT / "target/release/crossfade")
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    found = shutil.which("haproxy", path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")
    other = cache / "crossfade/bench/envoy"
    if not found or not other.exists():
        sys.exit("HAProxy or Envoy is missing: benches/install.sh")
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        proxies = [
            Proxy("crossfade", crossfade(program), directory),
            Proxy("haproxy", haproxy(found), directory),
            Proxy("envoy", envoy(str(other)), directory),
        ]
        threads = [threading.Thread(target=proxy.run) for proxy in proxies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for proxy in proxies:
            proxy.end()
    sys.exit(judge(proxies, write))


def judge(proxies, write):
    ours, *peers = proxies
    rows, alike, wrong = [], [], []
    for name in CASES:
        base = ours.results[name]
        same = all(peer.results[name][1] == base[1] for peer in peers)
        if same:
            alike.append(name)
            if name in REASONS:
                wrong.append(f"{name}: has a reason, but no difference")
            continue
        first = "passes" if base[1] else cell(base, base)
        cells = [first] + [cell(peer.results[name], base) for peer in peers]
        if name not in REASONS:
            wrong.append(f"{name}: {CASES[name][:120]!r}\n    " + "\n    ".join(
                f"{proxy.name}: {text}" for proxy, text in zip(proxies, cells)))
        rows.append(f"| {name} | {' | '.join(cells)} | {REASONS.get(name, '?')} |")
    wrong += [f"{name}: a reason without a case" for name in REASONS if name not in CASES]
    text = page(rows, alike)
    path = HERE / "README.md"
    if write:
        path.write_text(text)
    elif not path.exists() or path.read_text() != text:
        wrong.append("README.md does not match this run: run it with --write, and review the difference")
    for problem in wrong:
        print(problem)
    print(f"{len(CASES)} requests, {len(alike)} alike, {len(rows)} not, {len(wrong)} problems")
    return 1 if wrong else 0


def page(rows, alike):
    return f"""# Unusual requests through three proxies

Written by `make differential WRITE=--write`: {len(CASES)} requests ([`cases.py`](cases.py)) go through crossfade, HAProxy, and Envoy to a
server that records what it receives. Fields that gateways add (`via`, `x-forwarded-*`, request ids) are left out, and the order and case
of fields do not count. The column `crossfade` shows `passes` if the request reached the server, and otherwise the status of the response.
In the other columns, `same` means that the server received the same request; otherwise, the cell shows what it received, or the difference.

## Handled differently

| request | crossfade | HAProxy | Envoy | why |
| --- | --- | --- | --- | --- |
{chr(10).join(rows)}

## Handled alike

{", ".join(alike)}.
"""


if __name__ == "__main__":
    main()
