//! More rows of the matrix: the ends of turns, and what agents do beside the protocol.

use super::{Move, ROW, Row};

/// How turns end.
pub(super) const ENDS: &[Row] = &[
    Row {
        name: "claude, codex 0.16, opencode, qwen: an error of the model as an internal error",
        prompts: &["say a\nerror -32603 API Error: 400", "say on"],
        comes: &["say a", "failed agent_error: API Error: 400", "say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "gemini: an error of the model under a code that is not JSON-RPC's",
        prompts: &["error 400 API Error: 400", "say on"],
        comes: &["failed agent_error: API Error: 400", "say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "codex 2.6: an error of the model as an ordinary answer",
        prompts: &["say unexpected status 400", "say on"],
        comes: &["say unexpected status 400", "end end_turn", "say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "an error without a code or words",
        prompts: &["put {\"jsonrpc\":\"2.0\",\"id\":$P,\"error\":{}}\nnever", "say on"],
        comes: &["failed agent_error: an error without words", "say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "an error whose cause hides in its data",
        prompts: &[concat!(
            r#"put {"jsonrpc":"2.0","id":$P,"error":{"code":-32603,"message":"Internal error","data":{"details":"no key"}}}"#,
            "\nnever"
        )],
        comes: &["failed agent_error: Internal error: no key"],
        ..ROW
    },
    Row {
        name: "reasons to stop, known and unknown, and none",
        prompts: &[
            "stop max_tokens",
            "stop max_turn_requests",
            "stop refusal",
            "stop waits_for_the_moon",
            "end {}",
            "end {\"stopReason\":7}",
        ],
        comes: &[
            "end max_tokens",
            "end max_turn_requests",
            "end refusal",
            "end waits_for_the_moon",
            "end unknown",
            "end unknown",
        ],
        ..ROW
    },
    Row {
        name: "an answer that comes twice",
        prompts: &["put {\"jsonrpc\":\"2.0\",\"id\":$P,\"result\":{\"stopReason\":\"end_turn\"}}", "say on"],
        comes: &["end end_turn", "say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "an answer under our number as text",
        prompts: &[
            "put {\"jsonrpc\":\"2.0\",\"id\":\"$P\",\"result\":{\"stopReason\":\"end_turn\"}}\nnever",
            "say on",
        ],
        comes: &["end end_turn", "say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "answers to what nobody asked",
        prompts: &[concat!(
            r#"put {"jsonrpc":"2.0","id":9999,"result":{}}"#,
            "\n",
            r#"put {"jsonrpc":"2.0","id":"none","result":{}}"#,
            "\n",
            r#"put {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#,
            "\n",
            r#"put {"jsonrpc":"2.0","id":-1,"result":{}}"#,
            "\nsay on"
        )],
        comes: &["say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "an agent that dies in mid-turn",
        prompts: &["open work\nsay last words\ndie"],
        comes: &["started work, other", "say last words", "ended work, failed", "exited agent_exited"],
        ..ROW
    },
];

/// What agents do beside all that.
pub(super) const REST: &[Row] = &[
    Row {
        name: "qwen, and things we do not lend: private requests are refused",
        prompts: &[concat!(
            r#"put {"jsonrpc":"2.0","id":"q","method":"craft/drainMidTurnQueue","params":{"sessionId":"$S"}}"#,
            "\nheard \"q\"\n",
            r#"put {"jsonrpc":"2.0","id":1,"method":"terminal/create","params":{"sessionId":"$S","command":"sh"}}"#,
            "\nheard 1\n",
            r#"put {"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{"sessionId":"$S"}}"#,
            "\nheard 2"
        )],
        comes: &[
            "say heard error -32601",
            "say heard error -32601",
            "say heard error -32601",
            "end end_turn",
        ],
        ..ROW
    },
    Row {
        name: "claude, codex 2.x: private notifications are ignored",
        prompts: &[concat!(
            r#"put {"jsonrpc":"2.0","method":"_auth/status_update","params":{"status":"ok"}}"#,
            "\n",
            r#"put {"jsonrpc":"2.0","method":"session/request_permission","params":{"toolCall":{"title":"no id"}}}"#,
            "\nsay on"
        )],
        comes: &["say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "opencode: a write without a question of its own is asked for",
        prompts: &["write a.txt hello"],
        moves: &[Move::Approve],
        comes: &[
            r#"asked fs/write_text_file, edit, {"content":"hello","path":"a.txt"} [allow reject]"#,
            "file a.txt",
            "say written",
            "end end_turn",
        ],
        ..ROW
    },
    Row {
        name: "kinds of update that nobody knows are handed on, those about the agent itself are not",
        prompts: &[concat!(
            r#"update {"sessionUpdate":"subagent_update","x":1}"#,
            "\n",
            r#"update {"sessionUpdate":"usage_update","used":1,"size":2}"#,
            "\n",
            r#"update {"sessionUpdate":"current_mode_update","currentModeId":"ask"}"#,
            "\n",
            r#"update {"no":"kind"}"#,
            "\n",
            r#"update {"sessionUpdate":"agent_message_chunk","content":{"type":"image","data":"x"}}"#
        )],
        comes: &[
            "activity subagent_update",
            "activity update",
            "activity agent_message_chunk",
            "end end_turn",
        ],
        ..ROW
    },
    Row {
        name: "codex, claude 0.101: a warning inside of the answer is part of it",
        prompts: &["say Model metadata not found. \nsay hello"],
        comes: &["say Model metadata not found. ", "say hello", "end end_turn"],
        ..ROW
    },
    Row {
        name: "lines that are no messages",
        prompts: &[concat!(
            "put Welcome!\nput {not json}\nput [1,2]\nput \"text\"\nput {}\nput {\"id\":1}\nput null\n",
            "put {\"method\":7}\nput \nput {\"jsonrpc\":\"2.0\",\"method\":\"session/update\"}\n",
            "put {\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":[1]}\ngarbage 100\ndeep 200\nsay on"
        )],
        comes: &["say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "what is said of another conversation is not ours, and its questions are refused",
        prompts: &[concat!(
            "other-session\n",
            r#"put {"jsonrpc":"2.0","id":0,"method":"session/request_permission","params":{"sessionId":"another","toolCall":{}}}"#,
            "\nheard 0\n",
            r#"put {"jsonrpc":"2.0","id":1,"method":"fs/read_text_file","params":{"sessionId":"another","path":"effects.jsonl"}}"#,
            "\nheard 1\nsay mine"
        )],
        comes: &["say heard error -32602", "say heard error -32602", "say mine", "end end_turn"],
        ..ROW
    },
    Row {
        name: "updates after the end of a turn",
        prompts: &[concat!(
            r#"put {"jsonrpc":"2.0","id":$P,"result":{"stopReason":"end_turn"}}"#,
            "\nsay after\n",
            r#"update {"sessionUpdate":"available_commands_update","availableCommands":[]}"#,
            "\nnever"
        )],
        comes: &["end end_turn", "say after"],
        ..ROW
    },
    Row {
        name: "claude 0.23.1: a question after the end of a turn",
        prompts: &["outside"],
        moves: &[Move::Approve],
        comes: &["end end_turn", "asked outside, execute, null [yes-always yes no]", "say outside \"yes\""],
        ..ROW
    },
    Row { name: "a word byte by byte", prompts: &["drip"], comes: &["say dripped", "end end_turn"], ..ROW },
];
