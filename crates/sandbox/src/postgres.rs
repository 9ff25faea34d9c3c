//! A private PostgreSQL, or the one that the environment names.
//!
//! `postgres` is executed directly, never through `su` or `pg_ctl`: those would stand between it and the signal that
//! ends it with us. It refuses to run as root, so root drops to the user `postgres` (or `nobody`).

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::folder::Folder;
use super::leftovers;
use super::server::{Server, StopSignals, in_path, is_file, not_owned, port_and_proxy};
use super::{Process, Proxy};

const NAME: &str = leftovers::POSTGRES_FOLDER;
/// The owner of everything in a private server.
const ROLE: &str = "seckill";
/// SIGINT: a fast, orderly shutdown. SIGQUIT: at once, and its children and shared memory go with it.
const STOP_SIGNALS: StopSignals = StopSignals { stop: Signal::INT, end: Signal::QUIT };
const INITIALISED_WITHIN: Duration = Duration::from_secs(60);
/// Where Debian and its kin keep one folder per major version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// The PostgreSQL of a sandbox.
pub struct Postgres {
    url: String,
    server: Option<Server>,
    data: PathBuf,
}

impl Postgres {
    pub(crate) fn given(url: String) -> Self {
        Self { url, server: None, data: PathBuf::new() }
    }

    pub(crate) async fn start(folder: Arc<Folder>) -> anyhow::Result<Self> {
        let binaries = binaries().context("PostgreSQL is not installed (no initdb, no postgres): run `make setup`")?;
        let user = unprivileged_user()?;
        let (port, proxy) = port_and_proxy()?;
        let data = folder.path().join(NAME);
        initialise(&folder, &binaries.join("initdb"), &data, user).await?;
        let command_factory = {
            let data = data.clone();
            move || command(&binaries.join("postgres"), &data, port, user)
        };
        let server = Server::new(NAME, folder, port, proxy, STOP_SIGNALS, command_factory);
        let postgres = Self { url: format!("postgres://{ROLE}@127.0.0.1:{port}/postgres"), server: Some(server), data };
        postgres.restart().await?;
        Ok(postgres)
    }

    /// Where its maintenance database is reached directly.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where a database of it is reached directly.
    pub fn database_url(&self, database: &str) -> anyhow::Result<String> {
        if let Some(server) = &self.server {
            return Ok(format!("postgres://{ROLE}@127.0.0.1:{}/{database}", server.port()));
        }
        let options = PgConnectOptions::from_str(&self.url)?.database(database);
        Ok(options.to_url_lossy().to_string())
    }

    /// The way to it that can be cut.
    pub fn proxy(&self) -> anyhow::Result<&Proxy> {
        Ok(self.owned()?.proxy())
    }

    /// Creates an empty database and answers its address.
    ///
    /// # Errors
    /// When the server does not answer, or the database exists.
    pub async fn create_database(&self, name: &str) -> anyhow::Result<String> {
        let mut connection = PgConnection::connect(&self.url).await?;
        let quoted = name.replace('"', "\"\"");
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE \"{quoted}\"")))
            .execute(&mut connection)
            .await
            .with_context(|| format!("cannot create the database {name}"))?;
        connection.close().await?;
        self.database_url(name)
    }

    /// `SIGKILL` to all of its processes. Committed rows stay.
    pub fn kill(&self) -> anyhow::Result<()> {
        self.owned()?.kill()
    }

    /// `SIGSTOP` to all of its processes: connections stay open and nothing answers.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.owned()?.pause()
    }

    pub fn resume(&self) -> anyhow::Result<()> {
        self.owned()?.resume()
    }

    /// An orderly stop, which closes the connections.
    pub async fn stop(&self) -> anyhow::Result<()> {
        self.owned()?.stop().await
    }

    /// Starts it again (killing it first if it runs) on the same port and data; returns when it answers.
    pub async fn restart(&self) -> anyhow::Result<()> {
        let probe = async || Ok(PgConnection::connect(&self.url).await?.close().await?);
        self.owned()?.start(probe).await
    }

    /// Its files, when it is ours.
    pub fn data(&self) -> anyhow::Result<&Path> {
        self.owned()?;
        Ok(&self.data)
    }

    /// Its process, when it is ours.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().and_then(Server::pid)
    }

    /// Ends it for good.
    pub(crate) fn end(&self) {
        if let Some(server) = &self.server {
            server.end();
            leftovers::remove_shared_memory(&self.data);
        }
    }

    pub(crate) fn owned(&self) -> anyhow::Result<&Server> {
        self.server.as_ref().ok_or_else(|| not_owned(NAME))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes the data folder, which belongs to the user that will serve it.
async fn initialise(folder: &Folder, initdb: &Path, data: &Path, user: Option<(u32, u32)>) -> anyhow::Result<()> {
    std::fs::create_dir(data)?;
    if let Some((uid, gid)) = user {
        chown(data, Some(uid), Some(gid))?;
    }
    let mut command = Command::new(initdb);
    command.current_dir(data).arg("-D").arg(data);
    command.args(["--username", ROLE, "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"]);
    become_user(&mut command, user);
    let process = Process::spawn("initdb", command, &folder.path().join("initdb.log"))?;
    let status = process.wait(INITIALISED_WITHIN).await?;
    ensure!(status.success(), "initdb failed; its log ends with:\n{}", process.log_tail());
    Ok(())
}

fn command(postgres: &Path, data: &Path, port: u16, user: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(postgres);
    command.current_dir(data).arg("-D").arg(data).args(["-p", &port.to_string(), "-h", "127.0.0.1"]);
    // No socket files, and no shared memory objects that would outlive a kill.
    command.args(["-c", "unix_socket_directories=", "-c", "dynamic_shared_memory_type=mmap"]);
    // Enough for every test that runs at the same time as others.
    command.args(["-c", "max_connections=500", "-c", "fsync=on", "-c", "synchronous_commit=on"]);
    if cfg!(target_os = "linux") {
        // After a kill, one call instead of one per file: it is up again in half the time.
        command.args(["-c", "recovery_init_sync_method=syncfs"]);
    }
    become_user(&mut command, user);
    command
}

fn become_user(command: &mut Command, user: Option<(u32, u32)>) {
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
}

/// The folder of `initdb` and `postgres`: from `PATH`, else Debian's newest.
fn binaries() -> Option<PathBuf> {
    if let Some(postgres) = in_path("postgres")
        && in_path("initdb").is_some()
    {
        return Some(postgres.parent()?.to_owned());
    }
    let versions = std::fs::read_dir(VERSIONS).ok()?;
    let newest_first = |folder: &PathBuf| {
        let version = folder.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        std::cmp::Reverse(version)
    };
    let mut folders: Vec<PathBuf> = versions.flatten().map(|entry| entry.path()).collect();
    folders.sort_by_key(newest_first);
    folders.into_iter().map(|folder| folder.join("bin")).find(|bin| is_file(&bin.join("initdb")))
}

/// User and group to drop to, when we are root.
fn unprivileged_user() -> anyhow::Result<Option<(u32, u32)>> {
    if !rustix::process::getuid().is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").context("cannot look up a user for PostgreSQL")?;
    let find = |name: &str| {
        let fields: Vec<&str> =
            users.lines().map(|line| line.split(':').collect()).find(|f: &Vec<&str>| f[0] == name)?;
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    };
    let user = find("postgres").or_else(|| find("nobody"));
    user.map(Some).context("PostgreSQL refuses to run as root, and there is neither a user `postgres` nor `nobody`")
}
