//! What the verbs on sessions and turns share on the way from their effect to their answer.

use super::error::{ApiError, ApiResult};
use super::prefer::Wait;
use crate::domain::scope::Scope;
use crate::domain::session::Session;
use crate::domain::turn::Turn;
use crate::ids::SessionId;
use crate::service::{Seen, Service, SessionRef, SessionView};

/// The session of an effect that was had before.
pub(super) async fn seen_session(service: &Service, scope: &Scope, seen: &Seen) -> ApiResult<SessionView> {
    let id = SessionId::parse(&seen.session).ok_or_else(ApiError::not_found)?;
    Ok(service.lookup(scope, &SessionRef::Id(id)).await?)
}

/// Waits for a turn as long as the caller wishes. The turn as it is then, or the refusal that its end comes to.
pub(super) async fn awaited(
    service: &Service,
    session: &Session,
    turn: &Turn,
    wait: Wait,
) -> ApiResult<Result<Turn, ApiError>> {
    let deadline = service.clock().now().plus(wait.duration().unwrap_or_default());
    let turn = service.wait_for_turn(session, &turn.id, deadline).await?;
    Ok(match ApiError::of_awaited(session, &turn) {
        Some(refusal) => Err(refusal),
        None => Ok(turn),
    })
}
