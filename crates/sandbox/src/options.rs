//! Which servers a sandbox runs, and how.

use super::RedisOptions;

/// Which servers to start. The default is all three.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Options {
    pub redis: Option<RedisOptions>,
    pub postgres: bool,
    pub kafka: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { redis: Some(RedisOptions::default()), postgres: true, kafka: true }
    }
}

impl Options {
    /// No server at all, to add some.
    pub const fn none() -> Self {
        Self { redis: None, postgres: false, kafka: false }
    }

    /// With a Redis of this kind.
    pub const fn redis(self, options: RedisOptions) -> Self {
        Self { redis: Some(options), ..self }
    }

    pub const fn postgres(self) -> Self {
        Self { postgres: true, ..self }
    }

    pub const fn kafka(self) -> Self {
        Self { kafka: true, ..self }
    }
}
