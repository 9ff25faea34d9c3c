//! The problems that each route can answer with, as types that its description names.

use std::collections::BTreeMap;

use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{ContentBuilder, Ref, RefOr};

use super::problem::{Code, MEDIA_TYPE};

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
