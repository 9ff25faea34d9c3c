//! The private servers.

use seckill::sandbox::{Options, Sandbox};

#[tokio::test]
async fn starts() {
    let t = std::time::Instant::now();
    let sandbox = Sandbox::start(Options::default()).await.unwrap();
    println!("start {:?} {}", t.elapsed(), sandbox.broker_kind());
    let settings = sandbox.settings("one").await.unwrap();
    println!("{settings:?}");
    println!("{:?}", seckill::sandbox::env_for(&settings));
    let t = std::time::Instant::now();
    sandbox.kafka().restart().await.unwrap();
    println!("kafka restart {:?}", t.elapsed());
    let t = std::time::Instant::now();
    sandbox.postgres().restart().await.unwrap();
    println!("pg restart {:?}", t.elapsed());
    let t = std::time::Instant::now();
    drop(sandbox);
    println!("drop {:?}", t.elapsed());
}
