//! The machine of a measurement.

use std::fs;
use std::process::Command;

use anyhow::Context;
use serde::Serialize;

/// The machine, and what runs on it.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cores: usize,
    pub cpu: String,
    pub memory_mib: u64,
    pub kernel: String,
    pub redis: String,
    pub postgres: String,
    pub java: String,
    pub generator: String,
    pub debug_build: bool,
    /// Load averages of a minute at the start and at the end: what else ran shows here.
    pub load_before: f64,
    pub load_after: f64,
}

/// # Errors
/// When the kernel does not tell.
pub fn describe() -> anyhow::Result<Machine> {
    Ok(Machine {
        cores: cores(),
        cpu: field("/proc/cpuinfo", "model name")?.unwrap_or_else(|| "unknown".to_owned()),
        memory_mib: kib("/proc/meminfo", "MemTotal")?.unwrap_or(0) / 1024,
        kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        redis: first_line("redis-server", "--version"),
        postgres: first_line("postgres", "--version"),
        java: first_line("java", "-version"),
        generator: super::wrk::version().unwrap_or_else(|| "none but our own".to_owned()),
        debug_build: cfg!(debug_assertions),
        load_before: load()?,
        load_after: load()?,
    })
}

/// Cores that may be used.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The load average of the last minute.
pub fn load() -> anyhow::Result<f64> {
    let text = read("/proc/loadavg")?;
    Ok(text.split(' ').next().context("an empty load average")?.parse()?)
}

/// Resident memory of a process, in KiB.
pub fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    kib(&format!("/proc/{pid}/status"), "VmRSS")?.context("a process without memory")
}

fn kib(file: &str, name: &str) -> anyhow::Result<Option<u64>> {
    let Some(value) = field(file, name)? else { return Ok(None) };
    Ok(Some(value.trim_end_matches(" kB").parse()?))
}

fn field(file: &str, name: &str) -> anyhow::Result<Option<String>> {
    let text = read(file)?;
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    Ok(pairs.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|pair| pair.1.to_owned()))
}

fn read(file: &str) -> anyhow::Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {file}"))
}

fn first_line(program: &str, argument: &str) -> String {
    let Ok(output) = Command::new(program).arg(argument).output() else { return "not in the path".to_owned() };
    // Java tells its version on the other stream.
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or("unknown").to_owned()
}
