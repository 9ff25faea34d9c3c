//! A process and what it started, as `/proc` shows them. PostgreSQL is one such family.
//!
//! Elsewhere than on Linux there is no `/proc`: a family is then its head alone.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Stops `pid` and its family (`SIGSTOP`); returns their ids.
pub(crate) fn stop(pid: u32) -> Vec<u32> {
    // The head first: a stopped parent has no more children. One forked while the first signal was on its way is caught
    // the second time.
    signal(pid, Signal::STOP);
    signal(pid, Signal::STOP)
}

/// Kills `pid` and its family; returns their ids.
pub(crate) fn kill(pid: u32) -> Vec<u32> {
    // Found before the first of them dies: orphans do not tell whose children they were.
    let family = stop(pid);
    for member in &family {
        send(*member, Signal::KILL);
    }
    family
}

/// Lets a stopped family go on.
pub(crate) fn resume(pid: u32) {
    signal(pid, Signal::CONT);
}

/// Sends a signal that ends nobody to `pid` first, then to its children, and so on. Those that have ended meanwhile are
/// passed over.
fn signal(pid: u32, signal: Signal) -> Vec<u32> {
    send(pid, signal);
    let mut known = vec![pid];
    let everybody = everybody();
    // A generation per round: children of known ones that were not known before.
    loop {
        let children: Vec<u32> = everybody
            .iter()
            .filter(|(child, parent)| known.contains(parent) && !known.contains(child))
            .map(|(child, _)| *child)
            .collect();
        if children.is_empty() {
            return known;
        }
        for child in children {
            send(child, signal);
            known.push(child);
        }
    }
}

/// Whether nothing is left of a process but perhaps its exit code: it holds no port, file or memory any more.
pub(crate) fn is_gone(pid: u32) -> bool {
    fields(pid).is_none_or(|fields| fields.trim_start().starts_with(['Z', 'X']))
}

/// When a process started, in the kernel's ticks since boot: with its id, a name that is never reused.
pub(crate) fn started(pid: u32) -> Option<u64> {
    fields(pid)?.split_whitespace().nth(19)?.parse().ok()
}

/// Every process with its parent.
fn everybody() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, fields(pid)?.split_whitespace().nth(1)?.parse().ok()?)))
        .collect()
}

/// The fields of `/proc/PID/stat` that follow the program's name, which may itself hold blanks and brackets.
fn fields(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.to_owned())
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // It has ended: that is what most signals are after.
        let _ = kill_process(pid, signal);
    }
}
