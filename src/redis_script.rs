//! One way to run a Lua script: by its hash, and by its text when Redis does not know it.
//!
//! A restart, a failover or SCRIPT FLUSH empties the cache at any moment. The answer NOSCRIPT is certain: nothing
//! ran. The text is then sent with EVAL, which cannot miss, rather than loaded and called again, which can.

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, ToRedisArgs};

/// A script and its hash.
pub struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    /// The text is fixed when the program is built: what changes goes into the arguments, or the cache would grow.
    pub fn new(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }

    /// A call with these keys, to which arguments are added.
    pub fn call<K: AsRef<str>>(&'static self, keys: &[K]) -> Call {
        let mut rest = Cmd::new();
        rest.arg(keys.len());
        for key in keys {
            rest.arg(key.as_ref());
        }
        Call { script: self, rest }
    }
}

/// One call of a script.
pub struct Call {
    script: &'static Script,
    /// Everything that follows the script: the number of keys, the keys, the arguments.
    rest: Cmd,
}

impl Call {
    pub fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.rest.arg(argument);
        self
    }

    /// Runs the script once. After an error other than a refusal by the server it may have run.
    pub async fn run<T: FromRedisValue>(&self, redis: &mut impl ConnectionLike) -> Result<T, RedisError> {
        match self.command("EVALSHA", &self.script.hash).query_async(redis).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.command("EVAL", self.script.text).query_async(redis).await
            }
            answer => answer,
        }
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script);
        for argument in self.rest.args_iter() {
            if let redis::Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }
}

/// An enum of a script's reply codes: `Variant = code as "NAME"`, the code and name as in the script's comment table.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $code:literal as $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($variant = $code),* }

        impl $name {
            /// Code and name of each reply, as in the script's comment table.
            pub const TABLE: &'static [(i64, &'static str)] = &[$(($code, $word)),*];

            pub(super) fn from_code(code: i64) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use codes;

/// The codes and names in a script's comment table, its lines `--    7  NAME …`: tests compare them with the enum.
#[cfg(test)]
pub(crate) fn documented(script: &str) -> Vec<(i64, &str)> {
    let comments = script.lines().filter_map(|line| line.strip_prefix("--"));
    let rows = comments.filter_map(|line| {
        let mut words = line.split_whitespace();
        let code = words.next()?.parse().ok()?;
        let name = words.next()?;
        let is_name = name.len() > 1 && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        is_name.then_some((code, name))
    });
    rows.collect()
}
