//! The private servers: they keep what they acknowledged, take every fault, and leave nothing behind.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};

use sandbox::{Options, Process, RedisOptions, Sandbox, shared, wait_until};
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;

/// Long enough for a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// How long a server has to stay silent to count as silent.
const SILENCE: Duration = Duration::from_millis(500);

/// Whether something fails, or is still silent after a while.
async fn fails<T>(asked: impl Future<Output = anyhow::Result<T>>) -> bool {
    !matches!(timeout(SILENCE, asked).await, Ok(Ok(_)))
}

async fn ask(url: &str, command: &[&str]) -> anyhow::Result<String> {
    let config = redis::AsyncConnectionConfig::new();
    let config = config.set_connection_timeout(Some(SOON)).set_response_timeout(Some(SOON));
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
    let mut words = redis::Cmd::new();
    Ok(words.arg(command).query_async(&mut connection).await?)
}

async fn count(url: &str) -> anyhow::Result<i64> {
    let mut connection = PgConnection::connect(url).await?;
    Ok(sqlx::query_scalar("SELECT count(*) FROM kept").fetch_one(&mut connection).await?)
}

/// Publishes one message; gives up after `within`.
async fn publish(brokers: &str, text: &str, within: Duration) -> anyhow::Result<()> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("message.timeout.ms", within.as_millis().to_string());
    let producer: FutureProducer = config.create()?;
    let record = FutureRecord::to("kept").key("k").payload(text).partition(0);
    producer.send(record, within).await.map(drop).map_err(|(error, _)| error.into())
}

/// Everything in partition 0 from the beginning.
async fn messages(brokers: &str, topic: &str) -> anyhow::Result<Vec<String>> {
    let (brokers, topic) = (brokers.to_owned(), topic.to_owned());
    let read = move || {
        let mut config = ClientConfig::new();
        let consumer: BaseConsumer = config.set("bootstrap.servers", brokers).set("group.id", "reader").create()?;
        let (_, end) = consumer.fetch_watermarks(&topic, 0, SOON)?;
        let mut from = TopicPartitionList::new();
        from.add_partition_offset(&topic, 0, Offset::Beginning)?;
        consumer.assign(&from)?;
        let mut texts = Vec::new();
        while texts.len() < usize::try_from(end)? {
            let message = consumer.poll(SOON).context("no message in time")??;
            texts.push(String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned());
        }
        Ok(texts)
    };
    tokio::task::spawn_blocking(read).await?
}

#[tokio::test]
async fn redis_keeps_a_key_when_it_is_killed() -> anyhow::Result<()> {
    let sandbox = Sandbox::start(Options::none().redis(RedisOptions::default())).await?;
    let redis = sandbox.redis();
    ask(redis.url(), &["SET", "kept", "yes"]).await?;
    redis.kill()?;
    ensure!(fails(ask(redis.url(), &["PING"])).await, "a dead Redis answers");
    redis.restart().await?;
    assert_eq!(ask(redis.url(), &["GET", "kept"]).await?, "yes");
    redis.stop().await?;
    redis.restart().await?;
    assert_eq!(ask(redis.url(), &["GET", "kept"]).await?, "yes");
    Ok(())
}

#[tokio::test]
async fn redis_can_be_paused_and_cut_off() -> anyhow::Result<()> {
    let sandbox = Sandbox::start(Options::none().redis(RedisOptions::default())).await?;
    let redis = sandbox.redis();
    redis.pause()?;
    ensure!(fails(ask(redis.url(), &["PING"])).await, "a paused Redis answers");
    redis.resume()?;
    assert_eq!(ask(redis.url(), &["PING"]).await?, "PONG");

    let proxied = redis.proxied_url()?;
    assert_eq!(ask(&proxied, &["PING"]).await?, "PONG");
    redis.proxy()?.cut().await;
    ensure!(TcpStream::connect(("127.0.0.1", redis.proxy()?.port())).is_err(), "a cut connection is accepted");
    redis.proxy()?.heal().await;
    assert_eq!(ask(&proxied, &["PING"]).await?, "PONG");
    redis.proxy()?.stall().await;
    ensure!(fails(ask(&proxied, &["PING"])).await, "a stalled connection answers");
    assert_eq!(ask(redis.url(), &["PING"]).await?, "PONG");
    redis.proxy()?.heal().await;
    assert_eq!(ask(&proxied, &["PING"]).await?, "PONG");
    Ok(())
}

/// What makes a timeout "unknown": Redis has acted, and nobody was told.
#[tokio::test]
async fn a_proxy_that_drops_responses_lets_the_request_through() -> anyhow::Result<()> {
    let sandbox = Sandbox::start(Options::none().redis(RedisOptions::default())).await?;
    let redis = sandbox.redis();
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(SILENCE));
    let client = redis::Client::open(redis.proxied_url()?)?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    redis.proxy()?.drop_responses().await;
    let lost: Result<i64, _> = redis::cmd("INCR").arg("acted").query_async(&mut connection).await;
    ensure!(lost.is_err(), "the response came through");
    let acted = async || ask(redis.url(), &["GET", "acted"]).await.is_ok_and(|count| count == "1");
    wait_until("the request has reached Redis", SOON, acted).await;
    redis.proxy()?.heal().await;
    assert_eq!(ask(&redis.proxied_url()?, &["GET", "acted"]).await?, "1");
    Ok(())
}

#[tokio::test]
async fn redis_in_cluster_mode_serves_every_slot_and_refuses_keys_of_two_slots() -> anyhow::Result<()> {
    let options = RedisOptions { cluster: true, ..RedisOptions::default() };
    let sandbox = Sandbox::start(Options::none().redis(options)).await?;
    let url = sandbox.redis().url();
    assert_eq!(ask(url, &["MSET", "{1}a", "x", "{1}b", "y"]).await?, "OK");
    let error = ask(url, &["MSET", "a", "x", "b", "y"]).await.expect_err("two slots in one command");
    assert!(error.to_string().to_uppercase().contains("SLOT"), "{error}");
    sandbox.redis().restart().await?;
    assert_eq!(ask(url, &["GET", "{1}a"]).await?, "x");
    Ok(())
}

#[tokio::test]
async fn postgres_keeps_a_row_and_can_be_killed_paused_and_cut_off() -> anyhow::Result<()> {
    let sandbox = Sandbox::start(Options::none().postgres()).await?;
    let postgres = sandbox.postgres();
    let url = &sandbox.namespace("rows").await?.postgres_url;
    let proxied = &sandbox.via_proxy(url);
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql("CREATE TABLE kept (id int); INSERT INTO kept VALUES (1)").execute(&mut connection).await?;

    postgres.kill()?;
    ensure!(fails(count(url)).await, "a dead PostgreSQL answers");
    postgres.restart().await?;
    assert_eq!(count(url).await?, 1);

    // A connection that is open already has a process of its own: it has to stop as well.
    let mut connection = PgConnection::connect(url).await?;
    postgres.pause()?;
    ensure!(timeout(SILENCE, connection.ping()).await.is_err(), "a paused PostgreSQL answers");
    ensure!(fails(count(url)).await, "a paused PostgreSQL accepts");
    postgres.resume()?;
    timeout(SOON, connection.ping()).await??;

    assert_eq!(count(proxied).await?, 1);
    postgres.proxy()?.cut().await;
    ensure!(fails(count(proxied)).await, "a cut connection answers");
    postgres.proxy()?.heal().await;
    assert_eq!(count(proxied).await?, 1);
    postgres.stop().await?;
    postgres.restart().await?;
    assert_eq!(count(url).await?, 1);
    Ok(())
}

/// The broker built into librdkafka keeps its messages in memory and cannot be cut off: without Apache Kafka there is
/// nothing to show here. (`SECKILL_REQUIRE_KAFKA` makes that an error.)
#[tokio::test]
async fn kafka_keeps_a_message_and_can_be_killed_paused_and_cut_off() -> anyhow::Result<()> {
    let sandbox = Sandbox::start(Options::none().kafka()).await?;
    if sandbox.broker_kind() != "apache-kafka" {
        return Ok(());
    }
    let kafka = sandbox.kafka();
    let mut config = ClientConfig::new();
    let admin: AdminClient<_> = config.set("bootstrap.servers", kafka.brokers()).create()?;
    let topic = NewTopic::new("kept", 1, TopicReplication::Fixed(1));
    for created in admin.create_topics([&topic], &AdminOptions::new()).await? {
        created.map_err(|(name, code)| anyhow::anyhow!("{name}: {code}"))?;
    }
    publish(kafka.brokers(), "first", SOON).await?;

    kafka.kill()?;
    ensure!(publish(kafka.brokers(), "unknown", SILENCE).await.is_err(), "a dead Kafka answers");
    kafka.restart().await?;
    assert_eq!(messages(kafka.brokers(), "kept").await?, ["first"]);

    kafka.pause()?;
    ensure!(publish(kafka.brokers(), "unknown", SILENCE).await.is_err(), "a paused Kafka answers");
    kafka.resume()?;
    publish(kafka.brokers(), "second", SOON).await?;

    let proxied = kafka.proxied_brokers()?;
    publish(&proxied, "third", SOON).await?;
    kafka.proxy()?.cut().await;
    ensure!(publish(&proxied, "lost", 4 * SILENCE).await.is_err(), "a client behind the proxy found its way around it");
    publish(kafka.brokers(), "fourth", SOON).await?;
    kafka.proxy()?.heal().await;
    publish(&proxied, "fifth", SOON).await?;
    let mut kept = messages(kafka.brokers(), "kept").await?;
    // A paused broker may find the request when it goes on: what timed out there is unknown, not refused.
    kept.retain(|text| text != "unknown");
    assert_eq!(kept, ["first", "second", "third", "fourth", "fifth"]);
    Ok(())
}

#[tokio::test]
async fn services_that_share_servers_share_nothing_else() -> anyhow::Result<()> {
    let options = Options::none().redis(RedisOptions::default()).postgres();
    let sandbox = Sandbox::start(options).await?;
    let (one, two) = (sandbox.namespace("one").await?, sandbox.namespace("two").await?);
    ask(&one.redis_url, &["SET", "mine", "1"]).await?;
    assert_eq!(ask(&two.redis_url, &["EXISTS", "mine"]).await?, "0");
    assert_ne!(one.postgres_url, two.postgres_url);
    assert_ne!(one.suffix, two.suffix);
    assert_eq!(sandbox.namespace("one").await?, one);
    Ok(())
}

/// A role for a copy of this test binary, given in this variable; nothing at all in an ordinary run.
const ROLE: &str = "SANDBOX_TEST_ROLE";
/// Where that copy writes what it has to say.
const ANSWER: &str = "SANDBOX_TEST_ANSWER";

/// Runs in a copy of this program.
#[tokio::test]
async fn a_copy_of_this_program_plays_its_role() -> anyhow::Result<()> {
    let (Ok(role), Some(answer)) = (std::env::var(ROLE), std::env::var_os(ANSWER)) else { return Ok(()) };
    match role.as_str() {
        "wait to be killed" => {
            let sandbox = Sandbox::start(Options::none().redis(RedisOptions::default()).postgres()).await?;
            // The hardest to end: stopped processes do not act on the signal that the kernel sends them.
            sandbox.postgres().pause()?;
            let pids = [sandbox.redis().pid(), sandbox.postgres().pid()];
            let draft = Path::new(&answer).with_extension("draft");
            std::fs::write(&draft, serde_json::to_string(&pids)?)?;
            std::fs::rename(&draft, answer)?;
            std::future::pending::<()>().await;
        }
        "fail to start" => {
            let error = Sandbox::start(Options::none().kafka()).await.err().context("it started")?;
            std::fs::write(answer, serde_json::to_string(&format!("{error:#}"))?)?;
        }
        "share and end" => {
            let sandbox = shared().await?;
            let pids = [sandbox.redis().pid(), sandbox.postgres().pid(), sandbox.kafka().pid()];
            std::fs::write(answer, serde_json::to_string(&pids)?)?;
        }
        other => anyhow::bail!("no such role: {other}"),
    }
    Ok(())
}

/// Starts a copy of this program in a temporary folder of its own.
fn copy(role: &str, temp: &Path, variables: Vec<(String, String)>) -> anyhow::Result<(Process, PathBuf)> {
    let answer = temp.join(format!("{role}.json"));
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "a_copy_of_this_program_plays_its_role", "--nocapture"]);
    command.env(ROLE, role).env(ANSWER, &answer).env("TMPDIR", temp);
    command.envs(variables);
    Ok((Process::spawn(role, command, &temp.join(format!("{role}.log")))?, answer))
}

fn folders(temp: &Path) -> anyhow::Result<usize> {
    let is_sandbox = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("seckill-sandbox-");
    Ok(std::fs::read_dir(temp)?.flatten().filter(is_sandbox).count())
}

fn runs(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with(['Z', 'X']))
}

fn temporary_folder() -> anyhow::Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt;
    let permissions = std::fs::Permissions::from_mode(0o755);
    Ok(tempfile::Builder::new().prefix("sandbox-test-").permissions(permissions).tempdir()?)
}

/// Without Java nothing is started, so there is nothing that could fail.
#[tokio::test]
async fn a_server_that_does_not_come_up_says_why() -> anyhow::Result<()> {
    if std::env::var_os("SECKILL_REQUIRE_KAFKA").is_none() && Command::new("java").arg("-version").output().is_err() {
        return Ok(());
    }
    let temp = temporary_folder()?;
    std::fs::create_dir(temp.path().join("libs"))?;
    std::fs::write(temp.path().join("libs/kafka_broken.jar"), "")?;
    let home = ("KAFKA_HOME".to_owned(), temp.path().display().to_string());
    let (process, answer) = copy("fail to start", temp.path(), vec![home])?;
    let status = process.wait(SOON).await?;
    ensure!(status.success(), "{}", process.log_tail());
    let error: String = serde_json::from_slice(&std::fs::read(answer)?)?;
    ensure!(error.contains("kafka does not come up") && error.contains("main class"), "{error}");
    Ok(())
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn nothing_is_left_when_the_owner_is_killed_or_ends() -> anyhow::Result<()> {
    let temp = temporary_folder()?;
    let (owner, answer) = copy("wait to be killed", temp.path(), Vec::new())?;
    wait_until("the owner's servers run", SOON, async || answer.exists() || !owner.is_running()).await;
    ensure!(answer.exists(), "{}", owner.log_tail());
    let pids: Vec<u32> = serde_json::from_slice(&std::fs::read(answer)?)?;
    ensure!(pids.iter().all(|pid| runs(*pid)), "the owner's servers do not run");
    assert_eq!(folders(temp.path())?, 1);

    // `kill -9` of the owner alone, as the kernel's memory killer would do it.
    let pid = rustix::process::Pid::from_raw(owner.pid().cast_signed()).context("a process id")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    owner.wait(SOON).await?;
    wait_until("Redis is gone without anybody's help", SOON, async || !runs(pids[0])).await;

    // The next start removes the folder and every process that got no signal; its own end leaves nothing either.
    let (heir, answer) = copy("share and end", temp.path(), Vec::new())?;
    let status = heir.wait(SOON).await?;
    ensure!(status.success(), "{}", heir.log_tail());
    wait_until("PostgreSQL is gone", SOON, async || !runs(pids[1])).await;
    let pids: Vec<Option<u32>> = serde_json::from_slice(&std::fs::read(answer)?)?;
    wait_until("the heir's servers are gone", SOON, async || !pids.iter().flatten().any(|pid| runs(*pid))).await;
    assert_eq!(folders(temp.path())?, 0);
    Ok(())
}
