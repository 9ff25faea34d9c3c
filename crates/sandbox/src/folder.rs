//! The temporary folder of one sandbox, and the removal of those that dead owners left.
//!
//! Guaranteed: a folder is gone when its sandbox is dropped; after a crash the next start removes it, together with any
//! server that survived. An owner is alive as long as it holds the lock on `owner.lock`: the kernel lets go of it when
//! the process is gone, whatever ended it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::{leftovers, tree};

const PREFIX: &str = "seckill-sandbox-";
const LOCK: &str = "owner.lock";
const CHILDREN: &str = "children";
/// A folder without a lock file is being made or being removed; older than this, its process has died.
const UNFINISHED: Duration = Duration::from_secs(60);

/// How long a survivor may take to end before it is killed.
const GRACE_PERIOD: Duration = Duration::from_secs(3);

/// An own folder. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    children: Mutex<File>,
    _lock: File,
}

impl Folder {
    /// Removes what dead owners left, then makes a new folder below the system's temporary one.
    pub(crate) fn create() -> anyhow::Result<Self> {
        let temp = std::env::temp_dir();
        sweep(&temp);
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let path = tempfile::Builder::new()
            .prefix(&prefix)
            .tempdir_in(&temp)
            .with_context(|| format!("cannot make a folder in {}", temp.display()))?
            .keep();
        // PostgreSQL runs as another user when we are root, and has to pass through.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        let children = File::options().create(true).append(true).open(path.join(CHILDREN))?;
        // Locked before it gets its name: nobody ever sees it unlocked while we live.
        let lock = File::create(path.join("owner.new"))?;
        lock.try_lock().context("cannot lock the sandbox's own folder")?;
        fs::rename(path.join("owner.new"), path.join(LOCK))?;
        Ok(Self { path, children: Mutex::new(children), _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn remove(&self) {
        remove(&self.path);
    }

    /// Notes a child, so that it can be found should it outlive us.
    pub(crate) fn note(&self, pid: u32) -> io::Result<()> {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(children, "{pid} {}", tree::started(pid).unwrap_or_default())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes the folders of dead owners and kills what is left of their children.
fn sweep(temp: &Path) {
    let Ok(entries) = fs::read_dir(temp) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        let path = entry.path();
        match File::open(path.join(LOCK)) {
            Ok(lock) => {
                // Held until the folder is gone, so that two sweepers do not meet in it.
                if lock.try_lock().is_ok() {
                    kill_survivors(&path);
                    remove(&path);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_old(&path) => remove(&path),
            Err(_) => {}
        }
    }
}

/// Children that are still there have the signal that ends them, but were stopped and could not act on it.
fn kill_survivors(path: &Path) {
    let survivors = || {
        let children = fs::read_to_string(path.join(CHILDREN)).unwrap_or_default();
        children.lines().filter_map(survivor).collect::<Vec<u32>>()
    };
    for pid in survivors() {
        tree::resume(pid);
    }
    let start = Instant::now();
    while !survivors().is_empty() && start.elapsed() < GRACE_PERIOD {
        std::thread::sleep(Duration::from_millis(20));
    }
    for pid in survivors() {
        tree::kill(pid);
    }
    leftovers::remove_shared_memory(&path.join(leftovers::POSTGRES_FOLDER));
}

/// The process of a line of the list, if it is still the one that was noted.
fn survivor(line: &str) -> Option<u32> {
    let (pid, started) = line.split_once(' ')?;
    let pid = pid.parse().ok()?;
    (!tree::is_gone(pid) && tree::started(pid) == started.parse().ok()).then_some(pid)
}

fn is_old(path: &Path) -> bool {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > UNFINISHED))
}

/// The lock file goes last: a removal that is cut short can be taken up again. A dying server may still be writing, so
/// a second attempt is made; what fails then is left to the next start.
fn remove(path: &Path) {
    for _ in 0..2 {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.file_name() != LOCK {
                let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
            }
        }
        if fs::remove_dir_all(path).is_ok() {
            return;
        }
    }
}
