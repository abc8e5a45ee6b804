//! What `model` may be.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::Http;
use crate::http::auth::Reads;
use crate::http::error::{ApiError, ApiResult};
use crate::http::extract::NamePath;
use crate::http::views::View;
use crate::service::{Availability, Service};

/// The routes. A client may leave the stroke in a name as it is.
pub fn routes() -> OpenApiRouter<Http> {
    let routes = OpenApiRouter::default().routes(routes!(list)).routes(routes!(find));
    routes.route("/v1/models/{harness}/{*model}", get(find))
}

/// A name that `model` may be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Model)]
pub struct ModelView {
    /// A harness, or a harness and one of its models.
    id: String,
    /// model.
    object: &'static str,
    /// 0: it is not known.
    created: i64,
    /// ostler.
    owned_by: &'static str,
}

/// All of them.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ModelList)]
pub struct ModelsView {
    /// list.
    object: &'static str,
    data: Vec<ModelView>,
}

/// List what `model` may be.
///
/// The harnesses that can be started here, by name; and `HARNESS/MODEL` for each model of those whose sessions may choose one.
#[utoipa::path(
    get, path = "/v1/models", tag = "chat", operation_id = "list_models",
    responses((status = 200, description = "All of them", body = ModelsView)),
)]
async fn list(State(service): State<Arc<Service>>, _reader: Reads) -> View<ModelsView> {
    View(ModelsView { object: "list", data: names(&service).map(ModelView::of).collect() })
}

/// Retrieve one of them.
#[utoipa::path(
    get, path = "/v1/models/{model}", tag = "chat", operation_id = "retrieve_model",
    params(("model" = String, Path, description = "Its name")),
    responses((status = 200, description = "It is one", body = ModelView)),
)]
async fn find(
    State(service): State<Arc<Service>>,
    _reader: Reads,
    NamePath(asked): NamePath,
) -> ApiResult<View<ModelView>> {
    let found = names(&service).find(|name| *name == asked);
    Ok(View(ModelView::of(found.ok_or_else(ApiError::not_found)?)))
}

impl ModelView {
    fn of(id: String) -> Self {
        Self { id, object: "model", created: 0, owned_by: "ostler" }
    }
}

fn names(service: &Service) -> impl Iterator<Item = String> {
    let can_start =
        service.harnesses().iter().filter(|harness| harness.availability() == Availability::Available);
    can_start.flat_map(|harness| {
        let name = harness.name();
        let models = harness.models().into_iter().map(move |model| format!("{name}/{model}"));
        std::iter::once(name.to_owned()).chain(models)
    })
}
