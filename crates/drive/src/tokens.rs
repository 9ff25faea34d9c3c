//! Tokens of the virtual users and of the operator.

use std::time::Duration;

use anyhow::Context;
use hyper::header::HeaderValue;
use secrecy::SecretString;

use seckill::admission::identity::Verifier;
use seckill::domain::UserId;

/// Longer than any run.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Signs tokens with the service's own secret.
pub struct Tokens(Verifier);

impl Tokens {
    /// # Errors
    /// When the secret is too short to be the service's.
    pub fn new(secret: &SecretString) -> anyhow::Result<Self> {
        Ok(Self(Verifier::new(secret)?))
    }

    /// A token without the word `Bearer`.
    pub fn sign(&self, user: &UserId, operator: bool) -> anyhow::Result<String> {
        self.0.sign(user, LIFETIME, operator).context("a token cannot be signed")
    }

    /// The value of an `Authorization` header.
    pub fn header(&self, user: &UserId, operator: bool) -> anyhow::Result<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.sign(user, operator)?))?;
        value.set_sensitive(true);
        Ok(value)
    }
}
