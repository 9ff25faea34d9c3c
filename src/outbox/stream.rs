//! The Redis side of the relay: the outbox stream of one sale, read through a consumer group.
//!
//! A Redis stream is an append-only log. `XADD` appends an entry, a list of fields, under an id of milliseconds and a
//! counter such as `1700000000123-0`; ids only grow. A consumer group lets several readers share a stream: Redis keeps
//! for the group the last id that it has delivered and, per consumer name, the list of entries that were delivered and
//! not yet acknowledged, the pending entries list (PEL). The commands that this file uses:
//!
//! - `XGROUP CREATE key group 0` makes the group and begins with the first entry (`$` would begin with the next one).
//!   Where the group or the stream does not exist, the commands below fail with `NOGROUP`.
//! - `XREADGROUP GROUP group consumer … STREAMS key >` delivers entries that no consumer of the group has read, and
//!   puts them on the PEL of this consumer; `BLOCK` waits for the first one. With an id in the place of `>` it
//!   answers the entries on this consumer's own PEL after that id: what it was working on when an answer was lost.
//!   Such an entry comes without fields if it was deleted from the stream meanwhile.
//! - `XAUTOCLAIM key group consumer idle cursor` goes through the PELs of all consumers, takes over the entries that
//!   were delivered longer than `idle` ago, and answers the cursor for the next call. This is how the entries of a
//!   dead relay find a new one: a PEL has no timeout of its own.
//! - `XCLAIM` does the same for ids that are named. With an idle time of 0 on its own entries a relay restarts their
//!   idle time, so that no other relay takes them; with `FORCE` it also claims entries that are on no PEL.
//! - `XACK` takes an entry off the PEL, and leaves it in the stream. `XDEL` deletes it from the stream, and leaves it
//!   on the PEL. `ack.lua` does both or neither.
//!
//! The connection is this reader's own: `XREADGROUP … BLOCK` holds up every command that is sent after it. After any
//! error of the connection the next call makes a new one. A command whose answer was lost may have run, so every
//! command here is safe to repeat.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, RedisError, Value};
use secrecy::ExposeSecret;

use super::entry::{self, Entry};
use crate::config;
use crate::redis_script::Script;
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
    /// Entries of these orders, removed now.
    pub removed: u64,
    /// Entries that had been removed before.
    pub absent: u64,
    /// Entries of other orders under the same stream id, left alone.
    pub foreign: u64,
    /// Entries left in the stream, read or not.
    pub backlog: u64,
}

/// The answer to a read of new entries.
pub(super) enum Read {
    Entries(Vec<Entry>),
    /// No purchase was made in this sale yet, or the stream is gone.
    NoStream,
}

static ACK: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../lua/ack.lua")));
static LEAVE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../lua/leave.lua")));

pub(super) struct Stream {
    client: Client,
    connecting: AsyncConnectionConfig,
    connection: Option<MultiplexedConnection>,
    key: String,
    consumer: String,
}

impl Stream {
    /// `consumer` is a name that no other relay has or had: two readers under one name would share one list of pending
    /// entries.
    pub(super) fn new(
        redis: &config::Redis,
        block: Duration,
        key: String,
        consumer: String,
    ) -> Result<Self, RedisError> {
        let connecting = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(redis.connect_timeout()))
            // A blocking read may take `block` before Redis answers.
            .set_response_timeout(Some(block + redis.response_timeout()));
        Ok(Self { client: Client::open(redis.url.expose_secret())?, connecting, connection: None, key, consumer })
    }

    /// Makes the next command connect again.
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
    fn drop_if_broken<T>(&mut self, answer: Result<T, RedisError>) -> Result<T, RedisError> {
        if answer.as_ref().is_err_and(|error| error.code().is_none()) {
            self.connection = None;
        }
        answer
    }

    async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, RedisError> {
        let answer = command.query_async(self.connection().await?).await;
        self.drop_if_broken(answer)
    }

    fn read(&self, count: usize, from: &str, block: Option<Duration>) -> Cmd {
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(RELAY_GROUP).arg(&self.consumer).arg("COUNT").arg(count);
        if let Some(block) = block {
            // 0 would mean without a limit.
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

    /// Makes the group; false if there is no stream. From id 0, never `$`: the entries that are there already are
    /// orders too. Without MKSTREAM: a stream that this relay made would have no time to live.
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
    /// `0-0` at the end. Redis takes entries that were deleted meanwhile off the list of pending ones.
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

    /// Takes over the oldest entries that were delivered and are pending nowhere: acknowledged, but not deleted. No
    /// read would ever answer them again, and the outbox would never be empty.
    pub(super) async fn claim_orphans(&mut self, idle: Duration, count: usize) -> Result<Vec<Entry>, RedisError> {
        let Some(last) = self.last_delivered().await? else { return Ok(Vec::new()) };
        let mut range = redis::cmd("XRANGE");
        range.arg(&self.key).arg("-").arg(&last).arg("COUNT").arg(count);
        let oldest = entry::entries(self.query(&range).await?)?;
        if oldest.is_empty() {
            return Ok(Vec::new());
        }
        let mut claim = redis::cmd("XCLAIM");
        claim.arg(&self.key).arg(RELAY_GROUP).arg(&self.consumer).arg(idle.as_millis() as u64);
        for entry in &oldest {
            claim.arg(&entry.id);
        }
        // FORCE makes an entry pending that is not. One that is pending at a live relay stays there because of `idle`.
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

    /// Restarts the idle time of these entries, so that no other relay takes them over.
    pub(super) async fn renew_claims<'a>(&mut self, ids: impl Iterator<Item = &'a str>) -> Result<(), RedisError> {
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
        let (removed, absent, foreign, backlog) = self.drop_if_broken(answer)?;
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
        self.drop_if_broken(answer).map(drop)
    }

    /// Entries in the stream, read or not.
    pub(super) async fn length(&mut self) -> Result<u64, RedisError> {
        self.query(redis::cmd("XLEN").arg(&self.key)).await
    }

    /// Lets the stream expire after `retention` from now, unless it expires later anyway.
    pub(super) async fn extend_ttl(&mut self, retention: Duration) -> Result<(), RedisError> {
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
