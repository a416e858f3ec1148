"""Why crossfade differs from HAProxy or Envoy, request by request."""

_STRICT_LINE = "RFC 9112 §3 allows a single space between the parts of the line; crossfade does not repair requests"
_LINE_END = "RFC 9112 §2.2 lets a recipient accept LF for CRLF; servers differ, so crossfade rejects it"
_FOLDED = "RFC 9112 §5.2: a gateway rejects a folded line or joins it; crossfade rejects it"
_HOST = "RFC 9112 §3.2: a request with a missing, repeated, or invalid Host gets 400"
_VERSION = "crossfade speaks HTTP/1.0, HTTP/1.1, and HTTP/2; any other version in the line gets 505"
_ABSOLUTE = "RFC 9112 §3.2.2: crossfade sends the origin form, with Host from the target, as Envoy does"
_SCHEME = "crossfade accepts only absolute targets of http and https, with a host and without a user"
_TARGET = "RFC 3986 does not allow these characters in a target"
_OCTETS = "RFC 3986 does not allow octets from 0x80 on, but clients send them; crossfade forwards valid UTF-8 unchanged"
_CONTROL = "RFC 9110 §5.5 does not allow control characters in a value"
_LENGTH = "RFC 9112 §6.3: crossfade accepts only a single Content-Length of decimal digits that fits in 64 bits"
_BOTH = "RFC 9112 §6.1: two lengths may be an attempt at smuggling; crossfade rejects them, as Envoy does"
_SHORT = "the whole body had arrived before the request was forwarded, so crossfade gives it a length; the bytes are the same"
_CHUNKS = "RFC 9112 §7.1: crossfade rejects chunks that the grammar does not allow or that exceed its limits"
_TRAILERS = "crossfade and Envoy remove trailers here; crossfade also drops `te` from such a request"
_HOP = "RFC 9110 §7.6.1: crossfade removes fields that concern a single connection; HAProxy forwards some of them"
_EXPECT = "the body has already arrived, so crossfade answers `100-continue` itself"
_UNKNOWN_EXPECT = "RFC 9110 §10.1.1: an unknown expectation gets 417"
_HTTP10 = "RFC 9110 §2.5: a gateway sends its own version, so crossfade forwards HTTP/1.0 as HTTP/1.1; Envoy, as configured here, does not serve HTTP/1.0"
_METHOD = "RFC 9110 §9.1: methods are case-sensitive tokens, and the server decides which it supports; Envoy knows a closed set"
_CONNECT = "crossfade is a gateway and opens no tunnels for CONNECT"
_EMPTY = "RFC 9110 §8.6: a POST without content has `content-length: 0`, which crossfade and Envoy add"

_BY_REASON = {
    _METHOD: ["lower-case method", "unknown method"],
    _STRICT_LINE: ["two spaces after the method", "tab after the method", "space after the version"],
    _VERSION: ["two spaces before the version", "HTTP/1.2", "HTTP/2.0 in the request line", "HTTP/3.0 in the request line"],
    _LINE_END: [
        "bare LF first", "value with a bare LF", "every line ends in LF", "one line ends in LF", "the last line ends in LF",
        "line ended by CR CR LF", "value with a bare CR",
    ],
    _ABSOLUTE: [
        "absolute form", "absolute form, other host", "absolute form, upper-case scheme", "absolute form without a path",
        "absolute form, https",
    ],
    _SCHEME: ["absolute form, ftp", "absolute form, user", "absolute form, empty host", "GET *"],
    _CONNECT: ["CONNECT"],
    _OCTETS: ["UTF-8"],
    _TARGET: ["braces and pipes", "angle brackets"],
    _HOST: [
        "absolute form, no Host", "no Host", "empty Host", "two identical Hosts", "two different Hosts", "Host with a comma",
        "Host with a bad port", "Host with a port above 65535", "Host with a user", "Host with a path", "Host with a space",
        "Host with a truncated IPv6 address", "Host in UTF-8",
    ],
    _CONTROL: ["value with NUL", "value with BEL", "value with DEL"],
    _FOLDED: ["folded value", "value folded with a tab", "folded Content-Length", "folded trailer"],
    _EMPTY: ["POST without a length"],
    _LENGTH: [
        "same length twice", "same length in a list", "length with leading zeros", "length 2^64", "length 2^64 + 3",
    ],
    _BOTH: ["Transfer-Encoding after Content-Length", "Content-Length after Transfer-Encoding, request in the body"],
    _SHORT: [
        "chunked", "chunked in upper case", "GET with a transfer coding", "chunk extension", "quoted chunk extension",
        "chunk size with a space", "chunk size with leading zeros", "last chunk with three zeros",
    ],
    _CHUNKS: [
        "chunk extension with NUL", "8 KiB chunk extension", "chunk size with 20 zeros", "chunk ended by LF",
        "chunk size ended by LF", "chunk longer than its size",
    ],
    _TRAILERS: ["trailer", "Content-Length trailer", "Transfer-Encoding trailer", "Host trailer", "Authorization trailer"],
    _HOP: [
        "field listed in Connection", "Connection twice", "Keep-Alive", "Proxy-Connection", "TE: trailers",
        "Upgrade without Connection", "Upgrade to h2c",
    ],
    _EXPECT: ["Expect", "Expect in upper case", "Expect twice", "GET with Expect"],
    _UNKNOWN_EXPECT: ["unknown Expect", "empty Expect"],
    _HTTP10: [
        "HTTP/1.0", "HTTP/1.0 without Host", "HTTP/1.0 with keep-alive", "HTTP/1.0 with Expect",
        "HTTP/1.0 POST without a length",
    ],
    "RFC 9112 §6.1 does not allow transfer codings in HTTP/1.0": ["chunked in HTTP/1.0"],
    "the route `/` of this run does not match `*` in Envoy; crossfade sends it to old": ["OPTIONS *"],
    "larger than `--max-body-bytes`": ["length 2^63"],
    "the bytes after the body are a request with the method `cGET`; Envoy knows a closed set of methods": [
        "body longer than its length"
    ],
    "crossfade, like HAProxy, does not let Connection remove what a gateway itself needs": [
        "Connection lists Host", "Connection lists Content-Length", "Connection lists X-Forwarded-For",
    ],
    "crossfade allows upgrades; Envoy is not configured to": ["Upgrade to WebSocket"],
    "Envoy adds a length to an OPTIONS without content": ["Max-Forwards: 0"],
}

REASONS = {name: reason for reason, names in _BY_REASON.items() for name in names}
