//! The description of the API, made from the handlers: routes, bodies and prose stand beside them.

use std::sync::LazyLock;

use actix_web::HttpResponse;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

use super::{admin, events, health, moves, orders, payments, purchases, sales};

/// OpenAPI 3.1, as JSON.
pub fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> =
        LazyLock::new(|| Description::openapi().to_pretty_json().expect("a description is plain data"));
    &DOCUMENT
}

/// The description, as it is.
pub async fn json() -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(document())
}

/// A page that shows the description and loads nothing from elsewhere.
pub async fn page() -> HttpResponse {
    HttpResponse::Ok().content_type("text/html; charset=utf-8").body(include_str!("docs.html"))
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "seckill",
        version = "1",
        license(name = "MIT", identifier = "MIT"),
        description = "A flash-sale order service. Times are RFC 3339, money is whole cents, ids are strings.\n\nEvery error is \
                       `application/problem+json` with a stable `code`. A timeout or a 503 means that the outcome is not known; it \
                       never means no.",
    ),
    tags((name = "buyers"), (name = "providers"), (name = "operators"), (name = "operations")),
    paths(
        sales::list, sales::one, purchases::purchase, sales::challenge, orders::own, orders::one, events::stream,
        moves::pay, moves::cancel, payments::callback, admin::create, admin::change, admin::add_stock, admin::audit,
        admin::block, admin::unblock, health::livez, health::readyz, health::metrics,
    ),
    components(schemas(Problem)),
    modifiers(&Bearer),
)]
struct Description;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, description: &mut utoipa::openapi::OpenApi) {
        let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").description(Some(
            "HS256; `sub` is the user, `exp` is required, `role` is `operator` for the operator's calls",
        ));
        let components = description.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(token.build()));
    }
}

/// An error, as [`super::problem::Problem`] writes it. Members that a problem does not have are absent.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what is written elsewhere")]
struct Problem {
    r#type: String,
    title: String,
    status: u16,
    /// Stable; see docs/api.md.
    code: String,
    detail: Option<String>,
    /// The order that is held already, that was tried with unknown outcome, or that cannot move.
    order_id: Option<String>,
    retry_after_s: Option<u64>,
    #[schema(format = DateTime)]
    starts_at: Option<String>,
    remaining: Option<u32>,
    max_quantity: Option<u32>,
    /// What the order costs.
    amount_cents: Option<i64>,
    order_status: Option<crate::domain::OrderStatus>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::document;
    use crate::api::problem::Code;

    /// Codes that no single route gives: the router itself does.
    const OF_THE_ROUTER: [&str; 1] = ["method_not_allowed"];

    #[test]
    fn it_names_exactly_the_codes_that_exist_each_under_its_status() {
        let document: Value = serde_json::from_str(document()).expect("valid JSON");
        let mut described = BTreeSet::new();
        for operation in
            document["paths"].as_object().expect("paths").values().flat_map(|path| path.as_object()).flatten()
        {
            for (status, response) in operation.1["responses"].as_object().expect("responses") {
                let words = response["description"].as_str().unwrap_or("").split('`').skip(1).step_by(2);
                described.extend(words.map(|code| (status.clone(), code.to_owned())));
            }
        }
        let codes = Code::ALL.into_iter().filter(|code| !OF_THE_ROUTER.contains(&code.name()));
        let known: BTreeSet<_> = codes.map(|code| (code.parts().0.to_string(), code.name().to_owned())).collect();
        assert_eq!(described, known);
    }

    /// Whoever changes what clients see changes this file, too, and sees what they will see.
    #[test]
    fn it_is_the_description_that_was_agreed_on() {
        insta::assert_snapshot!("openapi", document());
    }
}
