//! Tokens of the demo's and the load test's own buyers and operator.

use std::time::{SystemTime, UNIX_EPOCH};

use hyper::header::HeaderValue;
use jsonwebtoken::{EncodingKey, Header};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;

use crate::domain::UserId;

/// Longer than any run.
const LIFETIME_S: u64 = 24 * 3600;

/// Signs tokens with the service's secret.
pub struct Tokens {
    key: EncodingKey,
    /// Seconds since the Unix epoch.
    expires: u64,
}

#[derive(Serialize)]
struct Claims<'a> {
    sub: &'a str,
    exp: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
}

impl Tokens {
    pub fn new(secret: &SecretString) -> anyhow::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        Ok(Self { key: EncodingKey::from_secret(secret.expose_secret().as_bytes())?, expires: now + LIFETIME_S })
    }

    /// A token without the word `Bearer`.
    pub fn sign(&self, user: &UserId, operator: bool) -> anyhow::Result<String> {
        let claims = Claims { sub: user.as_str(), exp: self.expires, role: operator.then_some("operator") };
        Ok(jsonwebtoken::encode(&Header::default(), &claims, &self.key)?)
    }

    /// The value of an `Authorization` header.
    pub fn header(&self, user: &UserId, operator: bool) -> anyhow::Result<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.sign(user, operator)?))?;
        value.set_sensitive(true);
        Ok(value)
    }
}
