//! What a killed server leaves in the system beside its files, and its removal.

use std::path::Path;
use std::process::Command;

/// The name of PostgreSQL's data folder in the sandbox's folder.
pub(crate) const POSTGRES_FOLDER: &str = "postgres";

/// Removes the small segment of shared memory that a killed PostgreSQL leaves, which only its next start would remove.
/// The segment is named in `postmaster.pid`, which an orderly end deletes.
pub(crate) fn remove_shared_memory(data: &Path) {
    if let Ok(pidfile) = std::fs::read_to_string(data.join("postmaster.pid"))
        && let Some(segment) = pidfile.lines().nth(6).and_then(|line| line.split_whitespace().nth(1))
    {
        // It may be gone already; and a system without ipcrm keeps 56 bytes until it is restarted.
        let _ = Command::new("ipcrm").args(["-m", segment]).output();
    }
}
