//! Text on its way into a picture: an SVG is written by hand, and the page around it by maud, which escapes by itself.

use std::fmt::{self, Display, Write};

/// Shows a value with everything escaped that HTML would read as its own, in text as in attributes.
pub struct Text<T>(pub T);

impl<T: Display> Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.write_str("&amp;")?,
                '<' => self.0.write_str("&lt;")?,
                '>' => self.0.write_str("&gt;")?,
                '"' => self.0.write_str("&quot;")?,
                '\'' => self.0.write_str("&#39;")?,
                // Not allowed in a page, whatever it is meant to be.
                c if c.is_control() && c != '\n' && c != '\t' => self.0.write_char('\u{fffd}')?,
                c => self.0.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_becomes_part_of_the_page() {
        let hostile = "</title><script>alert('x')</script>\" onload=\"y\u{0}&amp;";
        let shown = Text(hostile).to_string();
        assert!(!shown.contains(['<', '>', '"', '\'', '\u{0}']), "{shown}");
        assert!(shown.ends_with("&amp;amp;"), "{shown}");
    }
}
