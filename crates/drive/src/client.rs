//! A small HTTP/1.1 client over hyper: one pool of keep-alive connections per node.
//!
//! What it guarantees is that a failure says how far the request came. [`Failure::Connect`] means that nothing was
//! sent, so nothing can have been decided; after [`Failure::Timeout`] and [`Failure::Reset`] the server may have
//! done anything. A request that meets a connection which the server had closed while it was idle is sent again
//! on another one, but only if hyper gives it back unsent.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const PURCHASE_TOKEN: HeaderName = HeaderName::from_static("x-purchase-token");

/// Far above any answer of the service; a larger one is cut off and counts as a reset.
const LARGEST_BODY: usize = 4 << 20;

/// How many connections a client may open, and how long it waits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections per node, and so requests in flight per node.
    pub connections: usize,
    pub connect: Duration,
    /// From the first byte sent to the last byte received.
    pub response: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 256, connect: Duration::from_secs(2), response: Duration::from_secs(5) }
    }
}

/// The headers of one caller, made once and cloned cheaply.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// `Bearer …`.
    pub authorization: Option<HeaderValue>,
    /// The address that a trusted proxy would report.
    pub forwarded_for: Option<HeaderValue>,
    pub idempotency_key: Option<HeaderValue>,
    /// What a challenge earned.
    pub purchase_token: Option<HeaderValue>,
}

/// A complete answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub retry_after: Option<Duration>,
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nothing was sent.
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("no answer in time")]
    Timeout,
    /// The connection broke after the request went out.
    #[error("the connection broke: {0}")]
    Reset(String),
}

/// Why a text is not the base URL of a node.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a base URL like http://127.0.0.1:8080 (plain HTTP, no path)")]
pub struct BadUrl(String);

/// Clients of all nodes of one service.
pub struct Client {
    nodes: Vec<Node>,
    limits: Limits,
}

struct Node {
    /// `host:port`, for the socket and for the Host header.
    authority: String,
    host: HeaderValue,
    idle: Mutex<Vec<Sender>>,
    permits: Semaphore,
}

type Sender = SendRequest<Full<Bytes>>;

impl Client {
    /// A client of the nodes at these base URLs. Connects to none of them yet.
    pub fn new<S: AsRef<str>>(urls: &[S], limits: Limits) -> Result<Self, BadUrl> {
        let nodes = urls.iter().map(|url| Node::new(url.as_ref(), limits)).collect::<Result<Vec<_>, _>>()?;
        if nodes.is_empty() {
            return Err(BadUrl(String::new()));
        }
        Ok(Self { nodes, limits })
    }

    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Sends one request to node `node` (modulo their number) and reads the whole answer. Waits for a free
    /// connection without a limit: how long that took shows in the caller's latency.
    pub async fn send(
        &self,
        node: usize,
        method: Method,
        path: &Uri,
        caller: &Caller,
        body: Bytes,
    ) -> Result<Reply, Failure> {
        self.send_over(false, node, method, path, caller, body).await
    }

    /// As [`Client::send`]; `alone`, over a connection that is made for this request and closed after it.
    pub async fn send_over(
        &self,
        alone: bool,
        node: usize,
        method: Method,
        path: &Uri,
        caller: &Caller,
        body: Bytes,
    ) -> Result<Reply, Failure> {
        let node = &self.nodes[node % self.nodes.len()];
        let _permit = node.permits.acquire().await.map_err(|_| Failure::Connect("the client is closed".into()))?;
        let mut request = node.request(method, path, caller, body);
        loop {
            let idle = if alone { None } else { node.take_idle().await };
            let (mut sender, fresh) = match idle {
                Some(sender) => (sender, false),
                None => (node.connect(self.limits.connect).await?, true),
            };
            let response = match timeout(self.limits.response, exchange(&mut sender, request)).await {
                Err(_) => return Err(Failure::Timeout),
                Ok(Ok(reply)) => {
                    if !alone {
                        node.give_back(sender);
                    }
                    return Ok(reply);
                }
                Ok(Err(broken)) => broken,
            };
            match response.unsent {
                Some(unsent) if !fresh => request = *unsent,
                Some(_) => return Err(Failure::Connect(response.why)),
                None => return Err(Failure::Reset(response.why)),
            }
        }
    }
}

/// An exchange that failed, and the request if it never left.
struct BrokenExchange {
    why: String,
    unsent: Option<Box<Request<Full<Bytes>>>>,
}

async fn exchange(sender: &mut Sender, request: Request<Full<Bytes>>) -> Result<Reply, BrokenExchange> {
    match sender.try_send_request(request).await {
        Ok(response) => read(response).await.map_err(|why| BrokenExchange { why, unsent: None }),
        Err(mut error) => {
            let unsent = error.take_message().map(Box::new);
            Err(BrokenExchange { why: error.error().to_string(), unsent })
        }
    }
}

async fn read(response: Response<Incoming>) -> Result<Reply, String> {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(seconds);
    let body = Limited::new(response.into_body(), LARGEST_BODY).collect().await.map_err(|e| e.to_string())?;
    Ok(Reply { status, retry_after, body: body.to_bytes() })
}

fn seconds(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

impl Node {
    fn new(url: &str, limits: Limits) -> Result<Self, BadUrl> {
        let bad = || BadUrl(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let plain = uri.scheme_str() == Some("http") && uri.path() == "/" && uri.query().is_none();
        let host = uri.host().filter(|_| plain).ok_or_else(bad)?;
        let authority = format!("{host}:{}", uri.port_u16().unwrap_or(80));
        Ok(Self {
            host: HeaderValue::from_str(&authority).map_err(|_| bad())?,
            authority,
            idle: Mutex::default(),
            permits: Semaphore::new(limits.connections.max(1)),
        })
    }

    fn request(&self, method: Method, path: &Uri, caller: &Caller, body: Bytes) -> Request<Full<Bytes>> {
        let has_body = !body.is_empty();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let optional = [
            (AUTHORIZATION, &caller.authorization),
            (FORWARDED_FOR, &caller.forwarded_for),
            (IDEMPOTENCY_KEY, &caller.idempotency_key),
            (PURCHASE_TOKEN, &caller.purchase_token),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                headers.insert(name, value.clone());
            }
        }
        request
    }

    /// The connection that was used last and is still open: the fewest stay busy, the rest may close.
    async fn take_idle(&self) -> Option<Sender> {
        loop {
            let mut sender = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    fn give_back(&self, sender: Sender) {
        if !sender.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        }
    }

    async fn connect(&self, limit: Duration) -> Result<Sender, Failure> {
        let failure = |why: String| Failure::Connect(why);
        let stream = timeout(limit, TcpStream::connect(&self.authority))
            .await
            .map_err(|_| failure("no connection in time".to_owned()))?
            .map_err(|e| failure(e.to_string()))?;
        stream.set_nodelay(true).map_err(|e| failure(e.to_string()))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| failure(e.to_string()))?;
        // Ends by itself: when the server closes, or when the sender is dropped.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::trace!(%error, "a buyer's connection ended");
            }
        });
        Ok(sender)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn get(client: &Client) -> Result<u16, Failure> {
        let path = Uri::from_static("/");
        client.send(0, Method::GET, &path, &Caller::default(), Bytes::new()).await.map(|reply| reply.status)
    }

    /// Answers `per_connection` requests on each connection, then closes it; with `mute`, the last one gets no answer.
    async fn closing_server(per_connection: usize, mute: bool) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                for n in 1..=per_connection {
                    let mut request = [0; 4096];
                    if socket.read(&mut request).await.unwrap_or(0) == 0 || (mute && n == per_connection) {
                        break;
                    }
                    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.expect("an open socket");
                }
            }
        });
        Client::new(&[url], Limits { response: Duration::from_secs(5), ..Limits::default() }).expect("a base URL")
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_while_idle_costs_nothing() {
        let client = closing_server(2, false).await;
        for _ in 0..20 {
            assert_eq!(get(&client).await.expect("an answer"), 200);
            assert_eq!(get(&client).await.expect("an answer"), 200);
            // The server closes now; the next request must notice and take another connection.
            while client.nodes[0].idle.lock().expect("no panic").iter().any(|sender| !sender.is_closed()) {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn a_connection_that_breaks_after_the_request_leaves_the_outcome_open() {
        let client = closing_server(1, true).await;
        let failure = get(&client).await.expect_err("no answer");
        assert!(matches!(failure, Failure::Reset(_)), "{failure}");
    }

    #[tokio::test]
    async fn a_node_that_is_not_there_has_decided_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        drop(listener);
        let client = Client::new(&[url], Limits::default()).expect("a base URL");
        let failure = get(&client).await.expect_err("nobody listens");
        assert!(matches!(failure, Failure::Connect(_)), "{failure}");
    }

    #[tokio::test]
    async fn only_plain_base_urls_are_taken() {
        for url in ["", "127.0.0.1:80", "https://shop.example", "http://shop.example/path", "http://"] {
            assert!(Client::new(&[url], Limits::default()).is_err(), "{url:?}");
        }
        assert!(Client::new(&["http://[::1]:8080/", "http://shop.example"], Limits::default()).is_ok());
    }
}
