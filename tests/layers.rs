//! The architecture, as a list: which room of the service imports which. Read from the bottom up it is the way of a
//! purchase. Arrows point upwards only, to rooms that stand above, so there are no circles; and an arrow that is not in
//! the list, or that nobody needs any more, fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each room, and the rooms above it that it imports.
const ROOMS: &[(&str, &[&str])] = &[
    // The vocabulary, and what needs nothing else.
    ("config", &[]),
    ("domain", &[]),
    ("promises", &["domain"]),
    ("backoff", &[]),
    ("redis_script", &[]),
    ("shutdown", &[]),
    // Logs and metrics.
    ("telemetry", &["config"]),
    // The stores and the broker, each spoken to in one room.
    ("kafka", &["config", "domain"]),
    ("lock", &["backoff", "config", "domain", "redis_script", "telemetry"]),
    ("catalogue", &["domain", "telemetry"]),
    ("ledger", &["catalogue", "config", "domain", "lock", "promises", "telemetry"]),
    ("stock", &["config", "domain", "promises", "redis_script", "telemetry"]),
    // The way of a purchase up to its answer, in the order in which `api` calls.
    ("admission", &["config", "domain", "telemetry"]),
    ("sold_out", &["catalogue", "config", "domain", "stock"]),
    ("purchasing", &["config", "domain", "ledger", "stock", "telemetry"]),
    // What becomes of an order, and who runs the sales.
    ("closing", &["domain", "ledger", "stock", "telemetry"]),
    ("payment", &["domain", "ledger"]),
    ("operator", &["catalogue", "config", "domain", "kafka", "ledger", "lock", "promises", "stock"]),
    // Behind Redis: these never import the edge.
    ("outbox", &["backoff", "config", "domain", "kafka", "ledger", "redis_script", "stock", "telemetry"]),
    ("consumer", &["backoff", "config", "domain", "kafka", "ledger", "telemetry"]),
    (
        "reconcile",
        &["backoff", "catalogue", "config", "domain", "kafka", "ledger", "lock", "outbox", "stock", "telemetry"],
    ),
    // The edge, and the frame that puts all of it together.
    (
        "api",
        &[
            "admission",
            "catalogue",
            "closing",
            "config",
            "domain",
            "ledger",
            "operator",
            "payment",
            "promises",
            "purchasing",
            "shutdown",
            "sold_out",
            "stock",
            "telemetry",
        ],
    ),
    (
        "app",
        &[
            "admission",
            "api",
            "catalogue",
            "closing",
            "config",
            "consumer",
            "domain",
            "kafka",
            "ledger",
            "lock",
            "operator",
            "outbox",
            "payment",
            "purchasing",
            "reconcile",
            "shutdown",
            "sold_out",
            "stock",
            "telemetry",
        ],
    ),
    (
        "cli",
        &[
            "admission",
            "api",
            "app",
            "catalogue",
            "config",
            "domain",
            "kafka",
            "ledger",
            "promises",
            "reconcile",
            "stock",
        ],
    ),
];

/// The crates of the workspace, and which of each other they import. Tests and benchmarks of the service may import the
/// test bench; the service itself may not.
const CRATES: &[(&str, &str, &[&str])] = &[
    ("seckill", "src", &[]),
    ("sandbox", "crates/sandbox/src", &[]),
    ("drive", "crates/drive/src", &["sandbox", "seckill"]),
    ("loadtest", "loadtest/src", &["drive", "sandbox", "seckill"]),
];

#[test]
fn every_room_imports_only_what_stands_above_it() {
    let mut above = BTreeSet::new();
    let mut listed = BTreeMap::new();
    for (room, imports) in ROOMS {
        for import in *imports {
            assert!(above.contains(import), "{room} points at {import}, which does not stand above it");
        }
        above.insert(*room);
        listed.insert((*room).to_owned(), imports.iter().map(|import| (*import).to_owned()).collect::<BTreeSet<_>>());
    }
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for module in modules("src") {
        let Some(room) = module.path.first() else { continue };
        let imports = found.entry(room.clone()).or_default();
        imports
            .extend(module.imports.iter().filter_map(|import| import.first()).filter(|other| *other != room).cloned());
    }
    for (room, imports) in &found {
        assert_eq!(Some(imports), listed.get(room), "what {room} imports, and what the list says");
    }
    assert_eq!(found.len(), listed.len(), "every room of the list exists");
}

#[test]
fn no_modules_of_a_crate_import_each_other_in_a_circle() {
    for (name, folder, _) in CRATES {
        let modules = modules(folder);
        let paths: BTreeSet<_> = modules.iter().map(|module| module.path.clone()).collect();
        let mut arrows: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> = BTreeMap::new();
        for module in &modules {
            for import in &module.imports {
                // The longest part of the path that is a module; the rest names an item in it.
                let Some(target) = (1..=import.len()).rev().map(|n| &import[..n]).find(|path| paths.contains(*path))
                else {
                    continue;
                };
                // A parent and what stands inside it are one thing, seen from outside.
                if !target.starts_with(&module.path) && !module.path.starts_with(target) {
                    arrows.entry(module.path.clone()).or_default().insert(target.to_vec());
                }
            }
        }
        for start in arrows.keys() {
            let mut way = vec![start.clone()];
            assert!(!leads_back(&arrows, start, start, &mut way, &mut BTreeSet::new()), "a circle in {name}: {way:?}");
        }
    }
}

#[test]
fn every_crate_imports_only_the_crates_that_it_may() {
    for (name, folder, allowed) in CRATES {
        for file in files(&root().join(folder)) {
            let code = code_of(&file);
            for (other, ..) in CRATES {
                let imported = words_before_path(&code).any(|word| word == *other);
                assert!(!imported || name == other || allowed.contains(other), "{}: {other}", file.display());
            }
        }
    }
}

/// A file that no module names is not compiled, and the tests in it do not run.
#[test]
fn every_file_is_a_module_of_its_crate() {
    for folder in ["src", "crates/sandbox/src", "crates/drive/src", "loadtest/src", "tests/it"] {
        let folder = root().join(folder);
        let files = files(&folder);
        for file in &files {
            let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let parent = file.parent().expect("a folder");
            let (name, home) = match stem {
                "lib" | "main" => continue,
                "mod" => (parent.file_name().and_then(|name| name.to_str()).unwrap_or_default(), parent.parent()),
                name => (name, Some(parent)),
            };
            let home = home.expect("a folder");
            let declared = ["mod.rs", "lib.rs", "main.rs"].iter().any(|root| {
                let file = home.join(root);
                file.is_file() && fs::read_to_string(file).is_ok_and(|code| code.contains(&format!("mod {name};")))
            });
            assert!(declared, "no module names {}", file.display());
        }
    }
}

/// Whether arrows lead from `at` to `goal`. Leaves the way in `way`.
fn leads_back(
    arrows: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
    at: &[String],
    goal: &[String],
    way: &mut Vec<Vec<String>>,
    seen: &mut BTreeSet<Vec<String>>,
) -> bool {
    for next in arrows.get(at).into_iter().flatten() {
        way.push(next.clone());
        if next == goal || (seen.insert(next.clone()) && leads_back(arrows, next, goal, way, seen)) {
            return true;
        }
        way.pop();
    }
    false
}

/// A file as a module of its crate.
struct Module {
    /// Empty for the root of the crate.
    path: Vec<String>,
    /// Paths below the root of the crate that it names, in its code and not in its tests.
    imports: BTreeSet<Vec<String>>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn modules(folder: &str) -> Vec<Module> {
    let folder = root().join(folder);
    let mut modules = Vec::new();
    for file in files(&folder) {
        let below = file.strip_prefix(&folder).expect("a file in the folder").with_extension("");
        let mut path: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if path.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
            path.pop();
        }
        // Tests may look wherever they like.
        if path.iter().any(|part| part == "tests") {
            continue;
        }
        let mut imports = BTreeSet::new();
        // The macro of the metrics is at the root of the crate, as macros are, and stands in `telemetry`.
        let code = code_of(&file).replace("crate::metrics!", "crate::telemetry");
        for text in code.split("crate::").skip(1) {
            expand(&[], text, &mut imports);
        }
        for text in code.split("super::").skip(1) {
            let parent = path.split_last().map_or(&[][..], |(_, parent)| parent);
            expand(parent, text, &mut imports);
        }
        modules.push(Module { path, imports });
    }
    modules
}

/// The code of a file without comments and unit tests.
fn code_of(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("a readable file");
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect()
}

/// Adds the paths that a text begins with: one, or several in braces.
fn expand(prefix: &[String], text: &str, paths: &mut BTreeSet<Vec<String>>) {
    if let Some(list) = text.strip_prefix('{') {
        let (mut depth, mut begin) = (0, 0);
        for (at, letter) in list.char_indices() {
            match letter {
                '{' => depth += 1,
                ',' | '}' if depth == 0 => {
                    expand(prefix, list[begin..at].trim_start(), paths);
                    begin = at + 1;
                    if letter == '}' {
                        return;
                    }
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
        return;
    }
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    if word.is_empty() || word == "self" {
        paths.insert(prefix.to_vec());
        return;
    }
    let mut path = prefix.to_vec();
    if word == "super" {
        path.pop();
    } else {
        path.push(word.to_owned());
    }
    match rest.strip_prefix("::") {
        Some(rest) => expand(&path, rest, paths),
        None => {
            paths.insert(path);
        }
    }
}

/// Every word that `::` follows and no `::` precedes: crates, modules in scope, types.
fn words_before_path(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices("::").filter_map(|(at, _)| {
        let before = &code[..at];
        let begin = before.rfind(|letter: char| !letter.is_alphanumeric() && letter != '_').map_or(0, |at| at + 1);
        (!before[..begin].ends_with("::")).then_some(&before[begin..])
    })
}

/// Every source file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}
