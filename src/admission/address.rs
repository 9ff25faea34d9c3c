//! Which address a request really comes from.
//!
//! What comes in: the peer of the connection and the values of `X-Forwarded-For`. What is decided: the client's
//! address. What is guaranteed: a client cannot choose it.
//!
//! Every proxy appends the address that it saw, so only the right end of the header was written by somebody we
//! trust; everything to the left of the first stranger may be the client's own invention. So the header is read
//! only when the peer is a trusted proxy, from the right, past trusted proxies, and the first other address is
//! the client. What cannot be read ends the walk: the last hop that could be believed is then taken as the client.

use std::net::{IpAddr, SocketAddr};

/// The proxies that are believed. Build once, share.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Box<[IpAddr]>);

impl TrustedProxies {
    pub fn new(proxies: &[IpAddr]) -> Self {
        Self(proxies.iter().map(IpAddr::to_canonical).collect())
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// The client's address. `forwarded` holds the values of `X-Forwarded-For` in the order in which they came:
    /// several headers mean the same as one, joined by commas. A value that is no text is passed as an empty one.
    pub fn client<'a>(&self, peer: IpAddr, forwarded: impl DoubleEndedIterator<Item = &'a str>) -> IpAddr {
        let mut client = peer.to_canonical();
        for hop in forwarded.rev().flat_map(|value| value.rsplit(',')) {
            if !self.trusts(client) {
                return client;
            }
            match hop_address(hop) {
                Some(address) => client = address,
                None => return client,
            }
        }
        client
    }
}

/// One entry of the header: an address, or one with a port (IPv6 then in brackets), or a bracketed IPv6 address.
fn hop_address(hop: &str) -> Option<IpAddr> {
    let hop = hop.trim_matches([' ', '\t']);
    // Longest: a bracketed IPv4-mapped address with a port. Nothing longer is worth parsing.
    if hop.len() > 64 {
        return None;
    }
    let address = hop.parse::<IpAddr>().ok().or_else(|| hop.parse::<SocketAddr>().ok().map(|hop| hop.ip()));
    let address = address.or_else(|| hop.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6));
    address.map(|address| address.to_canonical())
}

/// Whose bucket an address belongs to: an IPv4 address, or an IPv6 /64, which is what one subscriber is given. By
/// single IPv6 addresses one machine would have 2^64 buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressKey {
    V4([u8; 4]),
    V6([u8; 8]),
}

impl From<IpAddr> for AddressKey {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn client(peer: &str, forwarded: &[&str]) -> IpAddr {
        let proxies = TrustedProxies::new(&[ip("10.0.0.1"), ip("10.0.0.2"), ip("2001:db8::1")]);
        proxies.client(ip(peer), forwarded.iter().copied())
    }

    #[test]
    fn a_stranger_cannot_name_an_address() {
        assert_eq!(client("203.0.113.9", &["198.51.100.1"]), ip("203.0.113.9"));
        assert_eq!(client("203.0.113.9", &["198.51.100.1, 10.0.0.1"]), ip("203.0.113.9"));
    }

    #[test]
    fn the_first_stranger_from_the_right_is_the_client() {
        assert_eq!(client("10.0.0.1", &["198.51.100.1"]), ip("198.51.100.1"));
        assert_eq!(client("10.0.0.1", &["198.51.100.1, 10.0.0.2"]), ip("198.51.100.1"));
        assert_eq!(client("10.0.0.1", &["6.6.6.6, 198.51.100.1, 10.0.0.2"]), ip("198.51.100.1"), "spoofed left end");
        assert_eq!(client("10.0.0.1", &["10.0.0.2, 198.51.100.1"]), ip("198.51.100.1"), "a spoofed proxy");
    }

    #[test]
    fn several_headers_are_one_joined_by_commas() {
        assert_eq!(client("10.0.0.1", &["6.6.6.6", "198.51.100.1", "10.0.0.2"]), ip("198.51.100.1"));
        assert_eq!(client("10.0.0.1", &["6.6.6.6, 198.51.100.1", "10.0.0.2,10.0.0.1"]), ip("198.51.100.1"));
    }

    #[test]
    fn ports_brackets_blanks_and_mapped_addresses_are_understood() {
        assert_eq!(client("10.0.0.1", &[" \t198.51.100.1:4711 "]), ip("198.51.100.1"));
        assert_eq!(client("10.0.0.1", &["2001:db8::7"]), ip("2001:db8::7"));
        assert_eq!(client("10.0.0.1", &["[2001:db8::7]"]), ip("2001:db8::7"));
        assert_eq!(client("10.0.0.1", &["[2001:db8::7]:443"]), ip("2001:db8::7"));
        assert_eq!(client("2001:db8::1", &["198.51.100.1"]), ip("198.51.100.1"));
        assert_eq!(client("::ffff:10.0.0.1", &["::ffff:198.51.100.1"]), ip("198.51.100.1"));
    }

    #[test]
    fn garbage_falls_back_to_the_last_hop_that_can_be_believed() {
        let long = "1".repeat(10_000);
        for garbage in
            ["", " ", ",", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "[1.2.3.4]", "[::1", "é", long.as_str()]
        {
            assert_eq!(client("10.0.0.1", &[garbage]), ip("10.0.0.1"), "{garbage:?}");
            let behind = format!("198.51.100.1, {garbage}, 10.0.0.2");
            assert_eq!(client("10.0.0.1", &[&behind]), ip("10.0.0.2"), "{garbage:?} hides whatever is left of it");
            let before = format!("{garbage}, 198.51.100.1");
            assert_eq!(client("10.0.0.1", &[&before]), ip("198.51.100.1"), "{garbage:?} left of the client");
        }
        assert_eq!(client("10.0.0.1", &[]), ip("10.0.0.1"));
        assert_eq!(client("10.0.0.1", &["10.0.0.2, 10.0.0.1"]), ip("10.0.0.2"), "only proxies: the farthest one");
    }

    #[test]
    fn an_ipv6_subscriber_has_one_bucket_and_a_mapped_ipv4_address_its_own() {
        let key = |text| AddressKey::from(ip(text));
        assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff:ffff:ffff:ffff"));
        assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
        assert_eq!(key("::ffff:198.51.100.1"), key("198.51.100.1"));
        assert_ne!(key("198.51.100.1"), key("198.51.100.2"));
        assert_ne!(key("::c633:6401"), key("198.51.100.1"), "no IPv6 prefix shares a bucket with an IPv4 address");
    }
}
