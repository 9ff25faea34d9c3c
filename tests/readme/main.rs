//! The documents say what the code says: error codes, names of tests, settings, links.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use seckill::api::problem::Code;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below `folder` with one of these extensions.
fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, extensions));
        } else if path.extension().and_then(|it| it.to_str()).is_some_and(|it| extensions.contains(&it)) {
            found.push(path);
        }
    }
    found
}

/// The cells of every table row of a document.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    rows.map(|row| row.split('|').map(str::trim).collect()).collect()
}

/// What stands between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn both_api_pages_list_exactly_the_error_codes_that_exist() {
    let codes: Vec<_> = Code::ALL.iter().map(|code| (code.parts().0.to_string(), code.name().to_owned())).collect();
    for document in ["docs/api.md", "docs/api.zh-CN.md"] {
        let text = read(document);
        let rows = rows(&text);
        let errors = rows.iter().filter(|row| row.len() == 4 && row[0].parse::<u16>().is_ok());
        let listed: Vec<_> = errors.map(|row| (row[0].to_owned(), row[1].trim_matches('`').to_owned())).collect();
        assert_eq!(listed, codes, "{document}");
    }
}

#[test]
fn every_promise_is_explained_in_both_readmes() {
    for document in ["README.md", "README.zh-CN.md"] {
        let text = read(document);
        let named: Vec<_> = rows(&text).iter().filter_map(|row| quoted(row[0]).next()).map(str::to_owned).collect();
        let explained: Vec<_> = named.iter().filter(|name| seckill::promises::NAMES.contains(&name.as_str())).collect();
        assert_eq!(explained, seckill::promises::NAMES.iter().collect::<Vec<_>>(), "{document}");
    }
}

/// A name in the documents that reads like a test's is one, or else a constraint of the schema.
#[test]
fn every_test_that_the_documents_name_exists() {
    let mut code = String::new();
    for file in ["src", "tests", "crates", "loadtest"].iter().flat_map(|folder| files(&root().join(folder), &["rs"])) {
        code.push_str(&read(file));
    }
    let schema: String = files(&root().join("migrations"), &["sql"]).iter().map(read).collect();
    for document in files(root(), &["md"]) {
        for name in quoted(&read(&document)).filter(|name| name.matches('_').count() >= 4) {
            let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let known = code.contains(&format!("fn {name}(")) || schema.contains(&format!(" {name} "));
            let metric = name.starts_with("seckill_");
            assert!(!name.chars().all(word) || known || metric, "{}: there is no test {name}", document.display());
        }
    }
}

#[test]
fn every_metric_that_the_documents_name_exists() {
    let code: String = files(&root().join("src"), &["rs"]).iter().map(read).collect();
    let mut named = 0;
    for document in files(root(), &["md"]) {
        let text = read(&document);
        let metric =
            |name: &&str| name.starts_with("seckill_") && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        for name in quoted(&text).filter(metric) {
            let known = code.contains(&format!("\"{name}\""));
            assert!(known, "{}: there is no metric {name}", document.display());
            named += 1;
        }
    }
    assert!(named > 5, "the documents name metrics");
}

#[test]
fn every_fault_that_the_list_of_failures_names_is_in_the_drill() {
    let drill: String = files(&root().join("loadtest/src/faults"), &["rs"]).iter().map(read).collect();
    let (text, kebab) = (read("docs/failures.md"), |c: char| c.is_ascii_lowercase() || c == '-');
    let named: Vec<_> = quoted(&text).filter(|name| name.contains('-') && name.chars().all(kebab)).collect();
    assert!(named.len() > 5, "{named:?}");
    for name in named {
        assert!(drill.contains(&format!("\"{name}\",")), "there is no fault {name}");
    }
}

#[test]
fn every_setting_in_the_documents_and_in_the_installation_exists() {
    let mut known = BTreeSet::from(["SECKILL__SECTION__KEY".to_owned()]);
    let mut section = "";
    let defaults = read("src/config.default.toml");
    for line in defaults.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if let Some((key, _)) = line.trim_start_matches("# ").split_once(" = ") {
            // A key that is commented out has no default.
            known.insert(format!("SECKILL__{section}__{key}").to_uppercase());
        }
    }
    let mut used = 0;
    let documents = files(root(), &["md"]).into_iter();
    for file in documents.chain(["docker-compose.yml", "deploy/Dockerfile", ".env.example"].map(PathBuf::from)) {
        let text = read(&file);
        for (at, _) in text.match_indices("SECKILL__") {
            let end = text[at..].find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(text.len() - at);
            let name = &text[at..at + end];
            assert!(known.contains(name), "{}: there is no setting {name}", file.display());
            used += 1;
        }
    }
    assert!(used > 10, "the documents name settings");
}

#[test]
fn every_relative_link_leads_to_a_file() {
    for document in files(root(), &["md"]) {
        let text = read(&document);
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://") && !link.starts_with('#')) {
            let path = link.split('#').next().unwrap_or(link);
            let target = document.parent().expect("a folder").join(path);
            assert!(target.exists(), "{}: {link} leads nowhere", document.display());
        }
    }
}

/// No secret of the installation has a default that works.
#[test]
fn the_installation_asks_for_every_secret() {
    let compose = read("docker-compose.yml");
    for secret in ["SECKILL_JWT_SECRET", "REDIS_PASSWORD", "POSTGRES_PASSWORD"] {
        let uses: Vec<_> = compose.split("${").skip(1).filter(|rest| rest.starts_with(secret)).collect();
        assert!(!uses.is_empty(), "{secret}");
        assert!(uses.iter().all(|rest| rest[secret.len()..].starts_with(":?")), "{secret} may be left out");
        assert!(read(".env.example").lines().any(|line| line == format!("{secret}=")), "{secret} has an example");
    }
    let ports = compose.lines().filter(|line| line.trim_start().starts_with("ports:"));
    assert!(ports.clone().count() > 0 && ports.into_iter().all(|line| line.contains("\"127.0.0.1:")));
}

/// The last string of a call, of which `code` has everything behind the opening bracket. No message has a quote in it.
fn last_string(code: &str) -> Option<&str> {
    let (mut last, mut open) = (None, 1);
    for (nth, part) in code.split('"').enumerate() {
        if nth % 2 == 1 {
            last = Some(part);
            continue;
        }
        for bracket in part.chars().filter(|c| "()".contains(*c)) {
            open += if bracket == '(' { 1 } else { -1 };
            if open == 0 {
                return last;
            }
        }
    }
    None
}

/// Every warning and error that the service logs is explained to whoever has to act on it, word for word.
#[test]
fn every_warning_and_error_in_the_log_is_explained() {
    let mut logged = BTreeSet::new();
    for file in files(&root().join("src"), &["rs"]) {
        let code: String = read(&file).lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for call in ["warn!(", "error!("].iter().flat_map(|call| code.split(call).skip(1)) {
            let message = last_string(call).expect("a message");
            // A message may go on in the next line.
            let words: Vec<_> = message.split_whitespace().filter(|word| *word != "\\").collect();
            logged.insert(words.join(" "));
        }
    }
    // The settings that go badly together are explained by the warning itself.
    assert!(logged.remove("{warning}"));
    let text = read("docs/operations.md");
    let section = text.split("\n## ").find(|section| section.starts_with("What the log says\n")).expect("a section");
    let line = |row: &Vec<&str>| row[0].strip_prefix('`')?.strip_suffix('`').map(str::to_owned);
    let explained: BTreeSet<_> = rows(section).iter().filter_map(line).collect();
    assert!(logged.len() > 40, "{logged:?}");
    assert_eq!(explained, logged);
}

/// The code of a file: its lines without those that are comments.
fn code(path: &Path) -> String {
    let text = read(path);
    let is_comment = |line: &str| line.starts_with("//") || line.starts_with("--");
    text.lines().filter(|line| !is_comment(line.trim_start())).collect::<Vec<_>>().join("\n")
}

/// Whether `text` stands in `code` with no letter before and after it that would make it a part of another word.
fn has_word(code: &str, text: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let edge = |c: Option<char>, next: Option<char>| is_part(c) && is_part(next);
    code.match_indices(text).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + text.len()..]);
        !edge(before.chars().next_back(), text.chars().next()) && !edge(text.chars().next_back(), after.chars().next())
    })
}

/// The files that a name means: one at the root, else every one of `scope` that ends so, else of all code.
fn files_named(name: &str, scope: &[PathBuf], everything: &[PathBuf]) -> Vec<PathBuf> {
    if root().join(name).is_file() {
        return vec![root().join(name)];
    }
    let named = |files: &[PathBuf]| files.iter().filter(|file| file.ends_with(name)).cloned().collect::<Vec<_>>();
    Some(named(scope)).filter(|found| !found.is_empty()).unwrap_or_else(|| named(everything))
}

/// What a heading of docs/proofs.md names between backquotes: folders, files, or files with a `*` in their name.
fn scope_of(heading: &str, everything: &[PathBuf]) -> Vec<PathBuf> {
    let mut scope = Vec::new();
    for name in quoted(heading) {
        let (start, end) = name.split_once('*').unwrap_or((name, ""));
        let path = |file: &&PathBuf| file.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
        let found = everything.iter().filter(|file| path(file).starts_with(start) && path(file).ends_with(end));
        let before = scope.len();
        scope.extend(found.cloned());
        assert!(scope.len() > before, "docs/proofs.md: there is no {name}");
    }
    scope
}

/// Each safeguard names the file and the word in it that are to be removed, and the test that fails then.
#[test]
fn every_proof_names_code_and_a_test_that_exist() {
    let folders = ["src", "lua", "migrations", "crates", "loadtest"];
    let everything: Vec<_> =
        folders.iter().flat_map(|folder| files(&root().join(folder), &["rs", "lua", "sql"])).collect();
    let drill: String = everything.iter().filter(|path| path.starts_with(root().join("loadtest"))).map(read).collect();
    let (mut safeguards, mut wrong) = (0, Vec::new());
    for section in read("docs/proofs.md").split("\n## ").skip(1) {
        let scope = scope_of(section.lines().next().unwrap_or_default(), &everything);
        for row in rows(section).iter().filter(|row| !["safeguard", "---"].contains(&row[0])) {
            safeguards += 1;
            // Safeguards that no test misses have their place in the first column, and no test.
            let place = if row.len() == 4 { row[1] } else { row[0] };
            let (named, words): (Vec<_>, Vec<_>) =
                quoted(place).partition(|name| [".rs", ".lua", ".sql"].iter().any(|end| name.ends_with(end)));
            let places: Vec<_> = named.iter().flat_map(|name| files_named(name, &scope, &everything)).collect();
            if named.iter().any(|name| files_named(name, &scope, &everything).is_empty()) {
                wrong.push(format!("{place}: there is no such file"));
            }
            let code: String = if named.is_empty() { &scope } else { &places }.iter().map(|path| code(path)).collect();
            let words = words.iter().map(|word| word.trim_end_matches('…').trim_end());
            wrong.extend(words.filter(|word| !has_word(&code, word)).map(|word| format!("{place}: no {word} there")));

            let tests = if row.len() == 4 { row[2] } else { "" };
            if let Some((name, file)) = tests.strip_suffix(".rs)").and_then(|cell| cell.rsplit_once(" (")) {
                let (name, file) = (name.trim_matches('`'), root().join(format!("{file}.rs")));
                let is_there = file.is_file() && read(&file).contains(&format!("fn {name}("));
                wrong.extend((!is_there).then(|| format!("{place}: no test {name} in {}", file.display())));
            } else {
                let faults = quoted(tests).filter(|name| !name.contains(' '));
                let missing = faults.filter(|name| !drill.contains(&format!("\"{name}\"")));
                wrong.extend(missing.map(|name| format!("{place}: there is no fault {name}")));
            }
        }
    }
    assert!(safeguards > 250, "{safeguards}");
    assert!(wrong.is_empty(), "docs/proofs.md:\n{}", wrong.join("\n"));
}
