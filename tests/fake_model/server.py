#!/usr/bin/env python3
"""A model that says what the last prompt tells it to: the other end of the real Codex in tests/it/real_codex.rs.

It speaks as much of OpenAI's Responses API as Codex needs, on loopback, with the standard library alone. It keeps nothing:
an answer follows from its request, so that agents can be killed and started again beside it.

    the request ends with a tool's result   TOOLRESULT(the result) DONE
    the last prompt has RUN{command}        a call of the shell tool that the agent offers
    the last prompt is Ostler's word of a decision   where approved, the last such call again
    the last prompt has RECALL              RECALLED(the newest CODEWORD=word of the conversation, or NOTHING)
    else                                    ECHO(the prompt)

Usage: server.py      It prints "PORT n" when it listens, and ends when its stdin is closed.
"""

import json
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}


def text_of(content):
    """The text of a message's or result's content: a string, or a list of blocks."""
    if isinstance(content, list):
        return "\n".join(block.get("text", "") for block in content)
    return content or ""


def shell_call(tools, command):
    """The name and arguments of a call of the first tool that runs commands; None when there is none."""
    for tool in tools:
        parameters = tool.get("parameters") or {}
        properties = parameters.get("properties", {})
        key = next((key for key in ("command", "cmd") if key in properties), None)
        if tool.get("type") != "function" or key is None:
            continue
        as_list = properties[key].get("type") == "array"
        return tool["name"], {key: ["bash", "-c", command] if as_list else command}
    return None


def reply(request):
    """The one item that the model puts out: a message or a call."""
    items = request.get("input") or []
    last = items[-1] if items else {}
    if str(last.get("type", "")).endswith("_output"):
        output = last.get("output")
        return message("TOOLRESULT(%s) DONE" % text_of(output).strip())
    prompts = [text_of(item.get("content")) for item in items if item.get("role") == "user"]
    prompt = prompts[-1] if prompts else ""
    if prompt.startswith("[ostler]"):
        # Told that its call was approved, a model makes it again.
        earlier = [prompt for prompt in prompts if not prompt.startswith("[ostler]") and "RUN{" in prompt]
        prompt = earlier[-1] if "It was approved" in prompt and earlier else "told"
    run = re.search(r"RUN\{(.*?)\}", prompt, re.S)
    if run:
        call = shell_call(request.get("tools") or [], run[1])
        if call is None:
            return message("no tool here runs commands")
        name, arguments = call
        # The id of a call must be new in its conversation: it has as many items as there were before it.
        identity = "call_%d" % len(items)
        arguments = json.dumps(arguments)
        return {"type": "function_call", "id": "fc_" + identity, "call_id": identity, "name": name,
                "arguments": arguments, "status": "completed"}
    if "RECALL" in prompt:
        words = re.findall(r"CODEWORD=(\w+)", "\n".join(prompts))
        return message("RECALLED(%s)" % (words[-1] if words else "NOTHING"))
    return message("ECHO(%s)" % prompt)


def message(text):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def events(request):
    """The stream of a reply: its beginning, its text in two pieces where it has text, its item, its end."""
    item = reply(request)
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": request.get("model"),
                "status": "in_progress", "output": []}
    yield {"type": "response.created", "response": response}
    if item["type"] == "message":
        text = text_of(item["content"])
        half = len(text) // 2
        yield {"type": "response.output_item.added", "output_index": 0,
               "item": dict(item, content=[], status="in_progress")}
        for delta in (text[:half], text[half:]):
            yield {"type": "response.output_text.delta", "item_id": item["id"], "output_index": 0,
                   "content_index": 0, "delta": delta}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed",
           "response": dict(response, status="completed", output=[item], usage=USAGE)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer_json(self, status, value):
        self.answer(status, "application/json", json.dumps(value).encode())

    def do_GET(self):
        if self.path.split("?")[0] == "/v1/models":
            return self.answer_json(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        return self.answer_json(404, {"error": {"message": "not found"}})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path != "/v1/responses":
            return self.answer_json(404, {"error": {"message": "not found"}})
        if not self.headers.get("authorization"):
            return self.answer_json(401, {"error": {"message": "no key"}})
        frames = []
        for number, event in enumerate(events(json.loads(body))):
            event["sequence_number"] = number
            frames.append("event: %s\ndata: %s\n\n" % (event["type"], json.dumps(event)))
        return self.answer(200, "text/event-stream", "".join(frames).encode())


def end_with_stdin():
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=end_with_stdin, daemon=True).start()
    print("PORT", server.server_address[1], flush=True)
    server.serve_forever()
