//! The Redis side of the relay: one sale's outbox stream, read through a consumer group.
//!
//! The connection is this reader's own: `XREADGROUP … BLOCK` holds up everything that is sent behind it. After
//! any error the connection is dropped and the next call makes a new one; what was asked when it broke may or may
//! not have happened, and every command here is safe to repeat.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, RedisError, Value};
use secrecy::ExposeSecret;

use super::entry::{self, Entry};
use crate::config;
use crate::lua::Lua;
use crate::stock::codec;
use crate::stock::keys::RELAY_GROUP;

/// An entry that Kafka has confirmed: what `ack.lua` needs to remove the right one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Stream id.
    pub id: String,
    /// The order that was published under it, as written in the entry; empty when the entry named none.
    pub order: Vec<u8>,
}

/// What `ack.lua` did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// Entries that were mine and are gone now.
    pub removed: u64,
    /// Entries that were gone before.
    pub absent: u64,
    /// Entries of other orders under the same stream id, left alone.
    pub foreign: u64,
    /// Entries left in the stream, read or not.
    pub backlog: u64,
}

/// An answer of a read of new entries.
pub(super) enum Read {
    Entries(Vec<Entry>),
    /// No purchase was made in this sale yet, or the stream is gone.
    NoStream,
}

static ACK: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("../../lua/ack.lua")));
static LEAVE: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("../../lua/leave.lua")));

pub(super) struct Stream {
    client: Client,
    connecting: AsyncConnectionConfig,
    connection: Option<MultiplexedConnection>,
    key: String,
    consumer: String,
}

impl Stream {
    /// `consumer` names this relay and no other, ever: two readers under one name would hide each other's entries.
    pub(super) fn new(
        redis: &config::Redis,
        block: Duration,
        key: String,
        consumer: String,
    ) -> Result<Self, RedisError> {
        let connecting = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(redis.connect_timeout()))
            // An answer that is due after `block` is not late before `block` and the usual patience are over.
            .set_response_timeout(Some(block + redis.response_timeout()));
        Ok(Self { client: Client::open(redis.url.expose_secret())?, connecting, connection: None, key, consumer })
    }

    /// Makes the next command connect anew.
    pub(super) fn reset(&mut self) {
        self.connection = None;
    }

    async fn connection(&mut self) -> Result<&mut MultiplexedConnection, RedisError> {
        if self.connection.is_none() {
            self.connection = Some(self.client.get_multiplexed_async_connection_with_config(&self.connecting).await?);
        }
        // Just filled; `get_or_insert_with` would need a closure that can wait.
        self.connection.as_mut().ok_or_else(|| RedisError::from((ErrorKind::Io, "not connected")))
    }

    /// Drops the connection after an error that came from it rather than from the server behind it.
    fn judge<T>(&mut self, answer: Result<T, RedisError>) -> Result<T, RedisError> {
        if answer.as_ref().is_err_and(|error| error.code().is_none()) {
            self.connection = None;
        }
        answer
    }

    async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, RedisError> {
        let answer = command.query_async(self.connection().await?).await;
        self.judge(answer)
    }

    fn read(&self, count: usize, from: &str, block: Option<Duration>) -> Cmd {
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(RELAY_GROUP).arg(&self.consumer).arg("COUNT").arg(count);
        if let Some(block) = block {
            // 0 would mean for ever.
            command.arg("BLOCK").arg(block.as_millis().max(1) as u64);
        }
        command.arg("STREAMS").arg(&self.key).arg(from);
        command
    }

    /// Entries that nobody has read yet. Waits up to `block` for the first one, or not at all.
    pub(super) async fn read_new(&mut self, count: usize, block: Option<Duration>) -> Result<Read, RedisError> {
        let command = self.read(count, ">", block);
        let answer = match self.query::<Value>(&command).await {
            Err(error) if error.code() == Some("NOGROUP") => {
                if !self.create_group().await? {
                    return Ok(Read::NoStream);
                }
                self.query(&command).await?
            }
            answer => answer?,
        };
        Ok(Read::Entries(entry::entries_of_one_stream(answer)?))
    }

    /// Entries after `cursor` that were read under this consumer's name and not acknowledged; those that were
    /// removed meanwhile come without fields.
    pub(super) async fn read_own(&mut self, count: usize, cursor: &str) -> Result<Vec<Entry>, RedisError> {
        let command = self.read(count, cursor, None);
        match self.query::<Value>(&command).await {
            Ok(answer) => entry::entries_of_one_stream(answer),
            Err(error) if error.code() == Some("NOGROUP") => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Whether the group exists now. From id 0, never `$`: the entries that are there already are orders too.
    /// Without MKSTREAM: a stream that this relay made would have no time to live.
    async fn create_group(&mut self) -> Result<bool, RedisError> {
        let mut command = redis::cmd("XGROUP");
        command.arg("CREATE").arg(&self.key).arg(RELAY_GROUP).arg("0");
        match self.query::<Value>(&command).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(true),
            Err(error) if error.code() == Some("ERR") && self.length().await? == 0 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes over entries that another relay read at least `idle` ago, from `cursor` on. Answers the next cursor,
    /// `0-0` at the end. Redis clears what was removed meanwhile by itself.
    pub(super) async fn claim(
        &mut self,
        idle: Duration,
        cursor: &str,
        count: usize,
    ) -> Result<(String, Vec<Entry>), RedisError> {
        let mut command = redis::cmd("XAUTOCLAIM");
        command.arg(&self.key).arg(RELAY_GROUP).arg(&self.consumer).arg(idle.as_millis() as u64).arg(cursor);
        command.arg("COUNT").arg(count);
        match self.query::<Value>(&command).await {
            Ok(answer) => entry::claimed(answer),
            Err(error) if error.code() == Some("NOGROUP") => Ok(("0-0".to_owned(), Vec::new())),
            Err(error) => Err(error),
        }
    }

    /// Takes over the oldest entries that the group has passed and that nobody holds: acknowledged and never
    /// removed. No read would ever bring them up again, and the outbox would never be empty.
    pub(super) async fn claim_orphans(&mut self, idle: Duration, count: usize) -> Result<Vec<Entry>, RedisError> {
        let Some(passed) = self.last_delivered().await? else { return Ok(Vec::new()) };
        let mut range = redis::cmd("XRANGE");
        range.arg(&self.key).arg("-").arg(&passed).arg("COUNT").arg(count);
        let oldest = entry::entries(self.query(&range).await?)?;
        if oldest.is_empty() {
            return Ok(Vec::new());
        }
        let mut claim = redis::cmd("XCLAIM");
        claim.arg(&self.key).arg(RELAY_GROUP).arg(&self.consumer).arg(idle.as_millis() as u64);
        for entry in &oldest {
            claim.arg(&entry.id);
        }
        // FORCE makes an unheld entry pending; one that a living relay holds stays with it because of `idle`.
        claim.arg("FORCE");
        entry::entries(self.query(&claim).await?)
    }

    /// The id up to which the group has read.
    async fn last_delivered(&mut self) -> Result<Option<String>, RedisError> {
        let groups: Result<Vec<HashMap<String, Value>>, _> =
            self.query(redis::cmd("XINFO").arg("GROUPS").arg(&self.key)).await;
        let groups = match groups {
            Ok(groups) => groups,
            Err(error) if error.code() == Some("ERR") => return Ok(None),
            Err(error) => return Err(error),
        };
        let named = |group: &HashMap<String, Value>| {
            group.get("name").is_some_and(|name| *name == Value::BulkString(RELAY_GROUP.into()))
        };
        let group = groups.into_iter().find(named);
        let last = group.and_then(|mut group| group.remove("last-delivered-id"));
        last.map(redis::from_redis_value).transpose().map_err(RedisError::from)
    }

    /// Tells other relays that this one still works on these entries.
    pub(super) async fn keep<'a>(&mut self, ids: impl Iterator<Item = &'a str>) -> Result<(), RedisError> {
        let mut command = redis::cmd("XCLAIM");
        command.arg(&self.key).arg(RELAY_GROUP).arg(&self.consumer).arg(0);
        for id in ids {
            command.arg(id);
        }
        command.arg("JUSTID");
        self.query::<Value>(&command).await.map(drop)
    }

    /// Removes confirmed entries.
    pub(super) async fn acknowledge(&mut self, receipts: &[Receipt]) -> Result<Acknowledged, RedisError> {
        let mut call = ACK.call(&[&self.key]);
        call.arg(RELAY_GROUP);
        for receipt in receipts {
            call.arg(&receipt.id).arg(&receipt.order);
        }
        let answer = call.run(self.connection().await?).await;
        let (removed, absent, foreign, backlog) = self.judge(answer)?;
        Ok(Acknowledged { removed, absent, foreign, backlog })
    }

    /// The run id of the process at the other end of this connection.
    pub(super) async fn run_id(&mut self) -> Result<String, RedisError> {
        let info: String = self.query(redis::cmd("INFO").arg("server")).await?;
        Ok(codec::run_id(&info).unwrap_or_default().to_owned())
    }

    /// Takes this consumer's name out of the group, unless entries are pending under it.
    pub(super) async fn leave(&mut self) -> Result<(), RedisError> {
        let mut call = LEAVE.call(&[&self.key]);
        call.arg(RELAY_GROUP).arg(&self.consumer);
        let answer = call.run::<Value>(self.connection().await?).await;
        self.judge(answer).map(drop)
    }

    /// Entries in the stream, read or not.
    pub(super) async fn length(&mut self) -> Result<u64, RedisError> {
        self.query(redis::cmd("XLEN").arg(&self.key)).await
    }

    /// Lets the stream live for `retention` from now on, unless it lives longer anyway.
    pub(super) async fn outlive(&mut self, retention: Duration) -> Result<(), RedisError> {
        let mut command = redis::cmd("PEXPIRE");
        command.arg(&self.key).arg(retention.as_millis() as u64).arg("GT");
        self.query::<Value>(&command).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_comment_table_of_the_script_names_what_it_answers_in_order() {
        let script = include_str!("../../lua/ack.lua");
        let table: Vec<_> = ["removed", "absent", "foreign"]
            .iter()
            .map(|word| script.find(&format!("--   {word} ")).expect("a line of the table"))
            .collect();
        assert!(script.contains("-- Reply: { removed, absent, foreign, entries left in the stream }"));
        assert_eq!(table.len(), 3);
        for line in ["KEYS[1]   the outbox", "ARGV[1]   the relay group", "ARGV[2…]  pairs"] {
            assert!(script.contains(line), "{line}");
        }
    }
}
