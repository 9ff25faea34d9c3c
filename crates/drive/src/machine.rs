//! The machine of a run: figures from different machines do not compare.

use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;

/// The machine of the buyers, which is the service's too when both run on one, and the versions that are known.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// Model of the processor. This and the next ones are null where the system does not tell.
    pub cpu: Option<String>,
    /// Processors that this program may use.
    pub cores: Option<usize>,
    pub memory_bytes: Option<u64>,
    pub kernel: Option<String>,
    /// How this program was built: `release`, or `debug` whose figures say little.
    pub build: &'static str,
    /// Version by name: `seckill`, `rustc`, `librdkafka`, and the stores that could be asked.
    pub versions: BTreeMap<&'static str, String>,
}

impl Machine {
    /// This machine, with the versions of the stores.
    pub fn here(stores: BTreeMap<&'static str, String>) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let mut versions = stores;
        versions.insert("seckill", env!("CARGO_PKG_VERSION").to_owned());
        versions.insert("librdkafka", rdkafka::util::get_rdkafka_version().1);
        // Set by the build script, where the compiler tells.
        if let Some(rustc) = option_env!("SECKILL_RUSTC") {
            versions.insert("rustc", rustc.to_owned());
        }
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().ok().map(usize::from),
            memory_bytes: field(&read("/proc/meminfo"), "MemTotal").as_deref().and_then(bytes),
            kernel: Some(read("/proc/sys/kernel/osrelease").trim().to_owned()).filter(|text| !text.is_empty()),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            versions,
        }
    }
}

/// The first `name : value` of a file of such lines.
fn field(text: &str, name: &str) -> Option<String> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

/// `16384 kB` as bytes.
fn bytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_knows_its_program_and_the_given_store_versions() {
        let machine = Machine::here(BTreeMap::from([("redis", "7.0.15".to_owned())]));
        assert_eq!(machine.versions["redis"], "7.0.15");
        assert_eq!(machine.versions["seckill"], env!("CARGO_PKG_VERSION"));
        assert!(machine.versions["rustc"].starts_with("1."), "{:?}", machine.versions);
        assert!(machine.cores > Some(0));
    }

    #[test]
    fn lines_of_the_system_are_read_as_they_are_written() {
        let text = "processor\t: 0\nmodel name\t: A: processor\nmodel name\t: another\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A: processor"));
        assert_eq!(field(text, "cache").as_deref(), None);
        assert_eq!(bytes("2048 kB"), Some(2 << 20));
        assert_eq!(bytes("2048 MB"), None);
    }
}
