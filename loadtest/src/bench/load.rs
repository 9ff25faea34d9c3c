//! Kept-alive HTTP connections with little work of their own: they share the cores with what they measure.
//!
//! A request is one write of bytes that were mostly written beforehand. Of an answer the status and the length are
//! read, and nothing else.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use seckill::domain::SaleId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::crowd::Crowd;

/// Far above what any run needs. One timeout for a whole run, since one for each read would cost a timer per answer.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A connection, and what was read of the next answer.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl Connection {
    pub async fn open(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 64 << 10], filled: 0 })
    }

    /// Sends requests that were written one behind the other.
    pub async fn send(&mut self, requests: &[u8]) -> io::Result<()> {
        self.stream.write_all(requests).await
    }

    /// The status of the next answer, and its length in bytes, head and all.
    pub async fn answer(&mut self) -> anyhow::Result<(u16, usize)> {
        loop {
            if let Some((status, length)) = head(&self.buffer[..self.filled])?
                && self.filled >= length
            {
                self.buffer.copy_within(length..self.filled, 0);
                self.filled -= length;
                return Ok((status, length));
            }
            match self.stream.read(&mut self.buffer[self.filled..]).await? {
                0 => bail!("the connection was closed"),
                more => self.filled += more,
            }
        }
    }
}

/// Status and whole length of the answer that begins here, once its head is complete.
fn head(bytes: &[u8]) -> anyhow::Result<Option<(u16, usize)>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&bytes[..end])?;
    let status = text.get(9..12).context("no status line")?.parse()?;
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let body: usize = length.context("an answer without a length")?.parse()?;
    Ok(Some((status, end + 4 + body)))
}

/// When a run is over.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Time(Duration),
    /// This many purchases, each by another buyer.
    Count(usize),
}

/// The answers of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    pub accepted: u64,
    /// Answered with something else than 202.
    pub refused: u64,
    pub seconds: f64,
}

impl Ran {
    pub const fn answers(&self) -> u64 {
        self.accepted + self.refused
    }
}

/// Closed loop: each connection sends the next purchase when it has its answer. Buyers take turns, from number `first`
/// on.
pub async fn closed(
    server: SocketAddr,
    crowd: &Arc<Crowd>,
    sale: SaleId,
    connections: usize,
    first: usize,
    until: Until,
) -> anyhow::Result<Ran> {
    let (next, mut asking) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    let begin = Instant::now();
    for _ in 0..connections {
        let (crowd, next) = (Arc::clone(crowd), Arc::clone(&next));
        asking.spawn(async move {
            let (mut connection, mut request, mut ran) = (Connection::open(server).await?, Vec::new(), Ran::default());
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let over = match until {
                    Until::Time(time) => begin.elapsed() >= time,
                    Until::Count(count) => n >= count,
                };
                if over {
                    return anyhow::Ok(ran);
                }
                request.clear();
                crowd.write(&mut request, sale, first + n);
                connection.send(&request).await?;
                match connection.answer().await?.0 {
                    202 => ran.accepted += 1,
                    _ => ran.refused += 1,
                }
            }
        });
    }
    let mut all = Ran::default();
    for one in all_of(asking).await? {
        all.accepted += one.accepted;
        all.refused += one.refused;
    }
    Ok(Ran { seconds: begin.elapsed().as_secs_f64(), ..all })
}

/// The results of all connections, unless one failed or timed out.
pub async fn all_of<T: 'static>(mut tasks: JoinSet<anyhow::Result<T>>) -> anyhow::Result<Vec<T>> {
    let gathering = async {
        let mut all = Vec::new();
        while let Some(one) = tasks.join_next().await {
            all.push(one??);
        }
        anyhow::Ok(all)
    };
    tokio::time::timeout(TIMEOUT, gathering).await.context("no answer in time")?
}

/// The length of the answer to one request: head and body.
pub async fn answer_length(server: SocketAddr, request: &[u8]) -> anyhow::Result<(u16, usize)> {
    let mut connection = Connection::open(server).await?;
    connection.send(request).await?;
    connection.answer().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_as_long_as_its_head_says_and_unknown_before_the_head_is_there() {
        let answer = b"HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\ndate: now\r\n\r\n{}HTTP/1.1 202";
        assert_eq!(head(answer).expect("a head"), Some((409, answer.len() - 12)));
        assert_eq!(head(&answer[..30]).expect("no head yet"), None);
        assert!(head(b"HTTP/1.1 409 Conflict\r\n\r\n").is_err());
    }
}
