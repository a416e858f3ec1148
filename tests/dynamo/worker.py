"""A scripted Dynamo worker. It sends `old:0 old:1 old:2 …`, one event per word.

The text names the generation and is known in advance. A prompt may contain commands between
double angle brackets. The last block for this worker counts:

    <<tag=a7 words=20 first_ms=50 each_ms=10 die_after=5>>

    for=NAME       only for workers with this name
    words=N        number of words (10)
    first_ms=N     wait before the first word (0)
    each_ms=N      wait between words (0)
    die_after=N    the process exits after N words; 0: before the first
    raise_after=N  the engine raises after N words
    hang_after=N   silence after N words, until the request is cancelled or the worker gets SIGUSR2;
                   before `die_after` and `raise_after`
    http_error=N   the engine rejects the request with this HTTP status
    counted=1      every worker sends the words `w:0 w:1 …`, starting after those in the prompt that
                   follow the commands. So one worker can continue the stream of another
    thinks=N       N words of reasoning `t:0 t:1 …` before the text, between <think> and </think>;
                   none if the text is continued. If the chat template has opened <think>, the
                   worker does not open it again
    tag=WORD       names the request in the events file

With --role it has one role: `prefill` processes the prompt and passes on its name, and `decode`
sends the words if a prefill worker with the same name has processed the prompt.

Each request writes lines to the events file: `started TAG`, then `finished TAG WORDS`,
`cancelled TAG WORDS` or `failed TAG WORDS`.

With --ready-port it listens on this port once it is registered. SIGUSR1 closes the port or opens
it again: while it is closed, the worker looks not ready, although it serves.
"""

import argparse
import asyncio
import os
import re
import signal
from pathlib import Path

import uvloop
from tokenizers import Tokenizer

from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.llm.exceptions import HttpError
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.logging import configure_dynamo_logging

# Time for sent words to leave the process before it exits. The runtime does not report this.
FLUSH_SECONDS = 0.05


class Orders:
    def __init__(self, prompt: str, name: str):
        found = re.findall(r"<<(.*?)>>", prompt)
        blocks = [dict(pair.split("=", 1) for pair in block.split()) for block in found]
        mine = [block for block in blocks if block.pop("for", name) == name]
        given = mine[-1] if mine else {}
        self.tag = given.pop("tag", "-")
        numbers = {key: int(value) for key, value in given.items()}
        self.words = numbers.pop("words", 10)
        self.first = numbers.pop("first_ms", 0) / 1000
        self.each = numbers.pop("each_ms", 0) / 1000
        self.die_after = numbers.pop("die_after", None)
        self.raise_after = numbers.pop("raise_after", None)
        self.hang_after = numbers.pop("hang_after", None)
        self.http_error = numbers.pop("http_error", None)
        self.name, self.begin = name, 0
        if numbers.pop("counted", 0):
            said = re.findall(r"w:(\d+)", prompt.rsplit(">>", 1)[-1])
            self.name, self.begin = "w", int(said[-1]) + 1 if said else 0
        self.thinks = 0 if self.begin else numbers.pop("thinks", 0)
        self.opened = prompt.rstrip().endswith("<think>")
        numbers.pop("thinks", None)
        if numbers:
            raise ValueError(f"unknown orders: {sorted(numbers)}")


class Cancelled(Exception):
    pass


class Readiness:
    def __init__(self, port: int):
        self.port = port
        self.server: asyncio.Server | None = None

    async def turn(self) -> None:
        """Opens the port if it is closed, and closes it if it is open."""
        if self.server is None:
            self.server = await asyncio.start_server(lambda _, writer: writer.close(), port=self.port)
        else:
            self.server.close()
            self.server = None


class Worker:
    def __init__(self, name: str, tokenizer: Tokenizer, events: Path):
        self.name = name
        self.tokenizer = tokenizer
        self.events = events
        self.released = asyncio.Event()

    def note(self, what: str) -> None:
        with self.events.open("a") as file:
            file.write(what + "\n")

    async def pause(self, seconds: float | None, context) -> None:
        """Waits, until SIGUSR2 if None; raises Cancelled as soon as nobody wants the answer."""
        if seconds != 0:
            ends = [asyncio.ensure_future(context.async_killed_or_stopped())]
            if seconds is None:
                ends.append(asyncio.ensure_future(self.released.wait()))
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
        if context.is_stopped():
            raise Cancelled

    async def prefill(self, request, context):
        yield {
            "token_ids": request["token_ids"][-1:],
            "finish_reason": "length",
            "disaggregated_params": {"read_by": self.name},
        }

    async def decode(self, request, context):
        given = (request.get("prefill_result") or {}).get("disaggregated_params") or {}
        if given.get("read_by") != self.name:
            raise RuntimeError(f"the prompt was read by {given.get('read_by')}")
        async for event in self.generate(request, context):
            yield event

    async def generate(self, request, context):
        orders = Orders(self.tokenizer.decode(request["token_ids"]), self.name)
        self.note(f"started {orders.tag}")
        said, end = 0, "failed"
        try:
            if orders.http_error is not None:
                raise HttpError(orders.http_error, "ordered by the test")
            await self.pause(orders.first, context)
            for event in self.words(orders, request):
                if said == orders.hang_after:
                    await self.pause(None, context)
                if said == orders.die_after:
                    await asyncio.sleep(FLUSH_SECONDS)
                    os._exit(9)
                if said == orders.raise_after:
                    raise RuntimeError("ordered by the test")
                yield event
                said += 1
                if "finish_reason" not in event:
                    await self.pause(orders.each, context)
            end = "finished"
        except (Cancelled, GeneratorExit, asyncio.CancelledError):
            end = "cancelled"
        finally:
            self.note(f"{end} {orders.tag} {said}")

    def words(self, orders: Orders, request):
        """The engine outputs, one per word; the last one carries the finish reason."""
        left = (request.get("stop_conditions") or {}).get("max_tokens")
        for index in range(orders.thinks):
            opens = index == 0 and not orders.opened
            begin, end = "<think>" * opens, "</think>" * (index == orders.thinks - 1)
            thought = f"{begin}{' ' if index else ''}t:{index}{end}"
            yield {"token_ids": self.tokenizer.encode(thought).ids}
        for index in range(orders.begin, orders.words):
            ids = self.tokenizer.encode(f"{' ' if index else ''}{orders.name}:{index}").ids
            if left is not None and len(ids) > left:
                yield {"token_ids": ids[:left], "finish_reason": "length"}
                return
            if left is not None:
                left -= len(ids)
            last = index == orders.words - 1
            yield {"token_ids": ids, **({"finish_reason": "stop"} if last else {})}


# The model types, the worker type, and the other worker types that each role needs.
ROLES = {
    "worker": (ModelType.Chat | ModelType.Completions, WorkerType.Aggregated, None),
    "prefill": (ModelType.Prefill, WorkerType.Prefill, [[WorkerType.Decode]]),
    "decode": (ModelType.Chat | ModelType.Completions, WorkerType.Decode, [[WorkerType.Prefill]]),
}


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--model-name", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--name", required=True, help="what the words begin with")
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--discovery-backend", default="file", help="file or kubernetes")
    parser.add_argument("--role", choices=ROLES, default="worker")
    parser.add_argument("--reasoning-parser", help="by which the frontend tells thoughts from words")
    parser.add_argument("--ready-port", type=int, help="open once it is registered")
    args = parser.parse_args()

    configure_dynamo_logging()
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, args.discovery_backend, "tcp", event_plane="zmq")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runtime.shutdown)
    component = "backend" if args.role == "worker" else args.role
    endpoint = runtime.endpoint(f"{args.namespace}.{component}.generate")
    model_type, worker_type, needs = ROLES[args.role]
    runtime_config = ModelRuntimeConfig()
    if args.reasoning_parser:
        runtime_config.reasoning_parser = args.reasoning_parser
    await register_model(
        ModelInput.Tokens,
        model_type,
        endpoint,
        str(args.model_path),
        args.model_name,
        worker_type=worker_type,
        needs=needs,
        runtime_config=runtime_config,
        self_host_metadata=False,
        ignore_weights=True,
    )
    tokenizer = Tokenizer.from_file(str(args.model_path / "tokenizer.json"))
    worker = Worker(args.name, tokenizer, args.events)
    loop.add_signal_handler(signal.SIGUSR2, worker.released.set)
    serve = {"worker": worker.generate, "prefill": worker.prefill, "decode": worker.decode}
    serving = asyncio.ensure_future(
        endpoint.serve_endpoint(serve[args.role], graceful_shutdown=True)
    )
    if args.ready_port:
        readiness = Readiness(args.ready_port)
        await readiness.turn()
        turns = set()
        loop.add_signal_handler(
            signal.SIGUSR1, lambda: turns.add(asyncio.ensure_future(readiness.turn()))
        )
    await serving


if __name__ == "__main__":
    uvloop.run(main())
