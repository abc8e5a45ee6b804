//! The contract's machine form: OpenAPI 3.1, gathered from the routes, with what all of them have in common added once.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::security::{Http as HttpScheme, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{self, ContentBuilder, Ref, RefOr, Required, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::auth::Anyone;
use super::chat::{self, RefusalView};
use super::error::{ErrorCode, Problem};

/// What every route's document starts from.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Ostler",
        description = "Keeps agent harness sessions: durable, multi-tenant, over REST.\n\nEvery path below `/v1/sessions/{session_id}` also exists below `/v1/runs/{run_id}`. Every answer carries `Ostler-Request-Id`. Refusals are RFC 9457 problems with a `code`."
    ),
    components(schemas(Problem, ErrorCode, RefusalView)),
    tags(
        (name = "sessions", description = "Durable conversations with harnesses"),
        (name = "turns", description = "Prompts and all that they cause"),
        (name = "events", description = "What happened, in one sequence per session"),
        (name = "approvals", description = "Questions that a person answers"),
        (name = "chat", description = "The same sessions for clients of OpenAI's chat completions. Refusals here have the shape that those read, with the same codes; 422 is 400"),
        (name = "harnesses", description = "Agent runtimes"),
        (name = "keys", description = "API keys and who they stand for"),
        (name = "operations", description = "For operators"),
    ),
)]
pub struct Base;

/// The route of the document itself.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(document))
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "operations", operation_id = "openapi",
    responses((status = 200, description = "The document", body = Object)),
)]
async fn document(_reader: Anyone) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], super::openapi()).into_response()
}

/// Adds what all operations have in common.
pub(super) fn complete(mut api: openapi::OpenApi) -> openapi::OpenApi {
    let bearer = HttpScheme::builder()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("`ostler_<key id>_<secret>`"))
        .build();
    api.components.get_or_insert_default().add_security_scheme("bearer", SecurityScheme::Http(bearer));
    for (name, schema) in api.components.iter_mut().flat_map(|components| &mut components.schemas) {
        complete_schema(name, schema);
    }
    for (path, item) in &mut api.paths.paths {
        complete_path(path, item);
    }
    api
}

/// What clients get always has every field; what they send may leave some out.
fn complete_schema(name: &str, schema: &mut RefOr<Schema>) {
    let RefOr::T(Schema::Object(object)) = schema else { return };
    if !name.ends_with("Body") && name != "Limits" {
        let always = object.properties.keys().filter(|field| *field != "edited_input");
        object.required = always.cloned().collect();
    }
}

fn complete_path(path: &str, item: &mut PathItem) {
    let by_run = path.starts_with("/v1/runs/{run_id}");
    if by_run {
        item.parameters = Some(vec![RefOr::T(path_parameter("run_id", "The host's name for the session"))]);
    } else if path.starts_with("/v1/sessions/{session_id}") {
        item.parameters = Some(vec![RefOr::T(path_parameter("session_id", "The session"))]);
    }
    let posts = item.post.as_mut();
    if let Some(post) = posts {
        let words = "1 to 255 visible ASCII characters: the request has its effect once, a repeat gets the first answer";
        add_parameter(post, header_parameter("Idempotency-Key", words));
        if matches!(path, "/v1/sessions" | chat::COMPLETIONS) || path.ends_with("/prompts") {
            add_parameter(
                post,
                header_parameter("Prefer", "`wait=N`: hold the answer back for up to N ≤ 300 seconds"),
            );
        }
    }
    for operation in [&mut item.get, &mut item.post, &mut item.patch, &mut item.delete].into_iter().flatten()
    {
        complete_operation(path, by_run, operation);
    }
}

fn complete_operation(path: &str, by_run: bool, operation: &mut Operation) {
    if by_run && let Some(id) = &mut operation.operation_id {
        // Ids are unique in a document.
        id.push_str("_by_run");
    }
    if operation.security.is_none() {
        operation.security = Some(vec![SecurityRequirement::new::<_, [&str; 0], &str>("bearer", [])]);
    }
    if path.starts_with("/v1/") {
        let words = "The owner that a service or admin key acts for, 1 to 320 characters";
        add_parameter(operation, header_parameter("Ostler-Owner", words));
    }
    let (kind, schema) = if chat::is_door(path) {
        ("application/json", "ChatError")
    } else {
        ("application/problem+json", "Problem")
    };
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build();
    let refusal =
        ResponseBuilder::new().description("A refusal; its `code` says why").content(kind, content).build();
    operation.responses.responses.insert("default".to_owned(), RefOr::T(refusal));
}

fn add_parameter(operation: &mut Operation, parameter: Parameter) {
    operation.parameters.get_or_insert_default().push(RefOr::T(parameter));
}

fn parameter(name: &str, place: ParameterIn, required: Required, words: &str) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(required)
        .description(Some(words))
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .build()
}

fn path_parameter(name: &str, words: &str) -> Parameter {
    parameter(name, ParameterIn::Path, Required::True, words)
}

fn header_parameter(name: &str, words: &str) -> Parameter {
    parameter(name, ParameterIn::Header, Required::False, words)
}
