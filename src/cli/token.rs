//! `seckill token`: a JWT to try the API with.

use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::out;
use crate::admission::identity::Verifier;
use crate::config::Settings;
use crate::domain::UserId;

#[derive(Debug, Args)]
pub struct Token {
    /// The user: 1 to 64 characters of A-Z, a-z, 0-9, _ and -.
    user: UserId,
    /// Allows the operator's calls.
    #[arg(long)]
    operator: bool,
    /// Seconds until it expires.
    #[arg(long, default_value_t = 3600)]
    ttl_s: u64,
}

impl Token {
    pub fn run(&self, settings: &Settings) -> anyhow::Result<()> {
        let verifier = Verifier::new(&settings.auth.jwt_secret).context("SECKILL__AUTH__JWT_SECRET")?;
        out::line(verifier.sign(&self.user, Duration::from_secs(self.ttl_s), self.operator)?);
        Ok(())
    }
}
