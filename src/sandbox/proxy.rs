//! A TCP proxy on the loopback address that can cut a server off, or make it fall silent.
//!
//! Guaranteed: after [`Proxy::cut`] no byte passes and no connection is accepted until [`Proxy::heal`]. It runs on a
//! thread of its own, so it works under any runtime of the caller, also a blocked one.

use std::net::{Ipv4Addr, SocketAddr, TcpListener as Listener};
use std::sync::LazyLock;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::ports;

/// The thread of all proxies. `None` when the system refuses another thread.
static RUNTIME: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("proxy").enable_all().build().ok()
});

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Bytes pass both ways.
    Open,
    /// Connections are accepted and kept; no byte passes.
    Stalled,
    /// What the client sends passes; what the server answers is thrown away.
    Mute,
    /// All connections are closed, new ones refused.
    Cut,
}

/// A way to a server that can be interrupted. Dropping it closes it.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    mode: watch::Sender<Mode>,
    applied: watch::Receiver<Mode>,
    strandings: watch::Sender<()>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and passes everything to `target`.
    pub(super) fn start(target: SocketAddr) -> anyhow::Result<Self> {
        let runtime = RUNTIME.as_ref().context("no thread for the proxy")?;
        let port = ports::free_port()?;
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        let (mode, asked) = watch::channel(Mode::Open);
        let (done, applied) = watch::channel(Mode::Open);
        let (strandings, stranded) = watch::channel(());
        let _entered = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        let task = runtime.spawn(serve(listener, port, target, asked, done, stranded));
        Ok(Self { port, mode, applied, strandings, task })
    }

    /// The port to connect to instead of the server's own.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Closes every connection and refuses new ones. Returns when that is so.
    pub async fn cut(&self) {
        self.set(Mode::Cut).await;
    }

    /// Lets everything pass again; what a stall held back is delivered.
    pub async fn heal(&self) {
        self.set(Mode::Open).await;
    }

    /// Keeps connections and accepts new ones, but passes nothing on: the other side looks like a server that hangs.
    pub async fn stall(&self) {
        self.set(Mode::Stalled).await;
    }

    /// Passes requests on and throws the answers away: the server acts, and the client never learns of it.
    /// A connection that lost an answer is closed when that ends, since its stream has a hole.
    pub async fn drop_replies(&self) {
        self.set(Mode::Mute).await;
    }

    /// The connections that exist fall silent for good, without an end, and new ones pass: as behind a firewall that
    /// forgot them, or when the server behind a balancer died.
    pub fn strand(&self) {
        self.strandings.send_replace(());
    }

    async fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
        let mut applied = self.applied.clone();
        // The task lives as long as the proxy: it cannot be gone while we wait.
        let _ = applied.wait_for(|now| *now == mode).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts connections while the mode allows it. Dropping the set of pipes ends and closes all of them.
async fn serve(
    listener: TcpListener,
    port: u16,
    target: SocketAddr,
    mut mode: watch::Receiver<Mode>,
    done: watch::Sender<Mode>,
    stranded: watch::Receiver<()>,
) {
    let mut listener = Some(listener);
    let mut pipes = JoinSet::new();
    loop {
        let now = *mode.borrow_and_update();
        if now == Mode::Cut {
            listener = None;
            pipes.shutdown().await;
        } else if listener.is_none() {
            listener = listen(port).await;
        }
        done.send_replace(now);
        tokio::select! {
            changed = mode.changed() => if changed.is_err() { return },
            accepted = accept(listener.as_ref()) => {
                if let Some(client) = accepted {
                    pipes.spawn(pipe(client, target, mode.clone(), stranded.clone()));
                }
            }
            Some(_) = pipes.join_next() => {}
        }
    }
}

/// Takes the old port again. It is ours, so only a moment can lie between us and it.
async fn listen(port: u16) -> Option<TcpListener> {
    loop {
        let socket = TcpSocket::new_v4().ok()?;
        socket.set_reuseaddr(true).ok()?;
        match socket.bind((Ipv4Addr::LOCALHOST, port).into()).and_then(|()| socket.listen(1024)) {
            Ok(listener) => return Some(listener),
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.ok().map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// One connection. It ends as soon as either direction does.
async fn pipe(
    client: TcpStream,
    target: SocketAddr,
    mut mode: watch::Receiver<Mode>,
    mut stranded: watch::Receiver<()>,
) {
    // Only what happens from here on concerns this connection.
    stranded.mark_unchanged();
    // A stalled server does not even complete the connection behind us.
    if mode.wait_for(|now| *now != Mode::Stalled).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = copy(from_client, to_server, mode.clone(), stranded.clone(), false) => {}
        () = copy(from_server, to_client, mode, stranded, true) => {}
    }
}

/// Passes one direction on. An answer that was thrown away leaves a hole, so that connection ends with the muting.
async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    mut stranded: watch::Receiver<()>,
    replies: bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut muting = mode.clone();
    let mut hole = false;
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => Some(read.unwrap_or(0)),
            _ = muting.wait_for(|now| *now != Mode::Mute), if hole => return,
            Ok(()) = stranded.changed() => None,
        };
        let Some(read) = read else { return std::future::pending().await };
        if read == 0 || mode.wait_for(|now| *now != Mode::Stalled).await.is_err() {
            return;
        }
        if replies && *mode.borrow() == Mode::Mute {
            hole = true;
        } else if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
