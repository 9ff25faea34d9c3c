//! What every handler asks of a request first: who calls, which sale or order is meant, what the body says.

use std::net::IpAddr;

use actix_web::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName};
use actix_web::{HttpRequest, web};
use serde::de::DeserializeOwned;

use super::Api;
use super::problem::{Code, Problem};
use crate::admission::identity::Identity;
use crate::domain::{Sale, SaleId, SaleState};

/// Header names that the library does not know. Parsed once: a name given as text is parsed at each look-up.
static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A body that was read to its end, or the reason why not.
pub type Body = Result<web::Bytes, actix_web::Error>;

/// The caller, by the bearer token.
pub fn identity(api: &Api, request: &HttpRequest) -> Result<Identity, Problem> {
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    api.verifier.verify(header).map_err(|_| Problem::new(Code::Unauthorized))
}

/// The caller, if an operator.
pub fn operator(api: &Api, request: &HttpRequest) -> Result<Identity, Problem> {
    let identity = identity(api, request)?;
    if identity.operator { Ok(identity) } else { Err(Problem::new(Code::Forbidden)) }
}

/// Seconds since the Unix epoch, by the clock of this node.
pub fn seconds(api: &Api) -> u64 {
    u64::try_from((api.clock)().unix_timestamp()).unwrap_or(0)
}

/// The address that the connection comes from.
pub fn peer(request: &HttpRequest) -> IpAddr {
    request.peer_addr().map_or(IpAddr::from([0, 0, 0, 0]), |address| address.ip())
}

/// The sale in the path, as far as buyers may see it: a draft does not exist for them.
pub fn sale(api: &Api, text: &str) -> Result<std::sync::Arc<Sale>, Problem> {
    let known = text.parse::<SaleId>().ok().and_then(|id| api.catalogue.get(id));
    known.filter(|sale| sale.state != SaleState::Draft).ok_or_else(|| Problem::new(Code::SaleNotFound))
}

/// The body as JSON; an error if it is empty.
pub fn json_required<T: DeserializeOwned>(request: &HttpRequest, body: &[u8]) -> Result<T, Problem> {
    json(request, body)?.ok_or_else(|| Problem::invalid("the body is missing"))
}

/// The body as JSON; `None` if it is empty.
pub fn json<T: DeserializeOwned>(request: &HttpRequest, body: &[u8]) -> Result<Option<T>, Problem> {
    if body.is_empty() {
        return Ok(None);
    }
    if !is_json(request.headers()) {
        return Err(Problem::new(Code::UnsupportedMediaType));
    }
    // serde would also take a struct's fields from an array.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::invalid("the body must be a JSON object"));
    }
    serde_json::from_slice(body).map(Some).map_err(|error| Problem::invalid(error.to_string()))
}

/// The body, or the reason why it could not be read.
pub fn read(body: Body) -> Result<web::Bytes, Problem> {
    body.map_err(|error| match error.as_response_error().status_code().as_u16() {
        413 => Problem::new(Code::BodyTooLarge),
        _ => Problem::invalid("the body could not be read"),
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media_type = content_type.split(';').next().unwrap_or("").trim();
    media_type.eq_ignore_ascii_case("application/json")
}

/// The Idempotency-Key of a purchase or an operator's command, if there is one.
pub fn idempotency_key(request: &HttpRequest) -> Result<Option<&str>, Problem> {
    let key = single_header(request.headers(), &IDEMPOTENCY_KEY)?;
    let fits = |key: &str| (1..=64).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    match key {
        Some(key) if !fits(key) => Err(Problem::invalid("an Idempotency-Key is 1 to 64 visible ASCII characters")),
        key => Ok(key),
    }
}

/// The one value of a header: `None` if absent, an error if it stands there twice or is not readable.
pub fn single_header<'a>(headers: &'a HeaderMap, name: &'static HeaderName) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name);
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Problem::invalid(format!("more than one {name} header")));
    }
    value.to_str().map(Some).map_err(|_| Problem::invalid(format!("the {name} header is not readable")))
}
