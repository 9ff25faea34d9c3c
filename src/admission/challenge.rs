//! A purchase token that is earned by work.
//!
//! What comes in: a sale, a user, and the wall clock's now. What is decided: whether this user has lately spent the
//! work that the sale asks for. What is guaranteed: a token is good for one user, one sale and a short time, on
//! every node that shares the secret; nothing is stored.
//!
//! A challenge reads `EXPIRES.BITS.MAC` (expiry in seconds since the Unix epoch, work in leading zero bits, and the
//! base64url HMAC-SHA256 over sale, user, expiry and bits). The client searches for a nonce such that
//! SHA-256(`CHALLENGE:NONCE`) starts with that many zero bits, and sends `CHALLENGE:NONCE` along with its purchase:
//! on average 2^bits hashes for the client, one hash and one MAC for us.
//!
//! A token may be shown again until it expires: a retry has to be able to. What makes it one-time is that a user
//! gets one order per sale; showing it more often buys nothing but refusals, which the buckets count as ever.
//! That holds as well against a script that fetches the challenge first and posts afterwards: fetching is free,
//! the work is not, and the work cannot be done by somebody else's account.

use std::fmt::Write as _;
use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, crypto};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use crate::domain::{SaleId, UserId};

/// Most work that may be asked for: 2^32 hashes keep a phone busy for an hour.
pub const MOST_BITS: u8 = 32;

/// A longer header than any token of ours: 20 digits, 2 digits, 43 characters of MAC, 32 of nonce, three separators.
const LONGEST_TOKEN: usize = 128;

const LONGEST_NONCE: usize = 32;

/// What a client has to solve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Opaque to the client, which sends it back as it is.
    pub challenge: String,
    /// Leading zero bits that SHA-256(`CHALLENGE:NONCE`) must have.
    pub bits: u8,
    /// Seconds since the Unix epoch. From then on the token is refused.
    pub expires_at: u64,
}

/// Why a purchase token is not good. The buyer is told the same in all cases: solve a new challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    #[error("the purchase token is not of the form CHALLENGE:NONCE")]
    Malformed,
    #[error("the purchase token has expired")]
    Expired,
    #[error("the challenge was not issued by this service for this user and sale")]
    Forged,
    #[error("the nonce does not solve the challenge")]
    Unsolved,
}

/// Issues challenges and checks purchase tokens.
pub struct Challenges {
    signing: EncodingKey,
    verifying: DecodingKey,
    bits: u8,
    ttl: Duration,
}

impl Challenges {
    /// `secret` is the one that signs identities. The two never meet: what is signed here holds `|`, which no JWT
    /// does. Fails on an empty secret.
    pub fn new(secret: &SecretString, bits: u8, ttl: Duration) -> Result<Self, jsonwebtoken::errors::Error> {
        let secret = secret.expose_secret().as_bytes();
        Ok(Self {
            signing: EncodingKey::from_secret(secret)?,
            verifying: DecodingKey::from_secret(secret)?,
            bits: bits.min(MOST_BITS),
            ttl,
        })
    }

    /// A challenge for `user` in `sale`. `now` in seconds since the Unix epoch.
    pub fn issue(&self, sale: SaleId, user: &UserId, now: u64) -> Result<Challenge, jsonwebtoken::errors::Error> {
        let expires_at = now.saturating_add(self.ttl.as_secs());
        let bits = self.bits;
        let mac = crypto::sign(&signed(sale, user, expires_at, bits), &self.signing, Algorithm::HS256)?;
        Ok(Challenge { challenge: format!("{expires_at}.{bits}.{mac}"), bits, expires_at })
    }

    /// Whether `token` (`CHALLENGE:NONCE`) was earned by `user` for `sale`. `now` in seconds since the Unix epoch.
    ///
    /// The work asked for is what the challenge says, which the MAC covers, and not what this node is set to: a
    /// node that is being given other settings must not refuse work that another one asked for.
    pub fn verify(&self, sale: SaleId, user: &UserId, now: u64, token: &str) -> Result<(), BadToken> {
        if token.len() > LONGEST_TOKEN {
            return Err(BadToken::Malformed);
        }
        let (challenge, nonce) = token.split_once(':').ok_or(BadToken::Malformed)?;
        if nonce.is_empty() || nonce.len() > LONGEST_NONCE || !nonce.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(BadToken::Malformed);
        }
        let mut parts = challenge.split('.');
        let (Some(expires_at), Some(bits), Some(mac), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(BadToken::Malformed);
        };
        let expires_at: u64 = expires_at.parse().map_err(|_| BadToken::Malformed)?;
        let bits: u8 = bits.parse().map_err(|_| BadToken::Malformed)?;
        if now >= expires_at {
            return Err(BadToken::Expired);
        }
        // Compared in constant time by the HMAC itself.
        let message = signed(sale, user, expires_at, bits);
        let genuine = crypto::verify(mac, &message, &self.verifying, Algorithm::HS256);
        if !genuine.unwrap_or(false) {
            return Err(BadToken::Forged);
        }
        let digest = Sha256::digest(token.as_bytes());
        if leading_zero_bits(&digest) < u32::from(bits) {
            return Err(BadToken::Unsolved);
        }
        Ok(())
    }
}

/// What the MAC covers. Neither numbers nor users can hold a `|`, so the parts cannot be shifted into each other.
fn signed(sale: SaleId, user: &UserId, expires_at: u64, bits: u8) -> Vec<u8> {
    format!("seckill-challenge-v1|{sale}|{user}|{expires_at}|{bits}").into_bytes()
}

fn leading_zero_bits(digest: &[u8]) -> u32 {
    let whole = digest.iter().take_while(|byte| **byte == 0).count();
    let rest = digest.get(whole).map_or(0, |byte| byte.leading_zeros());
    u32::try_from(whole).unwrap_or(u32::MAX).saturating_mul(8).saturating_add(rest)
}

/// The client's side: finds a nonce and returns the token `CHALLENGE:NONCE`. Takes 2^bits hashes on average.
pub fn solve(challenge: &str, bits: u8) -> String {
    // The challenge is hashed once; each try only adds the nonce.
    let prefix = Sha256::new().chain_update(challenge).chain_update(":");
    let mut nonce = String::with_capacity(20);
    for n in 0_u64.. {
        nonce.clear();
        // Writing to a string cannot fail.
        let _ = write!(nonce, "{n}");
        let digest = prefix.clone().chain_update(&nonce).finalize();
        if leading_zero_bits(&digest) >= u32::from(bits) {
            break;
        }
    }
    format!("{challenge}:{nonce}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn challenges(bits: u8) -> Challenges {
        let secret = SecretString::from("a secret of the tests, of 32 bytes or more");
        Challenges::new(&secret, bits, Duration::from_secs(300)).expect("a usable secret")
    }

    fn user(name: &str) -> UserId {
        name.parse().expect("a user id")
    }

    fn sale(id: i32) -> SaleId {
        SaleId::new(id).expect("a sale id")
    }

    #[test]
    fn a_solved_challenge_is_good_for_its_user_its_sale_and_its_time_only() {
        let challenges = challenges(8);
        let issued = challenges.issue(sale(1), &user("ada"), NOW).expect("a challenge");
        assert_eq!((issued.bits, issued.expires_at), (8, NOW + 300));
        let token = solve(&issued.challenge, issued.bits);

        assert_eq!(challenges.verify(sale(1), &user("ada"), NOW, &token), Ok(()));
        assert_eq!(challenges.verify(sale(1), &user("ada"), NOW + 299, &token), Ok(()));
        assert_eq!(challenges.verify(sale(1), &user("ada"), NOW + 300, &token), Err(BadToken::Expired));
        assert_eq!(challenges.verify(sale(2), &user("ada"), NOW, &token), Err(BadToken::Forged));
        assert_eq!(challenges.verify(sale(1), &user("bob"), NOW, &token), Err(BadToken::Forged));
    }

    #[test]
    fn neither_the_expiry_nor_the_work_can_be_edited() {
        let challenges = challenges(8);
        let issued = challenges.issue(sale(1), &user("ada"), NOW).expect("a challenge");
        let mac = issued.challenge.rsplit('.').next().expect("a MAC");
        let later = solve(&format!("{}.8.{mac}", NOW + 9_000), 8);
        assert_eq!(challenges.verify(sale(1), &user("ada"), NOW, &later), Err(BadToken::Forged));
        let easier = solve(&format!("{}.0.{mac}", NOW + 300), 0);
        assert_eq!(challenges.verify(sale(1), &user("ada"), NOW, &easier), Err(BadToken::Forged));
    }

    #[test]
    fn another_secret_makes_another_service() {
        let theirs = Challenges::new(&SecretString::from("x".repeat(32)), 1, Duration::from_secs(300));
        let theirs = theirs.expect("a usable secret").issue(sale(1), &user("ada"), NOW).expect("a challenge");
        let token = solve(&theirs.challenge, theirs.bits);
        assert_eq!(challenges(1).verify(sale(1), &user("ada"), NOW, &token), Err(BadToken::Forged));
    }

    #[test]
    fn a_challenge_without_its_work_is_refused() {
        let challenges = challenges(12);
        let issued = challenges.issue(sale(1), &user("ada"), NOW).expect("a challenge");
        let solved = solve(&issued.challenge, issued.bits);
        // `solve` counts up from 0, so every nonce below its answer is wrong.
        let first: u64 = solved.rsplit(':').next().and_then(|nonce| nonce.parse().ok()).expect("a number");
        assert!(first > 0, "all inputs are fixed, and 0 does not solve this one");
        for nonce in 0..first {
            let token = format!("{}:{nonce}", issued.challenge);
            assert_eq!(challenges.verify(sale(1), &user("ada"), NOW, &token), Err(BadToken::Unsolved));
        }
        assert_eq!(challenges.verify(sale(1), &user("ada"), NOW, &solved), Ok(()));
    }

    #[test]
    fn a_node_with_other_settings_honours_the_work_that_was_asked_for() {
        let issued = challenges(4).issue(sale(1), &user("ada"), NOW).expect("a challenge");
        let token = solve(&issued.challenge, issued.bits);
        assert_eq!(challenges(20).verify(sale(1), &user("ada"), NOW, &token), Ok(()));
    }

    #[test]
    fn garbage_is_malformed() {
        let challenges = challenges(1);
        let long = "9".repeat(10_000);
        let issued = challenges.issue(sale(1), &user("ada"), NOW).expect("a challenge");
        let (odd, twice) = (format!("{}:a b", issued.challenge), format!("{}:1:1", issued.challenge));
        for token in ["", ":", "a:b", "1.2:3", "1.2.3.4:5", "x.1.m:5", "1.999.m:5", &long, &odd, &twice, "1.1.m:é"] {
            assert_eq!(challenges.verify(sale(1), &user("ada"), NOW, token), Err(BadToken::Malformed), "{token:?}");
        }
        let no_base64 = format!("{}.1.!!!:5", NOW + 1);
        assert_eq!(challenges.verify(sale(1), &user("ada"), NOW, &no_base64), Err(BadToken::Forged));
    }

    #[test]
    fn zero_bits_are_counted_across_bytes() {
        assert_eq!(leading_zero_bits(&[0x80]), 0);
        assert_eq!(leading_zero_bits(&[0x01]), 7);
        assert_eq!(leading_zero_bits(&[0, 0, 0x10, 0xff]), 19);
        assert_eq!(leading_zero_bits(&[0; 32]), 256);
    }
}
