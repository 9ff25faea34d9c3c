//! Migrations are embedded at compile time; without this line a new file alone would not trigger a build.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
