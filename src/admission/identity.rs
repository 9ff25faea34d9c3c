//! Who is asking: a JWT, signed with HS256 and nothing else.
//!
//! What comes in: the value of the `Authorization` header and the wall clock's now. What is decided: the user, and
//! whether the caller is an operator. What is guaranteed: only the holder of the secret can name a user; a token
//! is refused from the second of its `exp` on, without leeway; a token that says `none`, RS256 or anything but
//! HS256 is refused before its signature is checked; a bad one causes no log line and no unbounded work.
//!
//! Checked tokens are not remembered: most buyers ask once or twice, so such a cache would mostly serve the callers that
//! the buckets are there to stop.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use secrecy::{ExposeSecret, SecretString};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::domain::UserId;

/// Shorter keys than the hash can be guessed offline from a single token.
const SHORTEST_SECRET: usize = 32;

/// More than any token of ours; a longer one is refused before it is decoded.
const LONGEST_HEADER: usize = 1024;

/// `{"alg":"HS256","typ":"JWT"}` in base64url, in both orders: the header of nearly every HS256 token there is.
const PLAIN_HEADERS: [&str; 2] = ["eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9", "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9"];

/// Who a caller has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub user: UserId,
    /// Whether the caller may use the admin calls.
    pub operator: bool,
}

/// Why a caller is nobody. The answer is 401 in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorized {
    #[error("no bearer token was sent")]
    Missing,
    #[error("the bearer token is not one of ours")]
    Invalid,
    #[error("the bearer token has expired or is not valid yet")]
    Expired,
}

/// The secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadSecret {
    #[error("auth.jwt_secret must have at least {SHORTEST_SECRET} bytes: set SECKILL__AUTH__JWT_SECRET")]
    TooShort,
    #[error("auth.jwt_secret cannot be used as a key")]
    Unusable(#[from] jsonwebtoken::errors::Error),
}

#[derive(Serialize, Deserialize)]
struct Claims {
    sub: UserId,
    /// Seconds since the Unix epoch.
    exp: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    nbf: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<Role>,
    /// A token for somebody named is not for us, who have no name.
    #[serde(skip_serializing)]
    aud: Option<IgnoredAny>,
}

#[derive(Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Role {
    Operator,
    /// A role of some other service says nothing here.
    #[serde(other)]
    Other,
}

/// Checks tokens, and signs those for development and the demo.
pub struct Verifier {
    signing: EncodingKey,
    verifying: DecodingKey,
    /// With the key prepared already, which is as much work as the token itself.
    keyed: Hmac<Sha256>,
    validation: Validation,
}

impl Verifier {
    pub fn new(secret: &SecretString) -> Result<Self, BadSecret> {
        let secret = secret.expose_secret().as_bytes();
        if secret.len() < SHORTEST_SECRET {
            return Err(BadSecret::TooShort);
        }
        let mut validation = Validation::new(Algorithm::HS256);
        // Times are checked below: the library would accept a token during the very second of its `exp`, and reads
        // a clock of its own.
        validation.validate_exp = false;
        validation.leeway = 0;
        Ok(Self {
            signing: EncodingKey::from_secret(secret)?,
            verifying: DecodingKey::from_secret(secret)?,
            keyed: Hmac::new_from_slice(secret).map_err(|_| BadSecret::TooShort)?,
            validation,
        })
    }

    /// Who sent this `Authorization` header, as of now.
    pub fn verify(&self, authorization: Option<&str>) -> Result<Identity, Unauthorized> {
        self.verify_at(authorization, unix_now())
    }

    /// As [`Verifier::verify`], at `now` seconds since the Unix epoch.
    pub fn verify_at(&self, authorization: Option<&str>, now: u64) -> Result<Identity, Unauthorized> {
        let header = authorization.ok_or(Unauthorized::Missing)?;
        if header.len() > LONGEST_HEADER {
            return Err(Unauthorized::Invalid);
        }
        let (scheme, token) = header.split_once(' ').ok_or(Unauthorized::Missing)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Unauthorized::Missing);
        }
        let claims = self.claims(token).ok_or(Unauthorized::Invalid)?;
        if now >= claims.exp || claims.nbf.is_some_and(|nbf| now < nbf) {
            return Err(Unauthorized::Expired);
        }
        Ok(Identity { user: claims.sub, operator: claims.role == Some(Role::Operator) })
    }

    /// What a good signature vouches for.
    fn claims(&self, token: &str) -> Option<Claims> {
        let (message, signature) = token.rsplit_once('.')?;
        let (header, payload) = message.split_once('.')?;
        if !PLAIN_HEADERS.contains(&header) {
            let decoded = jsonwebtoken::decode::<Claims>(token, &self.verifying, &self.validation);
            return decoded.ok().map(|decoded| decoded.claims);
        }
        // The checks of the library, without parsing the known header, parsing the claims twice, and taking the key in
        // for each token. Decision 19 has the figures.
        let mut room = [0; LONGEST_HEADER];
        let bytes = URL_SAFE_NO_PAD.decode_slice(signature, &mut room).ok()?;
        // In constant time, and false for any other length than that of the hash.
        self.keyed.clone().chain_update(message).verify_slice(&room[..bytes]).ok()?;
        let bytes = URL_SAFE_NO_PAD.decode_slice(payload, &mut room).ok()?;
        let claims: Claims = serde_json::from_slice(&room[..bytes]).ok()?;
        claims.aud.is_none().then_some(claims)
    }

    /// A token for `user` that is good for `ttl` from now, without the word `Bearer`.
    pub fn sign(&self, user: &UserId, ttl: Duration, operator: bool) -> Result<String, jsonwebtoken::errors::Error> {
        let exp = unix_now().saturating_add(ttl.as_secs());
        let role = operator.then_some(Role::Operator);
        let claims = Claims { sub: user.clone(), exp, nbf: None, role, aud: None };
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.signing)
    }
}

fn unix_now() -> u64 {
    // A clock before 1970 reads as 0: every token is then good for longer, and nothing else would work either.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SECRET: &str = "a secret of the tests, of 32 bytes or more";
    const NOW: u64 = 1_700_000_000;

    fn verifier() -> Verifier {
        Verifier::new(&SecretString::from(SECRET)).expect("a usable secret")
    }

    fn token(algorithm: Algorithm, secret: &str, claims: &Value) -> String {
        let key = EncodingKey::from_secret(secret.as_bytes()).expect("a key");
        jsonwebtoken::encode(&Header::new(algorithm), claims, &key).expect("a token")
    }

    fn verify(claims: &Value) -> Result<Identity, Unauthorized> {
        bearer(&token(Algorithm::HS256, SECRET, claims))
    }

    fn bearer(token: &str) -> Result<Identity, Unauthorized> {
        verifier().verify_at(Some(&format!("Bearer {token}")), NOW)
    }

    #[test]
    fn what_is_signed_is_read_back() {
        let user: UserId = "ada".parse().expect("a user id");
        for operator in [false, true] {
            let token = verifier().sign(&user, Duration::from_secs(60), operator).expect("a token");
            let read = verifier().verify(Some(&format!("bearer {token}")));
            assert_eq!(read, Ok(Identity { user: user.clone(), operator }));
        }
    }

    #[test]
    fn a_short_secret_is_refused() {
        assert!(matches!(Verifier::new(&SecretString::from("")), Err(BadSecret::TooShort)));
        assert!(matches!(Verifier::new(&SecretString::from("x".repeat(31))), Err(BadSecret::TooShort)));
        assert!(Verifier::new(&SecretString::from("x".repeat(32))).is_ok());
    }

    #[test]
    fn a_forged_token_is_refused() {
        let good = token(Algorithm::HS256, SECRET, &json!({"sub": "ada", "exp": NOW + 60}));
        assert!(bearer(&good).is_ok());
        let other_key = token(Algorithm::HS256, &"x".repeat(32), &json!({"sub": "ada", "exp": NOW + 60}));
        assert_eq!(bearer(&other_key), Err(Unauthorized::Invalid));

        let other_user = token(Algorithm::HS256, SECRET, &json!({"sub": "bob", "exp": NOW + 60}));
        let parts = |token: &str| token.split('.').map(str::to_owned).collect::<Vec<_>>();
        let swapped = format!("{}.{}.{}", parts(&good)[0], parts(&other_user)[1], parts(&good)[2]);
        assert_eq!(bearer(&swapped), Err(Unauthorized::Invalid), "another body under a good signature");
    }

    #[test]
    fn an_unsigned_token_is_refused() {
        let good = token(Algorithm::HS256, SECRET, &json!({"sub": "ada", "exp": NOW + 60}));
        let body = good.split('.').nth(1).expect("a body");
        // {"alg":"none"} and {"alg":"None","typ":"JWT"} in base64url.
        for header in ["eyJhbGciOiJub25lIn0", "eyJhbGciOiJOb25lIiwidHlwIjoiSldUIn0"] {
            assert_eq!(bearer(&format!("{header}.{body}.")), Err(Unauthorized::Invalid));
            assert_eq!(bearer(&format!("{header}.{body}")), Err(Unauthorized::Invalid));
        }
        let signed = good.split('.').next().expect("a header");
        assert_eq!(bearer(&format!("{signed}.{body}.")), Err(Unauthorized::Invalid), "an empty signature");
    }

    #[test]
    fn another_algorithm_is_refused_also_under_our_key() {
        let claims = json!({"sub": "ada", "exp": NOW + 60});
        for algorithm in [Algorithm::HS384, Algorithm::HS512] {
            assert_eq!(bearer(&token(algorithm, SECRET, &claims)), Err(Unauthorized::Invalid), "{algorithm:?}");
        }
        let good = token(Algorithm::HS256, SECRET, &claims);
        let rest = good.split_once('.').expect("three parts").1;
        // {"alg":"RS256"} in base64url.
        assert_eq!(bearer(&format!("eyJhbGciOiJSUzI1NiJ9.{rest}")), Err(Unauthorized::Invalid));
    }

    #[test]
    fn a_token_is_refused_from_the_second_of_its_expiry_on() {
        assert!(verify(&json!({"sub": "ada", "exp": NOW + 1})).is_ok());
        assert_eq!(verify(&json!({"sub": "ada", "exp": NOW})), Err(Unauthorized::Expired));
        assert_eq!(verify(&json!({"sub": "ada", "exp": NOW - 1})), Err(Unauthorized::Expired));
        assert_eq!(verify(&json!({"sub": "ada", "exp": NOW + 9, "nbf": NOW + 1})), Err(Unauthorized::Expired));
        assert!(verify(&json!({"sub": "ada", "exp": NOW + 9, "nbf": NOW})).is_ok());
    }

    #[test]
    fn a_token_without_expiry_or_with_an_odd_one_is_refused() {
        for exp in [json!(null), json!("1800000000"), json!(-1), json!(1.5), json!([1]), json!(true)] {
            assert_eq!(verify(&json!({"sub": "ada", "exp": exp})), Err(Unauthorized::Invalid), "{exp}");
        }
        assert_eq!(verify(&json!({"sub": "ada"})), Err(Unauthorized::Invalid));
    }

    #[test]
    fn a_token_without_a_user_or_with_an_odd_one_is_refused() {
        for sub in [json!(null), json!(""), json!("a b"), json!("a|b"), json!("é"), json!(7), json!("x".repeat(65))] {
            assert_eq!(verify(&json!({"sub": sub, "exp": NOW + 60})), Err(Unauthorized::Invalid), "{sub}");
        }
        assert_eq!(verify(&json!({"exp": NOW + 60})), Err(Unauthorized::Invalid));
    }

    #[test]
    fn a_token_for_somebody_named_is_refused_whatever_its_header_looks_like() {
        for aud in [json!("somebody"), json!(["a", "b"]), json!([])] {
            let claims = json!({"sub": "ada", "exp": NOW + 60, "aud": aud});
            assert_eq!(verify(&claims), Err(Unauthorized::Invalid), "{aud}");
            assert_eq!(bearer(&token_with_key_id(&claims)), Err(Unauthorized::Invalid), "{aud}");
        }
    }

    fn token_with_key_id(claims: &Value) -> String {
        let key = EncodingKey::from_secret(SECRET.as_bytes()).expect("a key");
        let header = Header { kid: Some("7".to_owned()), ..Header::new(Algorithm::HS256) };
        jsonwebtoken::encode(&header, claims, &key).expect("a token")
    }

    #[test]
    fn a_header_that_says_more_is_read_and_believed_the_same() {
        let user = |token: &str| bearer(token).map(|who| who.user.as_str().to_owned());
        let good = token_with_key_id(&json!({"sub": "ada", "exp": NOW + 60}));
        assert_eq!(user(&good), Ok("ada".to_owned()));
        assert_eq!(user(&good[..good.len() - 1]), Err(Unauthorized::Invalid));
        let plain = token(Algorithm::HS256, SECRET, &json!({"sub": "ada", "exp": NOW + 60}));
        assert!(PLAIN_HEADERS.iter().any(|header| plain.starts_with(header)), "{plain}");
    }

    #[test]
    fn only_the_operator_role_makes_an_operator() {
        let operator =
            |role: Value| verify(&json!({"sub": "ada", "exp": NOW + 60, "role": role})).map(|who| who.operator);
        assert_eq!(operator(json!("operator")), Ok(true));
        assert_eq!(operator(json!("Operator")), Ok(false));
        assert_eq!(operator(json!("admin")), Ok(false));
        assert_eq!(operator(json!(null)), Ok(false));
        assert_eq!(operator(json!(["operator"])), Err(Unauthorized::Invalid));
    }

    #[test]
    fn garbage_and_huge_headers_are_refused() {
        assert_eq!(verifier().verify_at(None, NOW), Err(Unauthorized::Missing));
        for header in ["", "Bearer", "Basic YTpi", "Bearertoken", " Bearer x"] {
            assert_eq!(verifier().verify_at(Some(header), NOW), Err(Unauthorized::Missing), "{header:?}");
        }
        let good = token(Algorithm::HS256, SECRET, &json!({"sub": "ada", "exp": NOW + 60}));
        for garbage in ["", ".", "..", "...", "a.b.c", "é.é.é"] {
            assert_eq!(bearer(garbage), Err(Unauthorized::Invalid), "{garbage:?}");
        }
        for trailing in [" ", "=", ".", ".x", " x", "\n", "A"] {
            assert_eq!(bearer(&format!("{good}{trailing}")), Err(Unauthorized::Invalid), "{trailing:?} behind it");
        }
        assert_eq!(bearer(&format!(" {good}")), Err(Unauthorized::Invalid), "a second blank");
        assert_eq!(bearer(&"x".repeat(1 << 20)), Err(Unauthorized::Invalid));
        assert_eq!(verifier().verify_at(Some(&"Bearer ".repeat(100_000)), NOW), Err(Unauthorized::Invalid));
    }
}
