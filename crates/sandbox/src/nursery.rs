//! The one thread that gives birth to every child, so that no child outlives this program.
//!
//! Comes in: a command and the signal that must end it. Decided: nothing. Guaranteed: on Linux the kernel sends that
//! signal to the child as soon as this program is gone, however it went (an exit, a panic, Ctrl-C, `kill -9`).
//!
//! The kernel watches the *thread* that forked, not the process: a child spawned from a worker thread of a runtime
//! would die when that runtime ends. Hence one thread that lives as long as the program.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{LazyLock, mpsc};
use std::thread;

use rustix::process::{Signal, getpid};

type Birth = (Command, Signal, mpsc::SyncSender<io::Result<Child>>);

static NURSERY: LazyLock<mpsc::Sender<Birth>> = LazyLock::new(|| {
    let (sender, births) = mpsc::channel::<Birth>();
    thread::spawn(move || {
        for (command, death, reply) in births {
            // A caller that no longer waits has dropped the receiver; there is nobody left to tell.
            let _ = reply.send(bear(command, death));
        }
    });
    sender
});

/// Starts `command` in a process group of its own, to be ended by `death` when this program is gone.
///
/// # Errors
/// Those of [`Command::spawn`].
pub(crate) fn spawn(command: Command, death: Signal) -> io::Result<Child> {
    let (reply, answer) = mpsc::sync_channel(1);
    NURSERY.send((command, death, reply)).map_err(|_| io::Error::other("the nursery thread is gone"))?;
    answer.recv().map_err(|_| io::Error::other("the nursery thread is gone"))?
}

fn bear(mut command: Command, death: Signal) -> io::Result<Child> {
    // Its own group: Ctrl-C on the terminal reaches us alone, and we decide in which order things stop.
    command.process_group(0);
    let parent = getpid();
    // SAFETY: between fork and exec only two system calls are made; nothing is allocated and no lock is taken.
    unsafe { command.pre_exec(move || follow(parent, death)) };
    command.spawn()
}

/// Runs in the child, after its user was changed (which clears the signal) and before the program is executed.
#[cfg(target_os = "linux")]
fn follow(parent: rustix::process::Pid, death: Signal) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(death))?;
    // The parent may have gone before the line above: then no signal will ever come.
    if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

#[cfg(not(target_os = "linux"))]
fn follow(_parent: rustix::process::Pid, _death: Signal) -> io::Result<()> {
    Ok(())
}
