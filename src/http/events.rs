//! A session's events, as pages and as a stream, and tickets for pages that cannot send headers.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::auth::{Reads, authenticate};
use super::error::{ApiError, ApiResult, ErrorCode};
use super::extract::{NoBody, Params, SessionPath, limit, one_of};
use super::idempotency::Repeatable;
use super::prefer::Format;
use super::sse::{self, Feed};
use super::views::{EventSchema, List, View, event_text, json_body, json_text};
use crate::clock::Timestamp;
use crate::domain::scope::{Permission, Principal, Scope};
use crate::service::{Service, ServiceError, SessionRef, Until};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The routes, below a session.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(events)).routes(routes!(make_ticket))
}

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Those after this seq.
    after: Option<String>,
    /// Of a JSON page: 1 to 200, 50 where nothing is said.
    limit: Option<String>,
    /// Of a stream: `idle` ends it when nothing is at work, `pause` also when an approval waits.
    until: Option<String>,
    /// Of a stream: in place of the Authorization header.
    ticket: Option<String>,
}

impl EventsQuery {
    fn until(&self) -> ApiResult<Until> {
        let parse = |text: &str| match text {
            "idle" => Some(Until::Idle),
            "pause" => Some(Until::Pause),
            _ => None,
        };
        Ok(one_of("until", self.until.as_deref(), parse)?.unwrap_or(Until::Destroyed))
    }

    /// The seq to go on after: the header of a reconnecting client before the parameter.
    fn after(&self, headers: &HeaderMap) -> ApiResult<i64> {
        let invalid =
            || ApiError::new(ErrorCode::InvalidCursor, "the cursor is a seq: a number that is not negative");
        let header = match headers.get(LAST_EVENT_ID) {
            Some(value) => Some(value.to_str().map_err(|_| invalid())?).filter(|text| !text.is_empty()),
            None => None,
        };
        let Some(text) = header.or(self.after.as_deref()) else { return Ok(0) };
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits).ok_or_else(invalid)
    }
}

/// Read a session's events: a page, or with `Accept: text/event-stream` as they happen.
#[utoipa::path(
    get, path = "/events", tag = "events", operation_id = "list_events",
    params(EventsQuery, ("Last-Event-ID" = Option<String>, Header, description = "Those after this seq; goes before `after`")),
    responses(
        (status = 200, description = "A page, oldest first, its `next_cursor` the next `after`; or a stream",
         content((List<EventSchema> = "application/json"), (String = "text/event-stream"))),
        (status = 204, description = "The session is destroyed and was read to the end: nothing more will come"),
    ),
)]
async fn events(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    format: Format,
    path: Result<SessionPath, ApiError>,
    params: Result<Params<EventsQuery>, ApiError>,
) -> ApiResult<Response> {
    // Who asks comes first; what they ask is looked at only then, so the two are taken apart by hand.
    let ticket = params.as_ref().ok().and_then(|Params(query)| query.ticket.clone());
    let by_ticket = format == Format::EventStream && !headers.contains_key(header::AUTHORIZATION);
    let principal = match ticket.filter(|_| by_ticket) {
        Some(ticket) => by_ticket_of(&service, &ticket, path.as_ref().ok()).await?,
        None => authenticate(&service, &headers).await?,
    };
    principal.require(Permission::SessionsRead)?;
    let (SessionPath(session), Params(query)) = (path?, params?);
    let after = query.after(&headers)?;
    match format {
        Format::Json => events_page(&service, &principal.scope(), &session, after, &query).await,
        Format::EventStream => {
            let tail = service.follow(&principal.scope(), &session, after, query.until()?).await?;
            Ok(match tail {
                Some(tail) => sse::answer(&service, Feed::events(tail), principal.key),
                None => StatusCode::NO_CONTENT.into_response(),
            })
        }
    }
}

async fn by_ticket_of(service: &Service, ticket: &str, path: Option<&SessionPath>) -> ApiResult<Principal> {
    let SessionPath(session) = path.ok_or(ServiceError::Unauthenticated)?;
    Ok(service.take_ticket(ticket, session).await?)
}

async fn events_page(
    service: &Service,
    scope: &Scope,
    session: &SessionRef,
    after: i64,
    query: &EventsQuery,
) -> ApiResult<Response> {
    let (session, page) = service.list_events(scope, session, after, limit(query.limit.as_deref())?).await?;
    let events: Vec<String> = page.events.iter().map(|event| event_text(&session, event)).collect();
    let last = page.events.last().map(|event| event.seq).filter(|last| *last < page.last_seq);
    let next_cursor = json_text(&last.map(|last| last.to_string()));
    Ok(json_body(format!(r#"{{"data":[{}],"next_cursor":{next_cursor}}}"#, events.join(","))))
}

/// A ticket for one stream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Ticket)]
pub struct TicketView {
    /// Goes into the query of the stream's URL: `?ticket=…`.
    ticket: String,
    /// Until when it can be taken, once.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

/// Make a ticket for one event stream of the session: valid once, for 60 s. An Idempotency-Key changes nothing here: tickets
/// are not kept in a form that could be given again.
#[utoipa::path(
    post, path = "/events/tickets", tag = "events", operation_id = "make_ticket",
    responses((status = 201, description = "The ticket", body = TicketView)),
)]
async fn make_ticket(
    State(service): State<Arc<Service>>,
    Reads(principal): Reads,
    SessionPath(session): SessionPath,
    _once: Repeatable,
    _body: NoBody,
) -> ApiResult<(StatusCode, View<TicketView>)> {
    let (ticket, expires_at) = service.make_ticket(&principal.scope(), &session, &principal.key).await?;
    Ok((StatusCode::CREATED, View(TicketView { ticket, expires_at })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_stream_goes_on_after_the_header_else_the_parameter_else_from_the_beginning() {
        let after = |header: Option<&str>, parameter: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(LAST_EVENT_ID, HeaderValue::from_str(header).unwrap());
            }
            let after = parameter.map(Into::into);
            let query = EventsQuery { after, limit: None, until: None, ticket: None };
            query.after(&headers).map_err(|error| error.code())
        };
        assert_eq!(after(None, None), Ok(0));
        assert_eq!(after(Some("7"), Some("3")), Ok(7));
        assert_eq!(after(Some(""), Some("3")), Ok(3));
        assert_eq!(after(None, Some("3")), Ok(3));
        for wrong in ["-1", "+1", "x", "1.0", " 1", "99999999999999999999"] {
            assert_eq!(after(None, Some(wrong)), Err(ErrorCode::InvalidCursor), "{wrong}");
            assert_eq!(after(Some(wrong), None), Err(ErrorCode::InvalidCursor), "{wrong}");
        }
        assert_eq!(after(None, Some("")), Err(ErrorCode::InvalidCursor));
    }
}
