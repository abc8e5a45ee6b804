#!/usr/bin/env python3
"""A model that says what the last prompt tells it to: the other end of the real agents in tests/it/real_agents.

It speaks as much of OpenAI's Responses and Chat Completions, of Anthropic's Messages and of Gemini's generateContent as the
agents need, on loopback, with the standard library alone. It keeps nothing: an answer follows from its request, so that agents
can be killed and started again beside it.

    the request ends with a tool's result   TOOLRESULT(the result) DONE
    RUN{command}        a call of the shell tool that the agent offers
    SLOW{n}             n words, two each second
    HANG                nothing, until the agent has enough
    RECALL              RECALLED(the newest CODEWORD=word of the conversation, or NOTHING)
    Ostler's word of a decision   where approved, the last such call again
    else                ECHO(the prompt)

The last of these in the last prompt counts: agents put several prompts into one when a turn of theirs was cut off.

Usage: server.py      It prints "PORT n" when it listens, and ends when its stdin is closed.
"""

import gzip
import json
import os
import re
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SHELLS = ("exec_command", "shell", "shell_command", "local_shell", "Bash", "bash", "run_shell_command")
WORD_SECONDS = 0.5
DIRECTIVE = re.compile(
    r"RUN\{(?P<run>.*?)\}|SLOW\{(?P<slow>\d+)\}|(?P<hang>\bHANG\b)|(?P<recall>\bRECALL\b)|(?P<code>CODEWORD=\w+)"
    r"|(?P<decided>\[ostler\] The process.*)", re.S)


def text_of(content):
    """The text of a message or a result: a string, a block, or a list of either."""
    if isinstance(content, list):
        return "\n".join(text_of(block) for block in content)
    if isinstance(content, dict):
        return text_of(content.get("text") or content.get("content") or "")
    return content or ""


class Request:
    """What every dialect comes down to: the prompts so far, the tool's result at the end, and the tools on offer."""

    def __init__(self, model):
        self.model = model or "scripted"
        self.prompts = []
        self.result = None
        self.tools = {}

    def said(self, role, text):
        if role == "user":
            self.prompts.append(text)
        self.result = None

    def shell_call(self, command):
        """The name and arguments of a call of the shell tool; None when there is none."""
        name = next((name for name in SHELLS if name in self.tools), None)
        if name is None:
            return None
        schema = self.tools[name] or {}
        properties = schema.get("properties", {})
        key = "cmd" if "cmd" in properties else "command"
        as_list = properties.get(key, {}).get("type") == "array"
        arguments = {key: ["bash", "-c", command] if as_list else command}
        blanks = {"boolean": False, "integer": 10000, "number": 10000, "array": []}
        for required in schema.get("required", []):
            arguments.setdefault(required, blanks.get(properties.get(required, {}).get("type"), "as it was told"))
        # On a slow machine an agent may give up waiting, end its turn, and with it the command that has not begun.
        if "yield_time_ms" in properties:
            arguments["yield_time_ms"] = 30000
        if self.model.endswith("-escalate"):
            # An agent that runs what its sandbox allows asks only about what has to leave it.
            arguments.update(sandbox_permissions="require_escalated", justification="as it was told")
        return name, arguments

    def reply(self):
        """("call", name, arguments), ("text", pieces, seconds between them) or ("hang",)."""
        if self.result is not None:
            return said("TOOLRESULT(%s) DONE" % self.result.strip())
        prompt = self.prompts[-1] if self.prompts else ""
        last = ([None] + list(DIRECTIVE.finditer(prompt)))[-1]
        word = last.lastgroup if last else None
        run = last["run"] if word == "run" else None
        if word == "decided":
            # Told that its call was approved, a model makes it again.
            runs = [hit["run"] for hit in DIRECTIVE.finditer("\n".join(self.prompts[:-1]) + prompt[:last.start()])
                    if hit["run"]]
            run = runs[-1] if runs and "It was approved" in last["decided"] else None
            if run is None:
                return said("told")
        if run is not None:
            call = self.shell_call(run)
            return ("call", *call) if call else said("no tool here runs commands")
        if word == "slow":
            return "text", ["word%d " % number for number in range(int(last["slow"]))], WORD_SECONDS
        if word == "hang":
            return ("hang",)
        if word == "recall":
            words = re.findall(r"CODEWORD=(\w+)", "\n".join(self.prompts))
            return said("RECALLED(%s)" % (words[-1] if words else "NOTHING"))
        return said("ECHO(%s)" % prompt[-200:])


def said(text):
    half = len(text) // 2
    return "text", [text[:half], text[half:]], 0


def new_id(prefix):
    return prefix + uuid.uuid4().hex[:12]


class Responses:
    """OpenAI's Responses API: /v1/responses."""

    @staticmethod
    def read(body):
        request = Request(body.get("model"))
        for item in body.get("input") or []:
            if str(item.get("type", "")).endswith("_output"):
                request.result = text_of(item.get("output"))
            elif item.get("type", "message") == "message":
                request.said(item.get("role"), text_of(item.get("content")))
        for tool in body.get("tools") or []:
            if tool.get("type") == "function":
                request.tools[tool["name"]] = tool.get("parameters")
        return request

    @staticmethod
    def frames(request, reply):
        usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
        response = {"id": new_id("resp_"), "object": "response", "created_at": 1, "model": request.model,
                    "status": "in_progress", "output": []}
        yield {"type": "response.created", "response": response}
        if reply[0] == "call":
            item = {"type": "function_call", "id": new_id("fc_"), "call_id": new_id("call_"), "name": reply[1],
                    "arguments": json.dumps(reply[2]), "status": "completed"}
        else:
            content = {"type": "output_text", "text": "".join(reply[1]), "annotations": []}
            item = {"type": "message", "id": new_id("msg_"), "role": "assistant", "status": "completed",
                    "content": [content]}
            yield {"type": "response.output_item.added", "output_index": 0,
                   "item": dict(item, content=[], status="in_progress")}
            for piece in reply[1]:
                yield {"type": "response.output_text.delta", "item_id": item["id"], "output_index": 0,
                       "content_index": 0, "delta": piece}
                time.sleep(reply[2])
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        yield {"type": "response.completed",
               "response": dict(response, status="completed", output=[item], usage=usage)}

    @staticmethod
    def whole(request, reply):
        return list(Responses.frames(request, reply))[-1]["response"]


class Chat:
    """OpenAI's Chat Completions: /v1/chat/completions."""

    @staticmethod
    def read(body):
        request = Request(body.get("model"))
        for message in body.get("messages") or []:
            request.said(message.get("role"), text_of(message.get("content")))
            if message.get("role") == "tool":
                request.result = text_of(message.get("content"))
        for tool in body.get("tools") or []:
            request.tools[tool["function"]["name"]] = tool["function"].get("parameters")
        return request

    @staticmethod
    def message(reply):
        if reply[0] == "call":
            function = {"name": reply[1], "arguments": json.dumps(reply[2])}
            return {"tool_calls": [{"index": 0, "id": new_id("call_"), "type": "function", "function": function}]}
        return {"content": "".join(reply[1])}

    @staticmethod
    def envelope(request, kind, choice):
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": request.model,
                "choices": [dict(choice, index=0)], "usage": usage}

    @staticmethod
    def frames(request, reply):
        def chunk(delta, reason=None):
            return Chat.envelope(request, "chat.completion.chunk", {"delta": delta, "finish_reason": reason})
        yield chunk({"role": "assistant", "content": ""})
        if reply[0] == "call":
            yield chunk(Chat.message(reply))
        else:
            for piece in reply[1]:
                yield chunk({"content": piece})
                time.sleep(reply[2])
        yield chunk({}, "tool_calls" if reply[0] == "call" else "stop")
        yield "[DONE]"

    @staticmethod
    def whole(request, reply):
        reason = "tool_calls" if reply[0] == "call" else "stop"
        message = dict({"role": "assistant", "content": None}, **Chat.message(reply))
        return Chat.envelope(request, "chat.completion", {"message": message, "finish_reason": reason})


class Messages:
    """Anthropic's Messages: /v1/messages."""

    @staticmethod
    def read(body):
        request = Request(body.get("model"))
        for message in body.get("messages") or []:
            content = message.get("content")
            blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
            results = [block for block in blocks if block.get("type") == "tool_result"]
            text = text_of([block for block in blocks if block.get("type") == "text"])
            # What stands beside a result is a reminder of the agent's, or a prompt that came when the call had been cut off.
            if not results or DIRECTIVE.search(text):
                request.said(message.get("role"), text)
            elif results:
                request.result = text_of(results)
        for tool in body.get("tools") or []:
            request.tools[tool["name"]] = tool.get("input_schema")
        return request

    @staticmethod
    def block(reply):
        if reply[0] == "call":
            return {"type": "tool_use", "id": new_id("toolu_"), "name": reply[1], "input": reply[2]}
        return {"type": "text", "text": "".join(reply[1])}

    @staticmethod
    def envelope(request, content, reason):
        usage = {"input_tokens": 11, "output_tokens": 7, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        return {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": request.model,
                "content": content, "stop_reason": reason, "stop_sequence": None, "usage": usage}

    @staticmethod
    def frames(request, reply):
        reason = "tool_use" if reply[0] == "call" else "end_turn"
        message = Messages.envelope(request, [], None)
        yield {"type": "message_start", "message": message}
        block = Messages.block(reply)
        if reply[0] == "call":
            yield {"type": "content_block_start", "index": 0, "content_block": dict(block, input={})}
            yield {"type": "content_block_delta", "index": 0,
                   "delta": {"type": "input_json_delta", "partial_json": json.dumps(reply[2])}}
        else:
            yield {"type": "content_block_start", "index": 0, "content_block": dict(block, text="")}
            for piece in reply[1]:
                yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
                time.sleep(reply[2])
        yield {"type": "content_block_stop", "index": 0}
        yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None},
               "usage": message["usage"]}
        yield {"type": "message_stop"}

    @staticmethod
    def whole(request, reply):
        reason = "tool_use" if reply[0] == "call" else "end_turn"
        return Messages.envelope(request, [Messages.block(reply)], reason)


class Gemini:
    """Gemini's API: /v1beta/models/MODEL:generateContent and :streamGenerateContent."""

    @staticmethod
    def read(body):
        request = Request("gemini")
        for message in body.get("contents") or []:
            parts = message.get("parts", [])
            results = [part["functionResponse"] for part in parts if "functionResponse" in part]
            text = text_of([part.get("text", "") for part in parts])
            if not results or DIRECTIVE.search(text):
                request.said(message.get("role"), text)
            else:
                request.result = json.dumps(results[0].get("response"))
        for tool in body.get("tools") or []:
            for function in tool.get("functionDeclarations", []):
                request.tools[function["name"]] = function.get("parametersJsonSchema") or function.get("parameters")
        # Its own questions on the side want JSON.
        request.wants_json = (body.get("generationConfig") or {}).get("responseMimeType") == "application/json"
        return request

    @staticmethod
    def envelope(part, reason):
        candidate = {"index": 0, "content": {"role": "model", "parts": [part]}}
        if reason:
            candidate["finishReason"] = reason
        usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}

    @staticmethod
    def frames(request, reply):
        if reply[0] == "call":
            yield Gemini.envelope({"functionCall": {"id": new_id("f"), "name": reply[1], "args": reply[2]}}, "STOP")
            return
        for number, piece in enumerate(reply[1]):
            yield Gemini.envelope({"text": piece}, "STOP" if number == len(reply[1]) - 1 else None)
            time.sleep(reply[2])

    @staticmethod
    def whole(request, reply):
        if request.wants_json:
            choice = {"reasoning": "scripted", "model_choice": "flash", "next_speaker": "user",
                      "complexity_reasoning": "scripted", "complexity_score": 1}
            return Gemini.envelope({"text": json.dumps(choice)}, "STOP")
        if reply[0] == "call":
            return Gemini.envelope({"functionCall": {"name": reply[1], "args": reply[2]}}, "STOP")
        return Gemini.envelope({"text": "".join(reply[1])}, "STOP")


def dialect_of(path, body):
    """The dialect of a request and whether its answer is a stream."""
    for end, dialect in (("/responses", Responses), ("/chat/completions", Chat), ("/messages", Messages)):
        if path.endswith(end):
            return dialect, bool(body.get("stream"))
    verb = path.rsplit(":", 1)[-1]
    if verb in ("generateContent", "streamGenerateContent"):
        return Gemini, verb.startswith("stream")
    return None, False


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        if self.path.split("?")[0].endswith("/models"):
            return self.answer(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        return self.answer(404, {"error": {"message": "not found"}})

    do_HEAD = do_GET

    def body(self):
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            body = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
        return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    def do_POST(self):
        body = json.loads(self.body() or b"{}")
        path = self.path.split("?")[0]
        if path.endswith(("/count_tokens", ":countTokens")):
            return self.answer(200, {"input_tokens": 11, "totalTokens": 11})
        dialect, streams = dialect_of(path, body)
        if dialect is None:
            return self.answer(404, {"error": {"message": "not found"}})
        if not any(self.headers.get(name) for name in ("authorization", "x-api-key", "x-goog-api-key")):
            return self.answer(401, {"error": {"message": "no key"}})
        request = dialect.read(body)
        reply = request.reply()
        try:
            if reply[0] == "hang":
                return self.hang()
            if not streams:
                return self.answer(200, dialect.whole(request, reply))
            self.begin_stream()
            for frame in dialect.frames(request, reply):
                kind = "event: %s\n" % frame["type"] if "type" in frame else ""
                text = frame if isinstance(frame, str) else json.dumps(frame)
                self.wfile.write(("%sdata: %s\n\n" % (kind, text)).encode())
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            # It did not want to hear the end.
            self.close_connection = True

    def begin_stream(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def hang(self):
        self.begin_stream()
        while True:
            self.wfile.write(b": still here\n\n")
            self.wfile.flush()
            time.sleep(WORD_SECONDS)


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
