//! What a person at the terminal reads. Logs go to standard error; answers go here.

use std::fmt::Display;
use std::io::Write;

/// Writes a line to standard output. A closed pipe is the reader's choice, not an error.
pub fn line(text: impl Display) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}
