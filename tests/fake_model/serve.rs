//! The scripted model by hand: `cargo run --bin fake-model -- --listen 127.0.0.1:8089`. It prints its base URL and serves until it is
//! interrupted; what a conversation can tell it stands in chat/script.rs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fixture that cannot go on should say where")]
#![allow(clippy::print_stdout, reason = "it says where it listens")]

mod chat;

use std::net::SocketAddr;

use clap::Parser;

/// A model that does as the conversation tells it to.
#[derive(Parser)]
struct Args {
    /// Where it listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

#[tokio::main]
async fn main() {
    let model = chat::ChatModel::forgetful(Args::parse().listen);
    println!("{}", model.base_url());
    tokio::signal::ctrl_c().await.unwrap();
    model.stop().await;
}
