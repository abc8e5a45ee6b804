use super::*;

fn echo(name: &str, input: Value) -> Call {
    Call { name: name.to_owned(), input, effect: ToolEffect::Echo }
}

fn owned(text: &str) -> String {
    text.to_owned()
}

#[test]
fn every_directive_is_read_as_its_step() {
    let rate = NonZeroU32::new(50);
    let table = [
        ("/say Hello  there ", Step::Say { text: owned("Hello  there") }),
        ("/think hm", Step::Think { text: owned("hm") }),
        ("/tokens 3", Step::Tokens { count: 3, per_second: None }),
        ("/tokens 3 50", Step::Tokens { count: 3, per_second: rate }),
        ("/tool read {\"path\": \"a b\"}", Step::Tool { call: echo("read", json!({ "path": "a b" })) }),
        ("/tool count 7", Step::Tool { call: echo("count", json!(7)) }),
        (
            "/ask shell {\"command\":\"ls\"}",
            Step::Ask { calls: vec![echo("shell", json!({"command":"ls"}))] },
        ),
        (
            "/ask-all a {\"x\":\"1 | 2\"} | b [\"}|{\"]|c null",
            Step::Ask {
                calls: vec![
                    echo("a", json!({ "x": "1 | 2" })),
                    echo("b", json!(["}|{"])),
                    echo("c", Value::Null),
                ],
            },
        ),
        ("/write a/b.txt some  text", Step::Write { path: owned("a/b.txt"), text: owned("some  text") }),
        ("/plan A; B ;; C", Step::Plan { entries: vec![owned("A"), owned("B"), owned("C")] }),
        ("/usage 10 20", Step::Usage { input_tokens: 10, output_tokens: 20 }),
        ("/activity looks around", Step::Activity { label: owned("looks around") }),
        ("/compact all so far", Step::Compact { summary: owned("all so far") }),
        ("/remember blue", Step::Remember { word: owned("blue") }),
        ("/recall", Step::Recall),
        ("/sleep 250", Step::Sleep { ms: 250 }),
        ("/fail too_bad It broke.", Step::Fail { code: owned("too_bad"), message: owned("It broke.") }),
        ("/hang", Step::Hang),
        ("/deaf", Step::Deaf),
        ("/die", Step::Die),
        ("/lose-state", Step::LoseState),
        ("/stop-reason refusal", Step::StopReason { word: owned("refusal") }),
    ];
    for (line, step) in &table {
        assert_eq!(parse(line).as_ref(), Ok(&vec![step.clone()]), "{line}");
    }
    for (name, _) in USAGE {
        let directive = |line: &str| line.trim_start_matches('/').split(' ').next() == Some(name);
        assert!(table.iter().any(|(line, _)| directive(line)), "/{name} is in the table");
    }
}

#[test]
fn directives_run_in_order_and_other_lines_are_ignored() {
    let steps = parse("Please:\r\n/say a\r\n /say indented\nnot me\n/recall").unwrap();
    assert_eq!(steps, [Step::Say { text: owned("a") }, Step::Recall]);
}

#[test]
fn a_prompt_without_a_directive_is_greeted() {
    assert_eq!(parse("Hello!\nand/or welcome"), Ok(greeting()));
    assert_eq!(parse(""), Ok(greeting()));
}

#[test]
fn a_bad_line_is_refused_with_its_number_and_how_to_write_it() {
    for (prompt, part) in [
        ("/dance", "line 1: /dance is no directive; there are /say TEXT,"),
        ("hi\n/", "line 2: / is no directive"),
        ("/say", "line 1: the text is missing; write /say TEXT"),
        ("/say ok\n/tokens", "line 2: N is missing; write /tokens N [PER_SECOND]"),
        ("/tokens many", "N must be a whole number in range, not `many`"),
        ("/tokens -1", "N must be a whole number"),
        ("/tokens 1 0", "PER_SECOND must be a whole number"),
        ("/tokens 1 2 3", "PER_SECOND must be a whole number"),
        ("/tool", "the tool's name is missing"),
        ("/tool read", "the JSON input of read is missing; write /tool NAME JSON"),
        ("/tool read {\"path\":", "the input of read is not JSON"),
        ("/tool read {} {}", "it takes one call alone"),
        ("/ask shell nonsense", "the input of shell is not JSON"),
        ("/ask-all a {} b {}", "between two calls stands `|`"),
        ("/ask-all a {} |", "the tool's name is missing"),
        ("/write a.txt", "the text is missing; write /write PATH TEXT"),
        ("/plan ;;", "the plan is empty"),
        ("/usage 1", "OUT is missing"),
        ("/remember two words", "it takes one word alone"),
        ("/recall all", "/recall takes nothing after it"),
        ("/sleep soon", "MS must be a whole number"),
        ("/fail code", "the text is missing"),
        ("/stop-reason", "the word is missing"),
    ] {
        let complaint = parse(prompt).unwrap_err();
        assert!(complaint.contains(part), "{prompt:?}: {complaint}");
    }
}

#[test]
fn the_words_of_a_text_are_the_text() {
    assert_eq!(words("Hello  wide\tworld "), ["Hello  ", "wide\t", "world "]);
    assert_eq!(words("Grüße, 世界"), ["Grüße, ", "世界"]);
    assert_eq!(words(""), Vec::<&str>::new());
}

#[test]
fn the_shell_understands_an_echo_into_a_file_and_nothing_else() {
    for command in ["echo hi there > a.txt", "echo 'hi there' > 'a.txt'", " echo \"hi there\">a.txt "] {
        assert_eq!(echo_to_file(command), Some((owned("hi there"), owned("a.txt"))), "{command}");
    }
    let others = ["", "ls", "rm -rf /", "echo hi", "echo hi >> a", "echo $HOME > a", "echo a > b && rm b"];
    for command in others {
        assert_eq!(echo_to_file(command), None, "{command}");
    }
}
