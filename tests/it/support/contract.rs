//! Holds every answer of the service against its description: what a route answers must be listed there.

use std::sync::LazyLock;

use serde_json::Value;

static DESCRIPTION: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(seckill::api::openapi()).expect("the description is JSON"));

/// Panics when the description lists this route, but not this answer of it.
pub fn check(method: &str, path: &str, status: u16, code: &str) {
    let path = path.split('?').next().unwrap_or_default();
    let Some(operation) = operation(&method.to_lowercase(), path) else { return };
    // The router's own answers: the method is known here, so these are about another path of the same shape.
    if ["not_found", "method_not_allowed"].contains(&code) {
        return;
    }
    let response = &operation["responses"][status.to_string()];
    assert!(!response.is_null(), "{method} {path} answers {status}, which its description does not list");
    let described = response["description"].as_str().unwrap_or_default();
    let listed = code.is_empty() || described.contains(&format!("`{code}`"));
    assert!(listed, "{method} {path} answers {code}, which its description does not list");
}

fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let paths = DESCRIPTION["paths"].as_object()?;
    let (_, route) = paths.iter().find(|(template, _)| fits(template, path))?;
    route.get(method)
}

fn fits(template: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given)) if wanted == given || (wanted.starts_with('{') && !given.is_empty()) => {}
            _ => return false,
        }
    }
}
