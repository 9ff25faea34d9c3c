//! Processor time, memory and open files of this process, at most a second old.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus::core::{Collector, Desc};
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::MetricFamily;

/// Counting open files reads one entry for each: with ten thousand connections that is worth doing once a second.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The standard collector, asked once a second however many scrape.
pub(super) struct Process {
    collector: ProcessCollector,
    latest: Mutex<Option<(Instant, Vec<MetricFamily>)>>,
}

impl Process {
    pub fn new() -> Self {
        Self { collector: ProcessCollector::for_self(), latest: Mutex::new(None) }
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.collector.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match &*latest {
            Some((at, families)) if at.elapsed() < MAX_AGE => families.clone(),
            _ => {
                let families = self.collector.collect();
                *latest = Some((Instant::now(), families.clone()));
                families
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_memory_and_open_files_are_read() {
        let names: Vec<_> = Process::new().collect().iter().map(|family| family.name().to_owned()).collect();
        for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
            assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
        }
    }

    #[test]
    fn within_a_second_the_figures_are_not_read_again() {
        let process = Process::new();
        let first = process.collect();
        *process.latest.lock().expect("no panic") = Some((Instant::now(), Vec::new()));
        assert!(process.collect().is_empty(), "what is kept is what is told");
        *process.latest.lock().expect("no panic") = Some((Instant::now() - MAX_AGE, Vec::new()));
        assert_eq!(process.collect().len(), first.len());
    }
}
