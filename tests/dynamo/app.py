"""An application for uvicorn that answers some requests before their body has come.

Without an `authorization` field it answers 401 at once and reads nothing of the body. Otherwise it reads the body to its end
and says what it got: `METHOD TARGET LENGTH`. `GET /seen` says it of each request so far, one a line.
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
