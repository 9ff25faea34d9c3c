//! Saturation, by `wrk` if it is installed and by our own connections otherwise.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use seckill::domain::SaleId;

use super::crowd::Crowd;
use super::load::{self, Until};

const FEED: &str = include_str!("feed.lua");

/// A closed-loop generator: each connection sends the next purchase when it has its answer.
pub struct Saturation {
    crowd: Arc<Crowd>,
    /// Script and buyers, for wrk.
    files: Option<(PathBuf, PathBuf)>,
    connections: usize,
    /// Threads of wrk.
    threads: usize,
}

/// The answers that a generator got.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub answers: u64,
    /// Those of them that were neither 2xx nor 3xx.
    pub refused: u64,
    pub seconds: f64,
}

impl Seen {
    pub fn per_second(&self) -> f64 {
        self.answers as f64 / self.seconds
    }
}

impl Saturation {
    /// A generator for these buyers, with at most `cores` threads. Its files go into `folder`.
    pub fn new(crowd: Arc<Crowd>, connections: usize, cores: usize, folder: &Path) -> anyhow::Result<Self> {
        let mut files = None;
        if version().is_some() {
            let (script, buyers) = (folder.join("feed.lua"), folder.join("buyers.txt"));
            std::fs::write(&script, FEED)?;
            crowd.save(&buyers)?;
            files = Some((script, buyers));
        }
        Ok(Self { crowd, files, connections, threads: cores.min(connections) })
    }

    pub async fn run(&self, server: SocketAddr, sale: SaleId, seconds: f64) -> anyhow::Result<Seen> {
        match &self.files {
            Some((script, buyers)) => self.wrk(server, sale, seconds, script, buyers).await,
            None => {
                let until = Until::Time(Duration::from_secs_f64(seconds));
                let ran = load::closed(server, &self.crowd, sale, self.connections, 0, until).await?;
                Ok(Seen { answers: ran.answers(), refused: ran.refused, seconds: ran.seconds })
            }
        }
    }

    async fn wrk(
        &self,
        server: SocketAddr,
        sale: SaleId,
        seconds: f64,
        script: &Path,
        buyers: &Path,
    ) -> anyhow::Result<Seen> {
        let threads = self.threads.to_string();
        let mut command = Command::new("wrk");
        command.args(["-t", &threads, "-c", &self.connections.to_string()]);
        // wrk takes whole seconds.
        command.args(["-d", &format!("{:.0}s", seconds.max(1.0)), "-s"]).arg(script);
        command.arg(format!("http://{server}/")).arg("--").arg(buyers).args([&threads, &sale.to_string()]);
        let output = tokio::task::spawn_blocking(move || command.output()).await?.context("wrk cannot be run")?;
        let text = String::from_utf8_lossy(&output.stdout);
        read(&text).with_context(|| format!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// The line that the script prints at the end.
fn read(text: &str) -> anyhow::Result<Seen> {
    let line = text.lines().find_map(|line| line.strip_prefix("feed ")).context("no figures")?;
    let figures: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [answers, microseconds, refused, broken] = figures[..] else { anyhow::bail!("not four figures: {line}") };
    ensure!(broken == 0, "{broken} connections broke or timed out");
    Ok(Seen { answers, refused, seconds: microseconds as f64 / 1e6 })
}

/// Which wrk there is, if there is one.
pub fn version() -> Option<String> {
    let output = Command::new("wrk").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().take(2).collect();
    (words.first() == Some(&"wrk")).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_script_is_read_and_a_broken_connection_is_an_error() {
        let seen = read("Running 3s test\nfeed 90000 3000000 90000 0\n").expect("figures");
        assert_eq!((seen.answers, seen.refused), (90_000, 90_000));
        assert!((seen.per_second() - 30_000.0).abs() < 1e-6);
        assert!(read("feed 1 1 0 1").is_err());
        assert!(read("nothing").is_err());
    }
}
