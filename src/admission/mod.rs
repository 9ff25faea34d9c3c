//! Step 2: who may go on to the stock.
//!
//! What comes in: an authenticated user, the client's address, whether the user is on the blacklist (the catalogue
//! knows), and, when the sale asks for it, a purchase token. What is decided: go on, or one of [`AdmissionDenied`]. What is
//! guaranteed: no I/O, no allocation for a refusal by a bucket, no log line per refusal, bounded memory whatever
//! addresses and users are tried, and rates that hold exactly on this node.
//!
//! The limits live in this process. A shared limiter would make one Redis key the hottest of the system, and one
//! whose expiry is lost in a crash would lock a user out for ever; a bucket in memory refills by the clock alone.
//! The price: n nodes together admit n times the configured rates. Rates are therefore per node by definition.
//!
//! Order, from the narrowest to the widest, because a refused request keeps the tokens that it took before it was
//! refused, and those must be nobody's but its sender's:
//!
//! 1. the blacklist: takes no token at all, and tells the truth (403) rather than "try again" (429);
//! 2. the user's bucket: a script with one account drains its own bucket, not that of the address it shares with
//!    the honest users of a company or a mobile network;
//! 3. the address's bucket: many accounts behind one address drain that, not the node's;
//! 4. the purchase token: costs a MAC and a hash, which only requests within their rates may ask of us;
//! 5. the node's bucket: what is left of it belongs to requests that would otherwise reach the stock.

pub mod address;

pub mod buckets;

pub mod challenge;

pub mod identity;

mod metrics;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use governor::RateLimiter;
use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use prometheus::Registry;
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use self::address::{AddressKey, TrustedProxies};
use self::buckets::{Buckets, Rate};
use self::challenge::{BadToken, Challenges};
use self::metrics::Metrics;
use crate::config;
use crate::domain::{SaleId, UserId};

/// What admission needs to know of a purchase.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    pub user: &'a UserId,
    /// From [`Admission::client_address`].
    pub address: IpAddr,
    /// Whether the user is on the blacklist.
    pub blocked: bool,
    /// Set when the sale asks for a purchase token.
    pub proof: Option<Proof<'a>>,
}

/// What a sale that asks for a challenge is shown.
#[derive(Clone, Copy, Debug)]
pub struct Proof<'a> {
    pub sale: SaleId,
    /// The value of `X-Purchase-Token`.
    pub token: Option<&'a str>,
    /// Seconds since the Unix epoch.
    pub now: u64,
}

/// Why a purchase goes no further. Nothing was decided about the sale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionDenied {
    #[error("this user may not buy")]
    Blocked,
    /// `retry_after` is exact; a header in whole seconds has to round it up.
    #[error("too many purchases: try again in {retry_after:?}")]
    RateLimited { retry_after: Duration },
    /// No purchase token (`None`), or one that is not good.
    #[error("this sale asks for a purchase token")]
    ChallengeRequired(Option<BadToken>),
}

/// Settings that would admit nobody, or no use could be made of.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("admission.{0} must be above 0")]
    Zero(&'static str),
    #[error("admission.challenge_bits must be at most {}", challenge::MOST_BITS)]
    TooMuchWork,
    #[error("auth.jwt_secret cannot be used as a key")]
    Secret(#[from] jsonwebtoken::errors::Error),
    #[error("a metric cannot be registered")]
    Metrics(#[from] prometheus::Error),
}

type NodeBucket<C> = RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// The gate in front of the stock. Build one per node and share it between its workers.
pub struct Admission<C: Clock = DefaultClock> {
    proxies: TrustedProxies,
    node: NodeBucket<C>,
    addresses: Buckets<AddressKey, C>,
    users: Buckets<u64, C>,
    hasher: RandomState,
    challenges: Challenges,
    sweep_every: Duration,
    metrics: Metrics,
}

impl Admission {
    /// `secret` signs challenges. Fails on settings that would admit nobody.
    pub fn new(
        settings: &config::Admission,
        http: &config::Http,
        secret: &SecretString,
        registry: &Registry,
    ) -> Result<Arc<Self>, Error> {
        Self::with_clock(settings, http, secret, registry, DefaultClock::default()).map(Arc::new)
    }
}

impl<C: Clock + Clone> Admission<C> {
    /// As [`Admission::new`], by another clock.
    pub fn with_clock(
        settings: &config::Admission,
        http: &config::Http,
        secret: &SecretString,
        registry: &Registry,
        clock: C,
    ) -> Result<Self, Error> {
        let rate = |per_second, burst, name| Rate::new(per_second, burst).ok_or(Error::Zero(name));
        let node = rate(settings.node_per_second, settings.node_burst, "node_per_second and node_burst")?;
        let address =
            rate(settings.address_per_second, settings.address_burst, "address_per_second and address_burst")?;
        let user = rate(settings.user_per_second, settings.user_burst, "user_per_second and user_burst")?;
        if settings.sweep_ms == 0 {
            return Err(Error::Zero("sweep_ms"));
        }
        if settings.challenge_bits > challenge::MOST_BITS {
            return Err(Error::TooMuchWork);
        }
        let metrics = Metrics::registered(registry)?;
        let ttl = Duration::from_secs(settings.challenge_ttl_s);
        Ok(Self {
            proxies: TrustedProxies::new(&http.trusted_proxies),
            node: RateLimiter::new(node.quota(), InMemoryState::default(), clock.clone()),
            addresses: Buckets::new(address, settings.max_tracked, clock.clone(), metrics.addresses.clone()),
            users: Buckets::new(user, settings.max_tracked, clock, metrics.users.clone()),
            hasher: RandomState::new(),
            challenges: Challenges::new(secret, settings.challenge_bits, ttl)?,
            sweep_every: Duration::from_millis(settings.sweep_ms),
            metrics,
        })
    }

    /// Whether `caller` may go on to the stock. Takes one token of each bucket on the way.
    pub fn admit(&self, caller: &Caller<'_>) -> Result<(), AdmissionDenied> {
        if caller.blocked {
            self.metrics.blocked.inc();
            return Err(AdmissionDenied::Blocked);
        }
        self.users.take(&self.user_key(caller.user)).map_err(|retry_after| {
            self.metrics.user.inc();
            AdmissionDenied::RateLimited { retry_after }
        })?;
        self.addresses.take(&AddressKey::from(caller.address)).map_err(|retry_after| {
            self.metrics.address.inc();
            AdmissionDenied::RateLimited { retry_after }
        })?;
        if let Some(proof) = caller.proof {
            self.check(caller.user, proof).map_err(|bad| {
                self.metrics.challenge.inc();
                AdmissionDenied::ChallengeRequired(bad)
            })?;
        }
        self.node.check().map_err(|until| {
            self.metrics.node.inc();
            AdmissionDenied::RateLimited { retry_after: buckets::wait(&until, self.node.clock()) }
        })?;
        self.metrics.admitted.inc();
        Ok(())
    }

    /// Where a request really comes from: see [`address`]. `forwarded`: the values of `X-Forwarded-For`.
    pub fn client_address<'a>(&self, peer: IpAddr, forwarded: impl DoubleEndedIterator<Item = &'a str>) -> IpAddr {
        self.proxies.client(peer, forwarded)
    }

    /// Issues the challenges that [`Admission::admit`] checks.
    pub const fn challenges(&self) -> &Challenges {
        &self.challenges
    }

    /// Forgets buckets that are full again. Takes some milliseconds when very many are held.
    pub fn sweep(&self) {
        self.users.sweep();
        self.addresses.sweep();
    }

    /// Sweeps on a timer until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let mut timer = tokio::time::interval(self.sweep_every);
        // A late sweep does the work of those that it stands for.
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(timer.tick()).await.is_some() {
            self.sweep();
        }
    }

    fn check(&self, user: &UserId, proof: Proof<'_>) -> Result<(), Option<BadToken>> {
        let token = proof.token.ok_or(None)?;
        self.challenges.verify(proof.sale, user, proof.now, token).map_err(Some)
    }

    /// 64 bits instead of the name: no allocation, and 16 bytes per bucket. Two users with the same hash would share
    /// a bucket, which costs them a 429 and nothing else; among 200,000 tracked users that happens once in a billion.
    /// The hash has a random key in each process, so nobody can search for a name that lands in a victim's bucket.
    fn user_key(&self, user: &UserId) -> u64 {
        self.hasher.hash_one(user.as_str())
    }
}

#[cfg(test)]
mod tests;
