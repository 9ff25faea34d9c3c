//! Migrations are embedded at compile time; without a word to cargo a new file alone would not trigger a build.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
