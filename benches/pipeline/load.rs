//! Kept-alive HTTP connections that ask again as soon as they are answered.
//!
//! As little client as can be, because it shares the cores with the server: the requests are written beforehand, and
//! of an answer only the length is looked at after the first one.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Answers per second to `requests`, each sent over and over on a connection of its own. All must be answered with
/// `status`.
pub async fn answers_per_second(
    address: SocketAddr,
    requests: &[Vec<u8>],
    status: u16,
    time: Duration,
) -> anyhow::Result<f64> {
    let mut connections = JoinSet::new();
    let begin = Instant::now();
    for request in requests {
        let request = request.clone();
        connections.spawn(async move { ask(address, &request, status, begin + time).await });
    }
    let mut answers = 0;
    while let Some(asked) = connections.join_next().await {
        answers += asked??;
    }
    Ok(answers as f64 / begin.elapsed().as_secs_f64())
}

async fn ask(address: SocketAddr, request: &[u8], status: u16, until: Instant) -> anyhow::Result<u64> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 8192];
    let length = first(&mut stream, request, status, &mut buffer).await?;
    let expected = format!("HTTP/1.1 {status} ").into_bytes();
    let mut answers = 1;
    while Instant::now() < until {
        stream.write_all(request).await?;
        stream.read_exact(&mut buffer[..length]).await?;
        ensure!(buffer.starts_with(&expected), "{}", String::from_utf8_lossy(&buffer[..length]));
        answers += 1;
    }
    Ok(answers)
}

/// One exchange. Answers with the length of the whole answer, which those that follow have too.
async fn first(stream: &mut TcpStream, request: &[u8], status: u16, buffer: &mut [u8]) -> anyhow::Result<usize> {
    stream.write_all(request).await?;
    let mut read = 0;
    loop {
        let more = stream.read(&mut buffer[read..]).await?;
        ensure!(more > 0, "the connection was closed");
        read += more;
        let text = String::from_utf8_lossy(&buffer[..read]);
        let Some(head) = text.find("\r\n\r\n") else { continue };
        if !text.starts_with(&format!("HTTP/1.1 {status} ")) {
            bail!("not {status}: {text}");
        }
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        let body: usize = length.context("an answer without a length")?.parse()?;
        if read == head + 4 + body {
            return Ok(read);
        }
    }
}
