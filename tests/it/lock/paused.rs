//! A holder that is stopped in the middle of its work, and wakes up when another is at work.

use drive::environment::env_for;
use std::time::Duration;

use seckill::config::Settings;
use seckill::ledger::Ledger;
use seckill::lock::{Fence, Lock, Name, Options, Released, fence};
use seckill::stock::Stock;
use seckill::stock::script::WarmCode;

use super::fencing::{freeze, sale, warm};
use super::world::{LONG, PATIENCE, World, until, waiting, within};

const ROLE: &str = "LOCK_TEST_HOLDER";
const TTL: Duration = Duration::from_millis(600);

/// One guarded write of a job.
async fn write(ledger: &Ledger, fence: &Fence) -> Result<(), fence::Error> {
    let mut transaction = ledger.pool().begin().await?;
    fence.guard(&mut transaction).await?;
    sqlx::query("INSERT INTO written (token) VALUES ($1)").bind(fence.token()).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(())
}

/// The work of the holder, in a process of its own: it never looks whether its lock is lost, and goes on until its
/// writes are refused. Does nothing when it is run as a test among the others.
#[tokio::test]
async fn holder() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let settings = Settings::load(None).unwrap();
    let ledger = Ledger::connect(&settings.postgres, LONG).await.unwrap();
    let stock = Stock::connect(&settings.redis).unwrap();
    let lock = Lock::new(&settings.redis, ledger.pool().clone()).unwrap();
    let guard = lock.acquire(&Name::sale(sale().id), Options { ttl: TTL, ..waiting(LONG) }).await.unwrap();
    let fence = guard.claim().await.unwrap();
    let run_id = freeze(&stock, sale().id, fence.token()).await.unwrap();
    // Stopped inside a transaction it finds that PostgreSQL has ended it, and tries again, as a job would. What ends
    // this is that it was overtaken.
    while let Ok(()) | Err(fence::Error::Unavailable(_)) = write(&ledger, &fence).await {}
    assert_eq!(freeze(&stock, sale().id, fence.token()).await, None);
    assert_eq!(warm(&stock, &sale(), fence.token(), &run_id).await, WarmCode::Refused);
    assert!(matches!(guard.release().await, Released::Lost(_)));
}

#[tokio::test]
async fn a_holder_that_was_paused_past_its_lease_writes_nothing_when_it_wakes_up() {
    let world = World::new("paused").await;
    let create = "CREATE TABLE written (at bigint GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL)";
    sqlx::raw_sql(create).execute(world.pool()).await.unwrap();
    let program = std::env::current_exe().unwrap();
    // `env` sets what marks the child as the holder; the settings come from the sandbox.
    let role = format!("{ROLE}=1");
    let args = [role.as_str(), program.to_str().unwrap(), "--exact", "lock::paused::holder", "--nocapture"];
    let child = world.own.spawn("holder", "/usr/bin/env".as_ref(), &args, env_for(&world.settings)).unwrap();
    let count = async |token: i64| -> i64 {
        let query = sqlx::query_scalar("SELECT count(*) FROM written WHERE token = $1").bind(token);
        query.fetch_one(world.pool()).await.unwrap()
    };
    until("the holder writes", async || count(1).await > 3).await;

    child.pause().unwrap();
    let successor = within("the lease ends", world.acquire(waiting(LONG))).await;
    let fence = within("the claim", claim(&successor)).await;
    let before = count(1).await;
    write(&world.ledger, &fence).await.unwrap();
    let stock = Stock::connect(&world.settings.redis).unwrap();
    let run_id = freeze(&stock, sale().id, fence.token()).await.unwrap();

    child.resume().unwrap();
    let status = child.wait(PATIENCE).await.unwrap();
    assert!(status.success(), "the holder says:\n{}", child.log_tail());
    assert_eq!(count(1).await, before, "not one write of the first holder after the claim of the second");
    write(&world.ledger, &fence).await.unwrap();
    assert_eq!(warm(&stock, &sale(), fence.token(), &run_id).await, WarmCode::Warmed);
    assert_eq!(successor.release().await, Released::Released);
}

/// The paused holder may have stopped inside a transaction. PostgreSQL ends that one, or our wait for it; then we ask
/// again.
async fn claim(guard: &seckill::lock::Guard) -> Fence {
    loop {
        match guard.claim().await {
            Ok(fence) => return fence,
            Err(fence::Error::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
