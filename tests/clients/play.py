"""Plays the stories of tests/it/chat_clients.rs with the official client for Python, and prints what it saw as one JSON object.

    play.py http://127.0.0.1:7070 KEY
"""

import json
import sys

import openai

url, key = sys.argv[1:]
client = openai.OpenAI(base_url=url + "/v1", api_key=key)


def ask(prompt, **more):
    messages = [{"role": "user", "content": prompt}]
    return client.chat.completions.create(model="demo", messages=messages, **more)


def told(answer):
    choice, ostler = answer.choices[0], answer.model_extra["ostler"]
    return {
        "content": choice.message.content,
        "reason": choice.finish_reason,
        "usage": answer.usage and answer.usage.total_tokens,
        "approvals": len(ostler["approvals"]),
    }


def told_stream(chunks):
    content, reasons, usage, approvals = "", [], None, 0
    for chunk in chunks:
        usage = (chunk.usage and chunk.usage.total_tokens) or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
                approvals = len(chunk.model_extra["ostler"]["approvals"])
    return {"content": content, "reason": " ".join(reasons), "usage": usage, "approvals": approvals}


def raised(call):
    try:
        call()
    except openai.APIError as error:
        status = getattr(error, "status_code", None)
        return {"class": type(error).__name__, "code": error.code, "param": error.param, "status": status}
    return None


def named(answer, *names):
    ostler = answer.model_extra["ostler"]
    return {name: ostler[name] for name in names}


def main():
    seen = {"models": [model.id for model in client.models.list()]}
    seen["model"] = client.models.retrieve("demo").id
    seen["no_model"] = raised(lambda: client.models.retrieve("demo/none"))
    seen["completion"] = told(ask("/say hello\n/usage 10 5"))
    chunks = ask("/say hello again\n/usage 10 5", stream=True, stream_options={"include_usage": True})
    seen["streamed"] = told_stream(chunks)

    first = ask("/remember blue")
    seen["conversation"] = told(ask("/recall", metadata=named(first, "session_id")))

    paused = ask("/say before\n/ask shell {}\n/say after")
    seen["paused"] = told(paused)
    seen["busy"] = raised(lambda: ask("/say x", metadata=named(paused, "session_id")))
    turn = named(paused, "session_id", "turn_id")
    seen["paused_stream"] = told_stream(ask("go on", metadata=turn, stream=True))
    approval = paused.model_extra["ostler"]["approvals"][0]
    client.post("/approvals/%s/decision" % approval, cast_to=object, body={"decision": "approve"})
    seen["collected"] = told(ask("go on", metadata=turn))

    seen["failed"] = raised(lambda: ask("/fail tool_broke The tool broke"))
    seen["failed_stream"] = raised(lambda: told_stream(ask("/say x\n/fail tool_broke words", stream=True)))
    seen["refused"] = raised(lambda: ask("/say x", n=2))
    seen["absent"] = raised(lambda: ask("/say x", metadata={"session_id": "ses_none"}))
    stranger = openai.OpenAI(base_url=url + "/v1", api_key="nobody")
    seen["stranger"] = raised(stranger.models.list)
    print(json.dumps(seen))


main()
