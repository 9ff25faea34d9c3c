//! The one thread that spawns every child, so that no child outlives this program.
//!
//! On Linux the kernel sends each child its stop signal as soon as this program is gone, however it ended (an exit, a
//! panic, Ctrl-C, `kill -9`).
//!
//! The kernel watches the *thread* that forked, not the process: a child spawned from a worker thread of a runtime
//! would die when that runtime ends. Hence one thread that lives as long as the program.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{LazyLock, mpsc};
use std::thread;

use rustix::process::{Signal, getpid};

type Request = (Command, Signal, mpsc::SyncSender<io::Result<Child>>);

static SPAWNER: LazyLock<mpsc::Sender<Request>> = LazyLock::new(|| {
    let (sender, requests) = mpsc::channel::<Request>();
    thread::spawn(move || {
        for (command, stop_signal, reply) in requests {
            // A caller that no longer waits has dropped the receiver; there is nobody left to tell.
            let _ = reply.send(spawn_here(command, stop_signal));
        }
    });
    sender
});

/// Starts `command` in a process group of its own, to be ended by `stop_signal` when this program is gone.
///
/// # Errors
/// Those of [`Command::spawn`].
pub(crate) fn spawn(command: Command, stop_signal: Signal) -> io::Result<Child> {
    let (reply, answer) = mpsc::sync_channel(1);
    SPAWNER.send((command, stop_signal, reply)).map_err(|_| io::Error::other("the spawner thread is gone"))?;
    answer.recv().map_err(|_| io::Error::other("the spawner thread is gone"))?
}

fn spawn_here(mut command: Command, stop_signal: Signal) -> io::Result<Child> {
    // Its own group: Ctrl-C on the terminal reaches us alone, and we decide in which order things stop.
    command.process_group(0);
    let parent = getpid();
    // SAFETY: between fork and exec only two system calls are made; nothing is allocated and no lock is taken.
    unsafe { command.pre_exec(move || die_with_parent(parent, stop_signal)) };
    command.spawn()
}

/// Runs in the child, after its user was changed (which clears the signal) and before the program is executed.
#[cfg(target_os = "linux")]
fn die_with_parent(parent: rustix::process::Pid, stop_signal: Signal) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(stop_signal))?;
    // The parent may have gone before the line above: then no signal will ever come.
    if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_parent: rustix::process::Pid, _stop_signal: Signal) -> io::Result<()> {
    Ok(())
}
