"""Reads streams with an official client library, as its users do.

usage: stream_client.py messages|responses URL COUNT

Prints one line of JSON with the id and the blocks or items of each stream, each with its type and its text or the arguments of a
call. A stream that the library cannot read ends the program with its exception.
"""

import json
import sys

OPTIONS = {"api_key": "none", "max_retries": 0, "timeout": 30}
PROMPT = [{"role": "user", "content": "hello"}]


class Messages:
    def __init__(self, url: str):
        import anthropic

        self.client = anthropic.Anthropic(base_url=url, **OPTIONS)

    def read(self):
        stream = self.client.messages.stream(model="tiny", max_tokens=9, messages=PROMPT)
        with stream as stream:
            message = stream.get_final_message()
        assert message.stop_reason == "end_turn", message
        return message.id, [[block.type, self.said(block)] for block in message.content]

    @staticmethod
    def said(block):
        return block.text if block.type == "text" else json.dumps(block.input)


class Responses:
    def __init__(self, url: str):
        import openai

        self.client = openai.OpenAI(base_url=f"{url}/v1", **OPTIONS)

    def read(self):
        numbers = []
        with self.client.responses.stream(model="tiny", input="hello") as stream:
            for event in stream:
                numbers.append(event.sequence_number)
            response = stream.get_final_response()
        assert response.status == "completed", response
        assert numbers == sorted(set(numbers)), numbers
        return response.id, [[item.type, self.said(item)] for item in response.output]

    @staticmethod
    def said(item):
        return item.content[0].text if item.type == "message" else item.arguments


def main(family: str, url: str, count: str) -> None:
    client = {"messages": Messages, "responses": Responses}[family](url)
    print(json.dumps([client.read() for _ in range(int(count))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
