//! The service's settings for a sandbox: complete, apart from those of others, and the same in a child process.

use std::process::Command;

use drive::environment::{SandboxSettings, env_for};
use sandbox::{Options, RedisOptions, Sandbox};
use seckill::config::Settings;

/// Where a copy of this program writes the settings that it reads; nothing at all in an ordinary run.
const ANSWER: &str = "SETTINGS_TEST_ANSWER";

/// Runs in a copy of this program.
#[test]
fn a_copy_of_this_program_writes_down_its_settings() -> anyhow::Result<()> {
    let Some(answer) = std::env::var_os(ANSWER) else { return Ok(()) };
    Ok(std::fs::write(answer, serde_json::to_string(&env_for(&Settings::load(None)?))?)?)
}

#[test]
fn a_child_process_reads_the_very_settings_of_its_parent() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let answer = folder.path().join("answer.json");
    let mut settings = Settings::load(None)?;
    settings.auth.jwt_secret = "a secret, with = and \"quotes\" in it".into();
    settings.http.trusted_proxies = vec!["127.0.0.1".parse()?, "::1".parse()?];
    settings.admission.user_burst = 77;
    settings.telemetry.filter = "warn,seckill=debug".to_owned();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "a_copy_of_this_program_writes_down_its_settings"]);
    let output = command.env(ANSWER, &answer).envs(env_for(&settings)).output()?;
    anyhow::ensure!(output.status.success(), "{output:?}");
    let seen: Vec<(String, String)> = serde_json::from_slice(&std::fs::read(answer)?)?;
    assert_eq!(seen, env_for(&settings));
    Ok(())
}

#[tokio::test]
async fn services_that_share_servers_have_topics_groups_and_databases_of_their_own() -> anyhow::Result<()> {
    let sandbox = Sandbox::start(Options::none().redis(RedisOptions::default()).postgres()).await?;
    let (one, two) = (sandbox.settings("one").await?, sandbox.settings("two").await?);
    for variable in ["REDIS__URL", "POSTGRES__URL", "KAFKA__TOPIC", "KAFKA__DEAD_LETTER_TOPIC", "KAFKA__GROUP"] {
        let of = |settings| env_for(settings).into_iter().find(|(name, _)| name.ends_with(variable));
        assert!(of(&one).is_some(), "{variable}");
        assert_ne!(of(&one), of(&two), "{variable}");
    }
    assert_eq!(env_for(&sandbox.settings("one").await?), env_for(&one));
    Ok(())
}
