//! Lines of JSON on stdin and stdout.

use std::io::{BufRead, Write};

use serde_json::Value;

/// Writes text as it is. Without a reader there is nothing left to do.
pub fn raw(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// The next message; `None` at the end of stdin.
pub fn read() -> Option<Value> {
    let mut line = String::new();
    loop {
        line.clear();
        if std::io::stdin().lock().read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Ok(message) = serde_json::from_str(&line) {
            return Some(message);
        }
    }
}
