//! Servers that do nothing: the most that the framework can do, and the most that the generator can do.

use std::net::SocketAddr;

use actix_web::http::StatusCode;
use actix_web::{App, HttpResponse, HttpServer, web};
use anyhow::Context;
use clap::Args;
use seckill::app::{BACKLOG, HEAD_TIMEOUT, KEEP_ALIVE, MAX_CONNECTIONS_PER_WORKER};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the node answers when nothing is left, byte for byte. The bench compares the whole answers.
const SOLD_OUT: &str =
    r#"{"type":"urn:seckill:problem:sold_out","title":"Nothing is left","status":409,"code":"sold_out"}"#;

/// The framework, workers and socket settings of a node, and a handler that reads the body and answers as many bytes.
#[derive(Debug, Args)]
pub struct NoOp {
    bind: SocketAddr,
    workers: usize,
}

impl NoOp {
    pub async fn run(self) -> anyhow::Result<()> {
        let application = || App::new().route("/api/v1/sales/{sale}/purchases", web::post().to(answer));
        let server = HttpServer::new(application)
            .backlog(BACKLOG)
            .max_connections(MAX_CONNECTIONS_PER_WORKER)
            .keep_alive(KEEP_ALIVE)
            .client_request_timeout(HEAD_TIMEOUT)
            .workers(self.workers)
            .disable_signals()
            .bind(self.bind)
            .with_context(|| format!("cannot listen on {}", self.bind))?;
        Ok(server.run().await?)
    }
}

async fn answer(_path: web::Path<String>, _body: web::Bytes) -> HttpResponse {
    HttpResponse::build(StatusCode::CONFLICT).content_type("application/problem+json").body(SOLD_OUT)
}

/// Answers each read with the same bytes. Nothing is parsed, so this is nearly all kernel and generator.
#[derive(Debug, Args)]
pub struct CannedAnswer {
    bind: SocketAddr,
}

impl CannedAnswer {
    pub async fn run(self) -> anyhow::Result<()> {
        let listener = TcpListener::bind(self.bind).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(serve(stream));
        }
    }
}

/// For a generator that waits for each answer and sends each request in one write.
async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let answer = format!(
        "HTTP/1.1 409 Conflict\r\ncontent-length: {}\r\ncontent-type: application/problem+json\r\n\
         date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n{SOLD_OUT}",
        SOLD_OUT.len()
    );
    let mut buffer = vec![0; 4096];
    while stream.read(&mut buffer).await? > 0 {
        stream.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}
