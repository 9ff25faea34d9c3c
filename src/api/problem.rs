//! Every error as RFC 9457 problem+json, with a stable code.

use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use actix_web::web::Bytes;
use actix_web::{HttpResponse, ResponseError};
use serde_json::{Map, Value, json};

/// The stable codes. The README has the same table; a test compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    InvalidRequest,
    Unauthorized,
    Forbidden,
    Blocked,
    ChallengeRequired,
    NotFound,
    SaleNotFound,
    OrderNotFound,
    MethodNotAllowed,
    SoldOut,
    NotEnoughLeft,
    AlreadyPurchased,
    SaleNotStarted,
    SaleEnded,
    SalePaused,
    IllegalTransition,
    BodyTooLarge,
    UnsupportedMediaType,
    IdempotencyKeyReused,
    AmountMismatch,
    RateLimited,
    Unavailable,
}

impl Code {
    pub const ALL: [Self; 22] = [
        Self::InvalidRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::Blocked,
        Self::ChallengeRequired,
        Self::NotFound,
        Self::SaleNotFound,
        Self::OrderNotFound,
        Self::MethodNotAllowed,
        Self::SoldOut,
        Self::NotEnoughLeft,
        Self::AlreadyPurchased,
        Self::SaleNotStarted,
        Self::SaleEnded,
        Self::SalePaused,
        Self::IllegalTransition,
        Self::BodyTooLarge,
        Self::UnsupportedMediaType,
        Self::IdempotencyKeyReused,
        Self::AmountMismatch,
        Self::RateLimited,
        Self::Unavailable,
    ];

    /// Status, name and title.
    pub const fn parts(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::InvalidRequest => (400, "invalid_request", "The request is not well-formed"),
            Self::Unauthorized => (401, "unauthorized", "A valid bearer token is needed"),
            Self::Forbidden => (403, "forbidden", "This token does not allow that"),
            Self::Blocked => (403, "blocked", "This user may not buy"),
            Self::ChallengeRequired => (403, "challenge_required", "This sale asks for a solved challenge"),
            Self::NotFound => (404, "not_found", "There is nothing at this address"),
            Self::SaleNotFound => (404, "sale_not_found", "There is no such sale"),
            Self::OrderNotFound => (404, "order_not_found", "You have no such order"),
            Self::MethodNotAllowed => (405, "method_not_allowed", "This address does not take that method"),
            Self::SoldOut => (409, "sold_out", "Nothing is left"),
            Self::NotEnoughLeft => (409, "not_enough_left", "Fewer units are left than you asked for"),
            Self::AlreadyPurchased => (409, "already_purchased", "You already hold an order in this sale"),
            Self::SaleNotStarted => (409, "sale_not_started", "The sale has not started"),
            Self::SaleEnded => (409, "sale_ended", "The sale is over"),
            Self::SalePaused => (409, "sale_paused", "The sale is paused"),
            Self::IllegalTransition => (409, "illegal_transition", "That move is not possible from here"),
            Self::BodyTooLarge => (413, "body_too_large", "The body is larger than 1 KiB"),
            Self::UnsupportedMediaType => (415, "unsupported_media_type", "The body must be application/json"),
            Self::IdempotencyKeyReused => (422, "idempotency_key_reused", "This key was used for another request"),
            Self::AmountMismatch => (422, "amount_mismatch", "The payment is not the order's amount"),
            Self::RateLimited => (429, "rate_limited", "Too many requests"),
            Self::Unavailable => (503, "unavailable", "Not possible right now; the outcome, if any, can be asked for"),
        }
    }

    pub const fn name(self) -> &'static str {
        self.parts().1
    }

    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.parts().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// The code of a problem, as an extension of its response. [`code_of`] reads it.
#[derive(Clone, Copy, Debug)]
struct Problematic(Code);

/// A problem on its way to the client.
#[derive(Clone, Debug)]
pub struct Problem {
    code: Code,
    detail: Option<String>,
    members: Map<String, Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    pub fn new(code: Code) -> Self {
        Self { code, detail: None, members: Map::new(), headers: Vec::new() }
    }

    /// 503 that asks to come back in a second.
    pub fn unavailable() -> Self {
        Self::new(Code::Unavailable).retry_after(1)
    }

    /// 400 with the reason in words.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest).detail(detail)
    }

    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// An extension member.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// Seconds after which a retry makes sense; also as the member `retry_after_s`.
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.headers.push((RETRY_AFTER, HeaderValue::from(seconds)));
        self.with("retry_after_s", seconds)
    }

    pub fn location(mut self, location: &str) -> Self {
        self.headers.extend(HeaderValue::from_str(location).ok().map(|value| (LOCATION, value)));
        self
    }

    /// The methods that do work.
    pub fn allow(mut self, methods: Option<HeaderValue>) -> Self {
        self.headers.extend(methods.map(|methods| (ALLOW, methods)));
        self
    }

    pub fn response(&self) -> HttpResponse {
        let (status, name, title) = self.code.parts();
        let mut body = json!({
            "type": format!("urn:seckill:problem:{name}"), "title": title, "status": status, "code": name,
        });
        if let Some(object) = body.as_object_mut() {
            object.extend(self.detail.clone().map(|detail| ("detail".to_owned(), Value::String(detail))));
            object.extend(self.members.clone());
        }
        let mut response = HttpResponse::build(self.code.status());
        response.content_type(MEDIA_TYPE);
        for header in &self.headers {
            response.insert_header(header.clone());
        }
        mark(response.body(body.to_string()), self.code)
    }
}

/// Media type of a problem.
pub const MEDIA_TYPE: &str = "application/problem+json";

const SOLD_OUT: &[u8] =
    br#"{"type":"urn:seckill:problem:sold_out","title":"Nothing is left","status":409,"code":"sold_out"}"#;

/// The answer that most requests of a flash sale get. Its body is a constant and is never copied. It carries no
/// mark either, which would be its only allocation: see [`code_of`].
pub fn sold_out() -> HttpResponse {
    let mut response = HttpResponse::build(Code::SoldOut.status());
    response.insert_header((CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE)));
    response.body(Bytes::from_static(SOLD_OUT))
}

/// The code of an answer, if it is a problem of ours.
pub fn code_of<B>(response: &HttpResponse<B>) -> Option<Code> {
    let marked = response.extensions().get::<Problematic>().map(|mark| mark.0);
    marked.or_else(|| is_prepared_sold_out(response).then_some(Code::SoldOut))
}

/// Whether an answer without a [`Problematic`] is that of [`sold_out`]. Every other problem has one, so status and
/// media type are enough to tell.
fn is_prepared_sold_out<B>(response: &HttpResponse<B>) -> bool {
    let is_problem = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == MEDIA_TYPE);
    is_problem && response.status() == Code::SoldOut.status()
}

fn mark(mut response: HttpResponse, code: Code) -> HttpResponse {
    response.extensions_mut().insert(Problematic(code));
    response
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.detail.as_deref().unwrap_or(self.code.parts().2))
    }
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        self.code.status()
    }

    fn error_response(&self) -> HttpResponse {
        self.response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prepared_answer_is_what_the_general_way_would_write() {
        let (status, name, title) = Code::SoldOut.parts();
        let prepared: Value = serde_json::from_slice(SOLD_OUT).expect("valid JSON");
        let written = json!({
            "type": format!("urn:seckill:problem:{name}"), "title": title, "status": status, "code": name,
        });
        assert_eq!(prepared, written);
    }

    #[test]
    fn every_problem_is_counted_under_its_own_code() {
        for code in Code::ALL {
            assert_eq!(code_of(&Problem::new(code).response()), Some(code));
        }
        assert_eq!(code_of(&sold_out()), Some(Code::SoldOut));
        assert_eq!(code_of(&HttpResponse::Conflict().finish()), None, "an answer that is no problem of ours");
    }

    #[test]
    fn codes_are_unique_and_errors() {
        let names: std::collections::HashSet<_> = Code::ALL.into_iter().map(Code::name).collect();
        assert_eq!(names.len(), Code::ALL.len());
        assert!(Code::ALL.into_iter().all(|code| code.status().as_u16() >= 400));
    }
}
