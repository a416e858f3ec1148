"""An application for uvicorn that responds to some requests before their body has arrived.

Without an `authorization` field it responds with 401 at once and does not read the body. Otherwise it reads the body to its end
and responds with `METHOD TARGET LENGTH`. `GET /seen` returns one such line for each request so far.
"""

seen = []


async def answer(send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def app(scope, receive, send) -> None:
    if scope["type"] != "http":
        return
    target = scope["raw_path"].decode()
    if target == "/seen":
        await answer(send, 200, "\n".join(seen))
        return
    if not any(name == b"authorization" for name, _ in scope["headers"]):
        seen.append(f"{scope['method']} {target} unread")
        await answer(send, 401, "who are you?")
        return
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            seen.append(f"{scope['method']} {target} cut")
            return
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    said = f"{scope['method']} {target} {length}"
    seen.append(said)
    await answer(send, 200, said)
