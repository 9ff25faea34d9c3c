//! Buyers whose tokens are signed before any clock starts, each with an address of its own.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use drive::tokens::Tokens;
use seckill::domain::SaleId;

/// The body of every purchase.
pub const BODY: &str = r#"{"quantity":1}"#;

/// Signed tokens, by the number of their buyer.
pub struct Crowd(Vec<String>);

impl Crowd {
    pub fn sign(tokens: &Tokens, count: usize) -> anyhow::Result<Self> {
        Ok(Self((0..count).map(|n| token(tokens, n)).collect::<Result<_, _>>()?))
    }

    /// Writes the whole request of buyer `n` (modulo their number) behind what `request` holds.
    pub fn write(&self, request: &mut Vec<u8>, sale: SaleId, n: usize) {
        let n = n % self.0.len();
        write_request(request, sale, &self.0[n], n);
    }

    /// The whole request of buyer `n` (modulo their number).
    pub fn request(&self, sale: SaleId, n: usize) -> Vec<u8> {
        let mut request = Vec::new();
        self.write(&mut request, sale, n);
        request
    }

    /// One line for each buyer, token and address, for a generator that is a program of its own.
    pub fn save(&self, file: &Path) -> anyhow::Result<()> {
        let mut lines = String::with_capacity(self.0.len() * 200);
        for (n, token) in self.0.iter().enumerate() {
            writeln!(lines, "{token} {}", address(n))?;
        }
        std::fs::write(file, lines).with_context(|| format!("cannot write {}", file.display()))
    }
}

/// The token of buyer `n`.
pub fn token(tokens: &Tokens, n: usize) -> anyhow::Result<String> {
    tokens.sign(&format!("buyer-{n}").parse()?, false)
}

/// Appends the request of a buyer.
pub fn write_request(request: &mut Vec<u8>, sale: SaleId, token: &str, n: usize) {
    let address = address(n);
    let length = BODY.len();
    // Written as `feed.lua` writes it.
    let text = format!(
        "POST /api/v1/sales/{sale}/purchases HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         x-forwarded-for: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{BODY}"
    );
    request.extend_from_slice(text.as_bytes());
}

/// The address that a trusted proxy would report. Differs for the first 16 million.
pub fn address(n: usize) -> String {
    format!("10.{}.{}.{}", (n >> 16) & 255, (n >> 8) & 255, n & 255)
}
