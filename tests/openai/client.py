"""Drives an OpenAI-compatible server with the official client library, as a user would.

usage: client.py BASE_URL MODEL [ROUNDS]

One round sends one request of each kind: chat, completions and responses, each streaming and
unary. Prints one line of JSON: for each kind the number of responses by generation (the word
before the colon in `old:0 old:1 …`) and of streamed pieces of text; the models; and the error
for an unknown model. A response of mixed or incomplete text ends the program with an exception.
"""

import json
import sys
from collections import Counter, defaultdict

import openai

WORDS = 5
PROMPT = f"Hello! <<words={WORDS} each_ms=2>>"
MESSAGES = [{"role": "user", "content": PROMPT}]


def generation(text: str) -> str:
    """The generation that sent the text, which must be the complete text of one generation."""
    name = text.partition(":")[0]
    expected = " ".join(f"{name}:{index}" for index in range(WORDS))
    if text != expected:
        raise AssertionError(f"expected {expected!r}, got {text!r}")
    return name


class Driver:
    def __init__(self, url: str, model: str):
        # No retries: what the server does shall be seen, not what the library makes of it.
        self.client = openai.OpenAI(
            base_url=f"{url.rstrip('/')}/v1", api_key="none", max_retries=0, timeout=30
        )
        self.model = model

    def chat(self):
        answer = self.client.chat.completions.create(model=self.model, messages=MESSAGES)
        choice = answer.choices[0]
        assert choice.finish_reason == "stop", choice
        return [choice.message.content]

    def chat_stream(self):
        with self.client.chat.completions.create(
            model=self.model, messages=MESSAGES, stream=True
        ) as stream:
            choices = [chunk.choices[0] for chunk in stream]
        assert choices[-1].finish_reason == "stop", choices[-1]
        return [choice.delta.content for choice in choices if choice.delta.content]

    def completions(self):
        answer = self.client.completions.create(model=self.model, prompt=PROMPT)
        assert answer.choices[0].finish_reason == "stop", answer
        return [answer.choices[0].text]

    def completions_stream(self):
        with self.client.completions.create(
            model=self.model, prompt=PROMPT, stream=True
        ) as stream:
            choices = [chunk.choices[0] for chunk in stream]
        assert choices[-1].finish_reason == "stop", choices[-1]
        return [choice.text for choice in choices if choice.text]

    def responses(self):
        answer = self.client.responses.create(model=self.model, input=PROMPT)
        assert answer.status == "completed", answer
        return [answer.output_text]

    def responses_stream(self):
        with self.client.responses.create(
            model=self.model, input=PROMPT, stream=True
        ) as stream:
            events = list(stream)
        assert events[0].type == "response.created", events[0]
        assert events[-1].type == "response.completed", events[-1]
        return [event.delta for event in events if event.type == "response.output_text.delta"]

    def unknown_model(self):
        try:
            self.client.chat.completions.create(model="no-such-model", messages=MESSAGES)
        except openai.APIStatusError as error:
            return {"error": type(error).__name__, "status": error.status_code}
        raise AssertionError("an unknown model got an answer")


def main(url: str, model: str, rounds: int = 1) -> None:
    driver = Driver(url, model)
    ways = (
        driver.chat,
        driver.chat_stream,
        driver.completions,
        driver.completions_stream,
        driver.responses,
        driver.responses_stream,
    )
    generations, pieces = defaultdict(Counter), Counter()
    for _ in range(rounds):
        for way in ways:
            texts = way()
            generations[way.__name__][generation("".join(texts))] += 1
            pieces[way.__name__] += len(texts)
    summary = {
        "rounds": rounds,
        "generations": generations,
        "total": sum(generations.values(), Counter()),
        "pieces": pieces,
        "models": sorted(model.id for model in driver.client.models.list()),
        "unknown_model": driver.unknown_model(),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
