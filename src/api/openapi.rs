//! The description of the API, made from the handlers: routes, bodies and prose stand beside them, and the problems of
//! each are named here by their codes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr};
use utoipa::{Modify, OpenApi, ToSchema};

use super::problem::{Code, MEDIA_TYPE};
use super::{admin, events, health, moves, orders, payments, purchases, sales};

/// OpenAPI 3.1, as JSON.
pub fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> =
        LazyLock::new(|| Description::openapi().to_pretty_json().expect("a description is plain data"));
    &DOCUMENT
}

/// A flash-sale order service. Times are RFC 3339, money is whole cents, ids are strings.
///
/// Every error is `application/problem+json` with a stable `code`. A timeout or a 503 means that the outcome is not
/// known; it never means no.
#[derive(OpenApi)]
#[openapi(
    info(title = "seckill", version = "1", license(name = "MIT", identifier = "MIT")),
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

/// The problems of each route, as types that a route can name.
pub(super) mod problems {
    use super::{BTreeMap, Code, RefOr, Response, responses};

    macro_rules! problems {
        ($($route:ident: $($code:ident)+;)+) => {$(
            pub struct $route;

            impl utoipa::IntoResponses for $route {
                fn responses() -> BTreeMap<String, RefOr<Response>> {
                    responses(&[$(Code::$code),+])
                }
            }
        )+};
    }

    problems! {
        Health: Unavailable;
        Sale: SaleNotFound;
        Challenge: Unauthorized SaleNotFound Unavailable;
        Purchase: InvalidRequest BodyTooLarge UnsupportedMediaType Unauthorized Blocked ChallengeRequired SaleNotFound SoldOut
            NotEnoughLeft AlreadyPurchased SaleNotStarted SaleEnded SalePaused IdempotencyKeyReused RateLimited Unavailable;
        OwnOrder: Unauthorized SaleNotFound OrderNotFound Unavailable;
        Order: Unauthorized OrderNotFound Unavailable;
        Move: InvalidRequest BodyTooLarge UnsupportedMediaType Unauthorized OrderNotFound IllegalTransition Unavailable;
        Callback: InvalidRequest BodyTooLarge UnsupportedMediaType Unauthorized NotFound OrderNotFound AmountMismatch
            Unavailable;
        Create: InvalidRequest BodyTooLarge UnsupportedMediaType Unauthorized Forbidden Unavailable;
        Change: InvalidRequest BodyTooLarge UnsupportedMediaType Unauthorized Forbidden SaleNotFound IllegalTransition
            Unavailable;
        AddStock: InvalidRequest BodyTooLarge UnsupportedMediaType Unauthorized Forbidden SaleNotFound IdempotencyKeyReused
            Unavailable;
        Audit: Unauthorized Forbidden SaleNotFound Unavailable;
        Block: InvalidRequest BodyTooLarge UnsupportedMediaType Unauthorized Forbidden Unavailable;
        Unblock: InvalidRequest Unauthorized Forbidden Unavailable;
    }
}

/// One response for each status, that names its codes.
fn responses(codes: &[Code]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in codes {
        by_status.entry(code.parts().0).or_default().push(*code);
    }
    by_status.into_iter().map(|(status, codes)| (status.to_string(), response(&codes).into())).collect()
}

fn response(codes: &[Code]) -> Response {
    let words: Vec<_> = codes.iter().map(|code| format!("`{}`: {}", code.name(), code.parts().2)).collect();
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let response = ResponseBuilder::new().description(words.join("; ")).content(MEDIA_TYPE, content);
    if !codes.iter().any(|code| matches!(code, Code::RateLimited | Code::Unavailable)) {
        return response.build();
    }
    let seconds = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1));
    let retry_after = HeaderBuilder::new().schema(Some(seconds)).description(Some("Seconds")).build();
    response.header("Retry-After", retry_after).build()
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
