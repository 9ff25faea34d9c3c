//! Settings as environment variables, so that a child process gets exactly what its parent has in hand.

use secrecy::ExposeSecret;
use serde_json::Value;

use crate::config::Settings;

/// Every setting as `SECKILL__SECTION__KEY` and its value, secrets included.
///
/// All of them, not only those that differ from the defaults: a variable that the child inherits must not win.
/// An empty list has no spelling in a variable and is left out; it is the default of every list.
pub fn env_for(settings: &Settings) -> Vec<(String, String)> {
    let mut variables = vec![
        (variable("auth", "jwt_secret"), settings.auth.jwt_secret.expose_secret().to_owned()),
        (variable("payment", "callback_secret"), settings.payment.callback_secret.expose_secret().to_owned()),
        (variable("redis", "url"), settings.redis.url.expose_secret().to_owned()),
        (variable("postgres", "url"), settings.postgres.url.expose_secret().to_owned()),
    ];
    // Settings are plain data in two levels: writing them as JSON cannot fail.
    let sections = serde_json::to_value(settings).unwrap_or_default();
    for (section, keys) in sections.as_object().into_iter().flatten() {
        for (key, value) in keys.as_object().into_iter().flatten() {
            variables.extend(text(value).map(|text| (variable(section, key), text)));
        }
    }
    variables
}

fn variable(section: &str, key: &str) -> String {
    format!("SECKILL__{}__{}", section.to_uppercase(), key.to_uppercase())
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => Some(items.iter().filter_map(text).collect::<Vec<_>>().join(",")),
        other => Some(other.to_string()),
    }
}
