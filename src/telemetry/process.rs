//! Memory and open files of this process, read from `/proc/self` when somebody asks.

use std::fs;

use prometheus::IntGauge;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

/// The two figures that give a leak away first. Named as Prometheus clients everywhere name them.
pub(super) struct Process {
    resident: IntGauge,
    files: IntGauge,
}

impl Process {
    pub fn new() -> Result<Self, prometheus::Error> {
        Ok(Self {
            resident: IntGauge::new("process_resident_memory_bytes", "Resident memory in bytes")?,
            files: IntGauge::new("process_open_fds", "Open file descriptors")?,
        })
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        [self.resident.desc(), self.files.desc()].concat()
    }

    /// A figure that cannot be read is left out, not reported as 0.
    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = Vec::with_capacity(2);
        if let Some(bytes) = resident_bytes() {
            self.resident.set(bytes);
            families.extend(self.resident.collect());
        }
        if let Some(open) = open_files() {
            self.files.set(open);
            families.extend(self.files.collect());
        }
        families
    }
}

/// From the line `VmRSS:     1234 kB`.
fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn open_files() -> Option<i64> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    // The directory that is being read is one of them.
    i64::try_from(open).ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_and_open_files_are_read() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1 << 20));
        assert!(open_files().is_some_and(|open| open >= 3));
        let names: Vec<_> = Process::new().expect("gauges").collect().iter().map(|f| f.name().to_owned()).collect();
        assert_eq!(names, ["process_resident_memory_bytes", "process_open_fds"]);
    }
}
