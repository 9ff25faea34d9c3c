//! A TCP proxy on the loopback address that can cut a server off, stall it, drop its responses, or pause a connection
//! at a chosen request.
//!
//! Guaranteed: after [`Proxy::cut`] no byte passes and no connection is accepted until [`Proxy::heal`]. It runs on a
//! thread of its own, so it works under any runtime of the caller, also a blocked one.

use std::net::{Ipv4Addr, SocketAddr, TcpListener as Listener};
use std::sync::{Arc, LazyLock};

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::breakpoint::{BreakAt, Breakpoint, BreakpointSlot, PendingBreakpoint, Timing, Watcher};
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
    DropResponses,
    /// All connections are closed, new ones refused.
    Cut,
}

/// A route to a server that can be interrupted. Dropping it closes it.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    mode: watch::Sender<Mode>,
    applied: watch::Receiver<Mode>,
    black_holes: watch::Sender<()>,
    breakpoints: Arc<BreakpointSlot>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and passes everything to `target`.
    pub(crate) fn start(target: SocketAddr) -> anyhow::Result<Self> {
        let runtime = RUNTIME.as_ref().context("no thread for the proxy")?;
        let port = ports::free_port()?;
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        let (mode, asked) = watch::channel(Mode::Open);
        let (done, applied) = watch::channel(Mode::Open);
        let (black_holes, black_holed) = watch::channel(());
        let _entered = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        let breakpoints = Arc::new(BreakpointSlot::default());
        let ctx = ConnCtx { target, breakpoints: Arc::clone(&breakpoints), mode: asked, black_holed };
        let task = runtime.spawn(serve(listener, port, ctx, done));
        Ok(Self { port, mode, applied, black_holes, breakpoints, task })
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
    pub async fn drop_responses(&self) {
        self.set(Mode::DropResponses).await;
    }

    /// Black-holes the connections that exist: they stay open and pass nothing, for good. New ones pass. This happens
    /// behind a firewall that forgot them, or when the server behind a balancer died.
    pub fn black_hole(&self) {
        self.black_holes.send_replace(());
    }

    /// Sets a breakpoint at the next request of this kind. It replaces one that was set before.
    pub fn breakpoint(&self, at: BreakAt, timing: Timing) -> Breakpoint {
        self.breakpoints.set(at, timing)
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

/// What every connection needs to know.
#[derive(Clone)]
struct ConnCtx {
    target: SocketAddr,
    breakpoints: Arc<BreakpointSlot>,
    mode: watch::Receiver<Mode>,
    black_holed: watch::Receiver<()>,
}

/// Accepts connections while the mode allows it. Dropping the set of pipes ends and closes all of them.
async fn serve(listener: TcpListener, port: u16, mut ctx: ConnCtx, done: watch::Sender<Mode>) {
    let mut listener = Some(listener);
    let mut pipes = JoinSet::new();
    loop {
        let now = *ctx.mode.borrow_and_update();
        if now == Mode::Cut {
            listener = None;
            pipes.shutdown().await;
        } else if listener.is_none() {
            listener = listen(port).await;
        }
        done.send_replace(now);
        tokio::select! {
            changed = ctx.mode.changed() => if changed.is_err() { return },
            accepted = accept(listener.as_ref()) => {
                if let Some(client) = accepted {
                    pipes.spawn(pipe(client, ctx.clone()));
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
async fn pipe(client: TcpStream, mut ctx: ConnCtx) {
    // Only what happens from here on concerns this connection.
    ctx.black_holed.mark_unchanged();
    // A stalled server does not even complete the connection behind us.
    if ctx.mode.wait_for(|now| *now != Mode::Stalled).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(ctx.target).await else { return };
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let pending = PendingBreakpoint::default();
    tokio::select! {
        () = pass_requests(from_client, to_server, ctx.clone(), &pending) => {}
        () = pass_responses(from_server, to_client, ctx, &pending) => {}
    }
}

/// Passes on what the client says, and pauses it at the request that has a breakpoint.
async fn pass_requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut ctx: ConnCtx, pending: &PendingBreakpoint) {
    let mut buffer = vec![0; 64 * 1024];
    let mut watcher = Watcher::default();
    while let Some(passing) = read(&mut from, &mut buffer, &mut ctx).await {
        let breakpoint = ctx.breakpoints.match_request(&mut watcher, passing);
        let (before, after) = match breakpoint {
            Some(breakpoint) if breakpoint.timing == Timing::Before => (Some(breakpoint), None),
            other => (None, other),
        };
        if let Some(breakpoint) = before
            && !breakpoint.pause().await
        {
            return;
        }
        if to.write_all(passing).await.is_err() {
            return;
        }
        // No answer to this can have been read yet: both directions are one task.
        if let Some(breakpoint) = after {
            pending.set(breakpoint);
        }
    }
}

/// Passes on what the server says. An answer that was thrown away leaves a hole, so that connection ends with the mode.
async fn pass_responses(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut ctx: ConnCtx,
    pending: &PendingBreakpoint,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut mode = ctx.mode.clone();
    let mut hole = false;
    loop {
        let passing = tokio::select! {
            passing = read(&mut from, &mut buffer, &mut ctx) => passing,
            _ = mode.wait_for(|now| *now != Mode::DropResponses), if hole => return,
        };
        let Some(passing) = passing else { return };
        if let Some(breakpoint) = pending.take() {
            if breakpoint.is_retried(passing) {
                ctx.breakpoints.put(breakpoint);
            } else if !breakpoint.pause().await {
                return;
            }
        }
        if *mode.borrow() == Mode::DropResponses {
            hole = true;
        } else if to.write_all(passing).await.is_err() {
            return;
        }
    }
}

/// What comes next, once it may pass; `None` at the end.
async fn read<'a>(from: &mut OwnedReadHalf, buffer: &'a mut [u8], ctx: &mut ConnCtx) -> Option<&'a [u8]> {
    let read = tokio::select! {
        read = from.read(buffer) => Some(read.unwrap_or(0)),
        Ok(()) = ctx.black_holed.changed() => None,
    };
    let Some(read) = read else { return std::future::pending().await };
    let may_pass = ctx.mode.wait_for(|now| *now != Mode::Stalled).await.is_ok();
    (read > 0 && may_pass).then_some(&buffer[..read])
}
