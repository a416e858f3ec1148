"""Opens streams with the official client library, all at once, and tells what each amounted to.

usage: streams.py BASE_URL MODEL COUNT KIND PROMPT

KIND is chat or completions. Prints `begun` once every stream has sent text, then one line of
JSON for each: the text, the ids, the finish reason and the usage. A stream that breaks off
ends the program with an exception.
"""

import asyncio
import json
import sys

import openai


async def one(client: openai.AsyncOpenAI, model: str, kind: str, prompt: str, begun) -> dict:
    # With counts in every chunk, so that they are known wherever a stream breaks.
    usage = {"include_usage": True, "continuous_usage_stats": True}
    options = {"model": model, "stream": True, "stream_options": usage}
    if kind == "chat":
        options["messages"] = [{"role": "user", "content": prompt}]
        stream = await client.chat.completions.create(**options)
    else:
        stream = await client.completions.create(**options, prompt=prompt)
    text, ids, finish, usage = "", set(), None, None
    async for chunk in stream:
        ids.add(chunk.id)
        for choice in chunk.choices:
            text += (choice.delta.content if kind == "chat" else choice.text) or ""
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
        if text and not begun.done():
            begun.set_result(None)
    return {
        "text": text,
        "ids": sorted(ids),
        "finish": finish,
        "usage": usage and usage.model_dump(exclude_none=True),
    }


async def main(url: str, model: str, count: str, kind: str, prompt: str) -> None:
    limits = {"max_retries": 0, "timeout": 120}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", **limits) as client:
        loop = asyncio.get_running_loop()
        begun = [loop.create_future() for _ in range(int(count))]
        streams = [
            asyncio.ensure_future(one(client, model, kind, prompt, sign)) for sign in begun
        ]
        await asyncio.gather(*begun)
        print("begun", flush=True)
        for answer in await asyncio.gather(*streams):
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
