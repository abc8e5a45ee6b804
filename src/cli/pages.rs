//! Lists, page by page.

use serde_json::Value;

use super::Exit;
use super::client::{Answer, Client};
use super::error::CliResult;
use super::table::{Cell, Table};
use super::terminal::{Look, Terminal};
use super::when::Moment;

/// The most that the service gives at once.
const PAGE_MAX: usize = 200;

/// Reads a list until its end, or until so many items have come.
pub(super) struct Pages<'a> {
    client: &'a Client,
    path: Vec<&'a str>,
    query: Vec<(&'a str, String)>,
    left: Option<usize>,
    cursor: Option<String>,
    begun: bool,
}

/// A page.
pub(super) struct Page {
    /// Its items.
    pub items: Vec<Value>,
    /// The answer that brought it, for its time.
    pub answer: Answer,
}

impl<'a> Pages<'a> {
    /// A reader of the list at `path`; `limit: None` reads all of it.
    pub(super) fn new(
        client: &'a Client,
        path: Vec<&'a str>,
        query: Vec<(&'a str, String)>,
        limit: Option<usize>,
    ) -> Self {
        Self { client, path, query, left: limit, cursor: None, begun: false }
    }

    /// The next page; `None` after the last.
    ///
    /// # Errors
    /// What the service says.
    pub(super) async fn next(&mut self) -> CliResult<Option<Page>> {
        if self.left == Some(0) || (self.begun && self.cursor.is_none()) {
            return Ok(None);
        }
        let mut query = self.query.clone();
        query.push(("limit", self.left.map_or(PAGE_MAX, |left| left.min(PAGE_MAX)).to_string()));
        if let Some(cursor) = self.cursor.take() {
            query.push(("cursor", cursor));
        }
        let mut answer = self.client.get(&self.path, &query).await?;
        let items = answer.take_list()?;
        self.begun = true;
        self.cursor = answer.body.get("next_cursor").and_then(Value::as_str).map(str::to_owned);
        self.left = self.left.map(|left| left.saturating_sub(items.len()));
        Ok(Some(Page { items, answer }))
    }

    /// Whether there is more than was asked for.
    fn is_more(&self) -> bool {
        self.cursor.is_some()
    }

    /// Shows the list: JSON lines for a program, a table for a person, or `none` where it is empty.
    ///
    /// # Errors
    /// What the service says, or when it cannot be written.
    pub(super) async fn show<const N: usize>(
        mut self,
        terminal: &mut Terminal,
        mut table: Table,
        row: fn(&Value, Option<Moment>) -> [Cell; N],
        none: &str,
    ) -> CliResult<Exit> {
        let mut empty = true;
        while let Some(page) = self.next().await? {
            for item in &page.items {
                empty = false;
                if terminal.json {
                    terminal.json_line(item)?;
                } else {
                    table.row(row(item, page.answer.now.filter(|_| terminal.on_screen())));
                }
            }
        }
        if terminal.json {
            return Ok(Exit::Ok);
        }
        if empty {
            terminal.note(none, Look::Dim)?;
            return Ok(Exit::Ok);
        }
        let text = table.render(terminal.width, terminal.colours());
        terminal.painted(&text)?;
        if self.is_more() {
            terminal.note("there are more: --all", Look::Dim)?;
        }
        Ok(Exit::Ok)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::stub::{Reply, Stub};
    use super::*;

    fn page(first: usize, count: usize, next: Option<&str>) -> Reply {
        let data: Vec<usize> = (first..first + count).collect();
        Reply::json(200, json!({"data": data, "next_cursor": next}))
    }

    async fn read(stub: &Stub, limit: Option<usize>) -> (usize, bool) {
        let client = stub.client();
        let mut pages = Pages::new(&client, vec!["v1", "sessions"], vec![("status", "idle".into())], limit);
        let mut count = 0;
        while let Some(page) = pages.next().await.unwrap() {
            count += page.items.len();
        }
        (count, pages.is_more())
    }

    #[tokio::test]
    async fn all_pages_are_read_with_the_filter_on_each() {
        let stub = Stub::start([page(0, 200, Some("c1")), page(200, 7, None)]).await;
        assert_eq!(read(&stub, None).await, (207, false));
        let expected =
            ["GET /v1/sessions?status=idle&limit=200", "GET /v1/sessions?status=idle&limit=200&cursor=c1"];
        assert_eq!(stub.lines(), expected);
    }

    #[tokio::test]
    async fn a_limit_is_kept_and_more_is_told_of() {
        let stub = Stub::start([page(0, 200, Some("c1")), page(200, 50, Some("c2"))]).await;
        assert_eq!(read(&stub, Some(250)).await, (250, true));
        assert!(stub.lines()[1].contains("limit=50"));
    }
}
