//! Who asks. A handler takes one of these extractors first; without one it has no principal, and so no scope to ask anything with.
//!
//! The order of refusals: no valid key (401), a key without the permission (403), and only then anything about the request.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};

use super::error::{ApiError, ApiResult, ErrorCode};
use crate::domain::scope::{OWNER_MAX_CHARS, Permission, Principal, is_tenant_name};
use crate::service::{Service, ServiceError};

const OSTLER_OWNER: HeaderName = HeaderName::from_static("ostler-owner");

macro_rules! callers {
    ($($(#[$doc:meta])* $name:ident needs $permission:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(pub Principal);

        impl<S> FromRequestParts<S> for $name
        where
            S: Send + Sync,
            Arc<Service>: FromRef<S>,
        {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
                let service = Arc::<Service>::from_ref(state);
                let principal = authenticate(&service, &parts.headers).await?;
                let needed: Option<Permission> = $permission;
                needed.map_or(Ok(()), |permission| principal.require(permission))?;
                Ok(Self(principal))
            }
        }
    )+};
}

callers! {
    /// Anybody with a valid key.
    Anyone needs None;
    /// May read sessions.
    Reads needs Some(Permission::SessionsRead);
    /// May create and change sessions.
    Writes needs Some(Permission::SessionsWrite);
    /// May decide approvals.
    Decides needs Some(Permission::ApprovalsDecide);
    /// May manage keys.
    Administers needs Some(Permission::Admin);
}

/// Who a request's key stands for, and on whose behalf it is sent.
///
/// # Errors
/// `unauthenticated`; `invalid_query` for an Ostler-Owner header that cannot be an owner.
pub(super) async fn authenticate(service: &Service, headers: &HeaderMap) -> ApiResult<Principal> {
    let token = bearer(headers).ok_or(ServiceError::Unauthenticated)?;
    let mut principal = service.authenticate(token).await?;
    principal.on_behalf_of = named_owner(headers)?;
    Ok(principal)
}

/// The token of the only Authorization header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn named_owner(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let mut values = headers.get_all(OSTLER_OWNER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let owner = std::str::from_utf8(value.as_bytes()).ok();
    let owner = owner.filter(|owner| is_tenant_name(owner, OWNER_MAX_CHARS) && values.next().is_none());
    let words = || format!("Ostler-Owner: must stand once and have 1 to {OWNER_MAX_CHARS} characters");
    owner.map(|owner| Some(owner.to_owned())).ok_or_else(|| ApiError::new(ErrorCode::InvalidQuery, words()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        map
    }

    #[test]
    fn a_token_stands_in_one_bearer_header() {
        let of = |values: &[&str]| {
            let pairs: Vec<_> = values.iter().map(|value| (header::AUTHORIZATION, *value)).collect();
            bearer(&headers(&pairs)).map(str::to_owned)
        };
        assert_eq!(of(&["Bearer abc"]).as_deref(), Some("abc"));
        assert_eq!(of(&["bearer  abc"]).as_deref(), Some("abc"));
        for wrong in [&["Basic abc"][..], &["abc"], &[], &["Bearer a", "Bearer a"]] {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn an_owner_is_named_once_and_within_bounds() {
        let of = |values: &[&str]| {
            let pairs: Vec<_> = values.iter().map(|value| (OSTLER_OWNER, *value)).collect();
            named_owner(&headers(&pairs)).map_err(|error| error.code())
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["zoë@example.com"]), Ok(Some("zoë@example.com".into())));
        let longest = "x".repeat(OWNER_MAX_CHARS);
        assert_eq!(of(&[&longest]), Ok(Some(longest.clone())));
        for wrong in [&[""][..], &[" "], &["a", "a"], &[&(longest + "x")]] {
            assert_eq!(of(wrong), Err(ErrorCode::InvalidQuery), "{wrong:?}");
        }
    }
}
