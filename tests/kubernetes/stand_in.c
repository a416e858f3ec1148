// A fake of model servers, each with one model.
//
// As `python3` in images of Dynamo: `python3 -m dynamo.frontend` is a frontend on DYN_HTTP_PORT; any other module only waits, as a worker.
// Compiled with a GENERATION, as the entry point of images of vLLM: a server on `--port`.
//
// Keeps connections open, as these servers do, until the client closes them. On SIGTERM, it exits at once and cuts its streams.
//
// The response to a prompt with `words=N each_ms=M` has N words at intervals of M ms that name the generation: GENERATION, or, by Dynamo
// namespace, old for dynamo-v1 and the graphs dgd-old, chat-1 and chat-2, and new for all others.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void end(int signal) { _exit(signal == SIGTERM ? 0 : 1); }

static void say(int to, const char *text) {
    for (size_t left = strlen(text); left;) {
        ssize_t sent = write(to, text, left);
        if (sent <= 0) _exit(0);
        text += sent, left -= (size_t)sent;
    }
}

static void page(int to, const char *status, const char *text) {
    char head[256];
    snprintf(head, sizeof head, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", status,
        strlen(text));
    say(to, head);
    say(to, text);
}

#ifndef GENERATION
static int is_old(const char *space) {
    const char *old[] = {"v1", "dgd-old", "chat-1", "chat-2"};
    for (size_t i = 0; space && i < sizeof old / sizeof *old; i++) if (strstr(space, old[i])) return 1;
    return 0;
}
#endif

static void chunk(int to, const char *text) {
    char framed[1024];
    snprintf(framed, sizeof framed, "%zx\r\n%s\r\n", strlen(text), text);
    say(to, framed);
}

// Answers one request. The connection stays open for the next one, which clients send only once they have this answer.
static void answer(int peer, const char *name) {
    static char in[1 << 16];
    size_t have = 0, whole = sizeof in - 1;
    char *body = NULL;
    while (have < whole) {
        ssize_t got = read(peer, in + have, sizeof in - 1 - have);
        if (got <= 0) _exit(0);
        in[have += (size_t)got] = 0;
        if (!body && (body = strstr(in, "\r\n\r\n"))) {
            body += 4;
            char *length = strcasestr(in, "\r\ncontent-length:");
            size_t more = length && length < body ? strtoul(length + 17, NULL, 10) : 0;
            whole = (size_t)(body - in) + more;
        }
    }
    if (!strncmp(in, "GET /v1/models ", 15)) {
        page(peer, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"Qwen/Qwen3-0.6B\",\"object\":\"model\"}]}");
        return;
    }
    if (strncmp(in, "POST", 4)) {
#ifdef GENERATION // it has no other pages
        if (strncmp(in, "GET /health ", 12)) {
            page(peer, "404 Not Found", "{\"detail\":\"Not Found\"}");
            return;
        }
#endif
        page(peer, "200 OK", "{\"status\":\"healthy\"}");
        return;
    }
    if (!strstr(body, "\"stream\":true")) {
        page(peer, "200 OK", "{\"id\":\"c\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"Qwen/Qwen3-0.6B\",\"choices\":"
            "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"pong\"},\"finish_reason\":\"length\"}]}");
        return;
    }
    int words = 1, pause = 0;
    char *asked = strstr(body, "words=");
    if (asked) sscanf(asked, "words=%d each_ms=%d", &words, &pause);
    say(peer, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    for (int word = 0; word <= words; word++) {
        char event[512], delta[64] = "";
        if (word < words) snprintf(delta, sizeof delta, "\"content\":\"%s%s:%d\"", word ? " " : "", name, word);
        snprintf(event, sizeof event,
            "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"Qwen/Qwen3-0.6B\","
            "\"choices\":[{\"index\":0,\"delta\":{%s},\"finish_reason\":%s}]}\n\n",
            delta, word < words ? "null" : "\"stop\"");
        chunk(peer, event);
        usleep((useconds_t)pause * 1000);
    }
    chunk(peer, "data: [DONE]\n\n");
    say(peer, "0\r\n\r\n");
}

int main(int count, char **args) {
    signal(SIGTERM, end);
#ifdef GENERATION
    const char *port = NULL, *name = GENERATION;
    for (int i = 1; i + 1 < count; i++) if (!strcmp(args[i], "--port")) port = args[i + 1];
#else
    int is_frontend = 0;
    for (int i = 1; i < count; i++) is_frontend |= !strcmp(args[i], "dynamo.frontend");
    if (!is_frontend) for (;;) pause();
    const char *port = getenv("DYN_HTTP_PORT"), *name = is_old(getenv("DYN_NAMESPACE")) ? "old" : "new";
#endif
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port ? port : "8000"))};
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 1024)) return perror("listen"), 1;
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int peer = accept(listener, NULL, NULL);
        if (peer < 0) continue;
        setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        if (!fork()) {
            for (;;) answer(peer, name);
        }
        close(peer);
    }
}
