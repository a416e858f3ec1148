"""Opens concurrent streams with the official client library and prints the result of each.

usage: streams.py BASE_URL MODEL COUNT KIND PROMPT

KIND is chat or completions, or `thinking` for a chat that counts as begun with its first reasoning
instead of its first text. Prints `begun` once every stream has sent text, then one line of JSON for each: the text,
the reasoning, the ids, the finish reason, the counts of prompt, completion and both, and the error that the
library raised because of an error event. A stream that breaks off without one ends the program with an exception.
"""

import asyncio
import json
import sys

import openai


async def one(client: openai.AsyncOpenAI, model: str, kind: str, prompt: str, begun) -> dict:
    # With token counts in every chunk, so that they are known wherever a stream breaks.
    usage = {"include_usage": True, "continuous_usage_stats": True}
    options = {"model": model, "stream": True, "stream_options": usage}
    if kind != "completions":
        options["messages"] = [{"role": "user", "content": prompt}]
        stream = await client.chat.completions.create(**options)
    else:
        stream = await client.completions.create(**options, prompt=prompt)
    text, reasoning, ids, finish, usage, error = "", "", set(), None, None, None
    try:
        async for chunk in stream:
            ids.add(chunk.id)
            for choice in chunk.choices:
                if kind == "completions":
                    text += choice.text or ""
                else:
                    text += choice.delta.content or ""
                    reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                finish = choice.finish_reason or finish
            usage = chunk.usage or usage
            if (reasoning if kind == "thinking" else text) and not begun.done():
                begun.set_result(None)
    except openai.APIError as raised:
        error = str(raised)
    return {
        "text": text,
        "reasoning": reasoning,
        "ids": sorted(ids),
        "finish": finish,
        "error": error,
        "usage": usage and [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens],
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
