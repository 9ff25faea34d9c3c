//! One kept-alive HTTP connection, with nothing between the test and the wire.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HeaderMap;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::contract;

pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    /// The problem's code; empty if it is none.
    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the node accepts");
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP");
        // Ends with the connection; the sender then says what happened.
        tokio::spawn(connection);
        Self { sender }
    }

    /// As [`Connection::open`], on a node that may be gone.
    pub async fn try_open(address: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect(address).await.ok()?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        Some(Self { sender })
    }

    /// A purchase; `None` when the connection broke.
    pub async fn try_buy(&mut self, sale: impl std::fmt::Display, token: &str) -> Option<Answer> {
        let bearer = format!("Bearer {token}");
        let path = format!("/api/v1/sales/{sale}/purchases");
        self.try_send("POST", &path, &[("authorization", bearer.as_str())], "").await.ok()
    }

    /// Sends one request and reads its whole answer. Fails when the connection breaks.
    pub async fn try_send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer, hyper::Error> {
        let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).expect("a method")).uri(path);
        request = request.header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.sender.ready().await?;
        let request = request.body(Full::new(body.into())).expect("a request");
        let response = self.sender.send_request(request).await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect().await?.to_bytes();
        let answer = Answer { status, headers, text: String::from_utf8_lossy(&body).into_owned() };
        contract::check(method, path, status, &answer.code());
        Ok(answer)
    }

    pub async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.try_send(method, path, headers, body.to_owned()).await.expect("the connection stays open")
    }

    pub async fn get(&mut self, path: &str, token: &str) -> Answer {
        self.send("GET", path, &[("authorization", &format!("Bearer {token}"))], "").await
    }

    /// A purchase without a body.
    pub async fn buy(&mut self, sale: impl std::fmt::Display, token: &str, headers: &[(&str, &str)]) -> Answer {
        let bearer = format!("Bearer {token}");
        let headers: Vec<_> = [("authorization", bearer.as_str())].into_iter().chain(headers.iter().copied()).collect();
        self.send("POST", &format!("/api/v1/sales/{sale}/purchases"), &headers, "").await
    }
}

/// A stream of server-sent events.
pub struct Events {
    body: Incoming,
    text: String,
}

impl Connection {
    /// Opens a stream of events, which takes the whole connection.
    pub async fn events(mut self, path: &str, token: &str) -> Events {
        let request = Request::builder().uri(path).header("host", "localhost");
        let request = request.header("authorization", format!("Bearer {token}"));
        self.sender.ready().await.expect("the connection stays open");
        let request = request.body(Full::new(Bytes::new())).expect("a request");
        let response = self.sender.send_request(request).await.expect("an answer");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { body: response.into_body(), text: String::new() }
    }
}

impl Events {
    /// The data of the next event, comments left out; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: ")).map(str::to_owned);
                self.text = rest.to_owned();
                if let Some(data) = data {
                    return Some(serde_json::from_str(&data).expect("JSON"));
                }
            }
            let frame = self.body.frame().await?.expect("the stream is not broken off");
            if let Ok(bytes) = frame.into_data() {
                self.text.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }
}
