//! The signature of a provider's callback: base64url of HMAC-SHA256 over the body as it was sent.

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, crypto};
use secrecy::{ExposeSecret, SecretString};

/// Shorter keys than the hash can be guessed offline from a single callback.
const SHORTEST_SECRET: usize = 32;

/// The secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadSecret {
    #[error("payment.callback_secret must have at least {SHORTEST_SECRET} bytes, or none: then there are no callbacks")]
    TooShort,
    #[error("payment.callback_secret cannot be used as a key")]
    Unusable(#[from] jsonwebtoken::errors::Error),
}

/// Signs and checks callbacks with the secret that is shared with the provider.
pub struct Signature {
    signing: EncodingKey,
    verifying: DecodingKey,
}

impl Signature {
    /// `None` without a secret: nobody can call back then.
    pub fn new(secret: &SecretString) -> Result<Option<Self>, BadSecret> {
        let secret = secret.expose_secret().as_bytes();
        match secret.len() {
            0 => Ok(None),
            1..SHORTEST_SECRET => Err(BadSecret::TooShort),
            _ => Ok(Some(Self {
                signing: EncodingKey::from_secret(secret)?,
                verifying: DecodingKey::from_secret(secret)?,
            })),
        }
    }

    /// The provider's side.
    pub fn sign(&self, body: &[u8]) -> Result<String, jsonwebtoken::errors::Error> {
        crypto::sign(body, &self.signing, Algorithm::HS256)
    }

    /// Whether the holder of the secret signed exactly these bytes. Compared in constant time by the HMAC itself.
    pub fn is_genuine(&self, body: &[u8], signature: &str) -> bool {
        crypto::verify(signature, body, &self.verifying, Algorithm::HS256).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(secret: &str) -> Signature {
        Signature::new(&SecretString::from(secret)).expect("a usable secret").expect("a secret")
    }

    #[test]
    fn only_the_holder_of_the_secret_signs_and_only_these_bytes() {
        let ours = signature("a secret of the tests, of 32 bytes or more");
        let signed = ours.sign(b"{}").expect("a signature");
        assert!(ours.is_genuine(b"{}", &signed));
        assert!(!ours.is_genuine(b"{} ", &signed));
        assert!(!ours.is_genuine(b"", &signed));
        let theirs = signature(&"x".repeat(32)).sign(b"{}").expect("a signature");
        for forged in [theirs.as_str(), "", "!", &signed[1..], &signed.to_uppercase()] {
            assert!(!ours.is_genuine(b"{}", forged), "{forged}");
        }
    }

    #[test]
    fn without_a_secret_there_are_no_callbacks_and_a_short_one_is_refused() {
        assert!(matches!(Signature::new(&SecretString::from("")), Ok(None)));
        assert!(matches!(Signature::new(&SecretString::from("x".repeat(31))), Err(BadSecret::TooShort)));
    }
}
