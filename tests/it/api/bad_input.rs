//! Whatever is sent: a clear problem+json, never a panic or a 500, and no state touched.

use std::time::Duration;

use crate::support::fixtures::new_sale;
use crate::support::http::{Answer, Connection};
use crate::support::service::{Running, settings};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use seckill::app::Roles;
use seckill::catalogue::NewSale;
use seckill::domain::SaleId;
use seckill::promises::{LedgerView, RedisView};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Everything that the stores hold of a sale, as text.
async fn state(running: &Running, sale: SaleId) -> String {
    let ledger: Option<LedgerView> = running.service.ledger.view(sale).await.expect("a view");
    let redis: Option<RedisView> = running.service.stock.view(sale).await.expect("a view");
    format!("{ledger:?} {redis:?}")
}

fn assert_problem(answer: &Answer, status: u16, code: &str, what: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (status, code), "{what}: {}", answer.text);
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{what}");
    assert_eq!(answer.json()["status"], status, "{what}");
}

#[tokio::test]
async fn bad_bodies_and_headers_are_refused_each_with_its_problem() {
    let settings = settings("bad_input").await;
    let running = Running::start(&settings, Roles::SERVE).await;
    let sale = running.open_sale(5).await.id;
    let before = state(&running, sale).await;
    let bearer = format!("Bearer {}", running.token("ann"));
    let path = format!("/api/v1/sales/{sale}/purchases");
    let mut http = Connection::open(running.address()).await;

    let json_type = ("content-type", "application/json");
    let bodies = [
        "{",
        "[]",
        "null",
        "1",
        "\"\"",
        "{\"quantity\":}",
        "{\"quantity\":0}",
        "{\"quantity\":-1}",
        "{\"quantity\":1.5}",
        "{\"quantity\":9223372036854775808}",
        "{\"quantity\":\"1\"}",
        "{\"quantity\":null}",
        "{\"quantity\":true}",
        "{\"quantity\":1,\"price_cents\":1}",
        "{\"quantity\":1}{\"quantity\":1}",
        "{\"quantity\":3}",
        "\u{0}",
    ];
    for body in bodies {
        let answer = http.send("POST", &path, &[("authorization", &bearer), json_type], body).await;
        assert_problem(&answer, 400, "invalid_request", body);
    }
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"] {
        let headers = [("authorization", bearer.as_str()), ("content-type", content_type)];
        let answer = http.send("POST", &path, &headers, "{\"quantity\":1}").await;
        assert_problem(&answer, 415, "unsupported_media_type", content_type);
    }
    let long = "k".repeat(65);
    for keys in [vec![""], vec![long.as_str()], vec!["a b"], vec!["k", "l"]] {
        let mut headers = vec![("authorization", bearer.as_str())];
        headers.extend(keys.iter().map(|key| ("idempotency-key", *key)));
        let answer = http.send("POST", &path, &headers, "").await;
        assert_problem(&answer, 400, "invalid_request", &format!("{keys:?}"));
    }
    for sale in ["0", "-1", "007", "1.5", "2147483648", "99999999999999999999", "abc", "%00", "2147483647"] {
        let path = format!("/api/v1/sales/{sale}/purchases");
        let answer = http.send("POST", &path, &[("authorization", &bearer)], "").await;
        assert_problem(&answer, 404, "sale_not_found", sale);
    }
    for order in ["x", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "00000000-0000-8000-8000-000000000000"] {
        let answer = http.get(&format!("/api/v1/orders/{order}"), &running.token("ann")).await;
        assert_problem(&answer, 404, "order_not_found", order);
    }
    let answer = http.send("DELETE", &path, &[("authorization", &bearer)], "").await;
    assert_problem(&answer, 405, "method_not_allowed", "DELETE");
    assert_eq!(answer.header("allow"), Some("POST"));
    let answer = http.send("POST", "/admin/v1/blacklist/ann", &[], "").await;
    assert_problem(&answer, 405, "method_not_allowed", "POST");
    assert_eq!(answer.header("allow"), Some("PUT, DELETE"), "every method that works");
    let metrics = http.send("GET", "/metrics", &[], "").await.text;
    let line = r#"seckill_http_requests_total{code="method_not_allowed",route="purchase",status="4xx"} 1"#;
    assert!(metrics.contains(line), "{metrics}");
    for path in ["/nowhere", "/api/v1/nowhere", "/api/v1/sales/1/purchases/", "/admin/v1/"] {
        let answer = http.send("GET", path, &[], "").await;
        assert_problem(&answer, 404, "not_found", path);
    }

    assert_eq!(state(&running, sale).await, before, "nothing was touched");
    running.stop().await;
}

#[tokio::test]
async fn tokens_that_are_forged_expired_or_unsigned_open_nothing() {
    let settings = settings("bad_tokens").await;
    let running = Running::start(&settings, Roles::SERVE).await;
    let sale = running.open_sale(5).await.id;
    let before = state(&running, sale).await;
    let mut http = Connection::open(running.address()).await;
    let good = running.token("ann");
    let (head, rest) = good.split_once('.').expect("a JWT");
    let (claims, signature) = rest.split_once('.').expect("a JWT");

    let expires = 4_000_000_000_u64;
    let signed = |algorithm, claims: serde_json::Value, secret: &[u8]| {
        encode(&Header::new(algorithm), &claims, &EncodingKey::from_secret(secret).expect("a key")).expect("a token")
    };
    let secret = drive::environment::JWT_SECRET.as_bytes();
    let ann = json!({"sub": "ann", "exp": expires});
    let tokens = [
        String::new(),
        "x".to_owned(),
        format!("{head}.{claims}."),
        format!("{head}.{claims}"),
        format!("eyJhbGciOiJub25lIn0.{claims}."),
        format!("{head}.{claims}.{}", signature.chars().rev().collect::<String>()),
        format!("{good}x"),
        signed(Algorithm::HS256, ann.clone(), b"another secret of at least 32 bytes"),
        signed(Algorithm::HS512, ann, secret),
        signed(Algorithm::HS256, json!({"sub": "ann", "exp": 1_000_000_000}), secret),
        signed(Algorithm::HS256, json!({"sub": "ann"}), secret),
        signed(Algorithm::HS256, json!({"exp": expires}), secret),
        signed(Algorithm::HS256, json!({"sub": "a b", "exp": expires}), secret),
        signed(Algorithm::HS256, json!({"sub": "", "exp": expires}), secret),
        signed(Algorithm::HS256, json!({"sub": 7, "exp": expires}), secret),
        "a".repeat(4_000),
    ];
    for token in &tokens {
        let answer = http.buy(sale, token, &[]).await;
        assert_problem(&answer, 401, "unauthorized", token);
    }
    let answer = http.send("POST", &format!("/api/v1/sales/{sale}/purchases"), &[], "").await;
    assert_problem(&answer, 401, "unauthorized", "no header");
    let basic = [("authorization", "Basic YW5uOmFubg==")];
    let answer = http.send("POST", &format!("/api/v1/sales/{sale}/purchases"), &basic, "").await;
    assert_problem(&answer, 401, "unauthorized", "Basic");

    // A buyer is no operator.
    let bearer = format!("Bearer {good}");
    for (method, path) in [
        ("POST", "/admin/v1/sales".to_owned()),
        ("PATCH", format!("/admin/v1/sales/{sale}")),
        ("POST", format!("/admin/v1/sales/{sale}/stock")),
        ("GET", format!("/admin/v1/sales/{sale}/audit")),
        ("PUT", "/admin/v1/blacklist/bob".to_owned()),
        ("DELETE", "/admin/v1/blacklist/bob".to_owned()),
    ] {
        let answer = http.send(method, &path, &[("authorization", &bearer)], "").await;
        assert_problem(&answer, 403, "forbidden", &path);
        let answer = http.send(method, &path, &[], "").await;
        assert_problem(&answer, 401, "unauthorized", &path);
    }
    assert_eq!(state(&running, sale).await, before, "nothing was touched");
    running.stop().await;
}

#[tokio::test]
async fn a_huge_body_is_refused_and_the_node_lives_on() {
    let settings = settings("huge").await;
    let running = Running::start(&settings, Roles::SERVE).await;
    let sale = running.open_sale(5).await.id;
    let bearer = format!("Bearer {}", running.token("ann"));
    let path = format!("/api/v1/sales/{sale}/purchases");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let mut http = Connection::open(running.address()).await;
    let answer = http.send("POST", &path, &headers, &" ".repeat(1_025)).await;
    assert_problem(&answer, 413, "body_too_large", "one byte too many");

    // Ten megabytes: the node may stop reading and close, but it says why first.
    let mut raw = TcpStream::connect(running.address()).await.expect("a connection");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: {bearer}\r\ncontent-type: application/json\r\n\
         content-length: 10485760\r\n\r\n"
    );
    raw.write_all(head.as_bytes()).await.expect("a request");
    let mut answer = vec![0; 64];
    let read = raw.read(&mut answer).await.expect("an answer");
    assert!(String::from_utf8_lossy(&answer[..read]).starts_with("HTTP/1.1 413"));

    let mut http = Connection::open(running.address()).await;
    assert_eq!(http.buy(sale, &running.token("ann"), &[]).await.status, 202);
    running.stop().await;
}

/// Bytes that are no HTTP, or HTTP with tricks in it, get an error or a closed connection; the node lives on.
#[tokio::test]
async fn tricks_with_the_protocol_touch_nothing() {
    let settings = settings("tricks").await;
    let running = Running::start(&settings, Roles::SERVE).await;
    let sale = running.open_sale(5).await.id;
    let before = state(&running, sale).await;
    let bearer = running.token("ann");
    let path = format!("/api/v1/sales/{sale}/purchases");
    let tricks = [
        "\r\n\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n"),
        format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx"),
        format!("POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\nzz\r\n"),
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {bearer}\u{1}\r\n\r\n"),
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "y".repeat(200_000)),
        "\u{16}\u{3}\u{1}\u{2}\u{0}".to_owned(),
    ];
    for trick in &tricks {
        let mut raw = TcpStream::connect(running.address()).await.expect("a connection");
        // The node may hang up while we still write.
        let _ = raw.write_all(trick.as_bytes()).await;
        let _ = raw.shutdown().await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(30), raw.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "the node neither answers nor hangs up: {trick:?}");
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.starts_with("HTTP/1.1 2") && !answer.starts_with("HTTP/1.1 5"), "{trick:?}: {answer}");
    }
    assert_eq!(state(&running, sale).await, before, "nothing was touched");
    running.stop().await;
}

#[tokio::test]
async fn a_hundred_refusals_travel_over_one_connection() {
    let settings = settings("kept_alive").await;
    let running = Running::start(&settings, Roles::SERVE).await;
    let sale = running.open_sale(1).await.id;
    let mut http = Connection::open(running.address()).await;
    assert_eq!(http.buy(sale, &running.token("winner"), &[]).await.status, 202);
    let bearer = format!("Bearer {}", running.token("loser"));
    let body = format!("{{\"quantity\":1{}}}", " ".repeat(900));
    for _ in 0..100 {
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        // `try_send` would fail on a closed connection: there is only this one.
        let answer = http.send("POST", &format!("/api/v1/sales/{sale}/purchases"), &headers, &body).await;
        assert_problem(&answer, 409, "sold_out", "a loser");
    }
    running.stop().await;
}

/// A key belongs to its user and to its body.
#[tokio::test]
async fn an_idempotency_key_gets_the_same_order_back_and_nobody_elses() {
    let settings = settings("keys").await;
    let running = Running::start(&settings, Roles::ALL).await;
    let sale = running.open_sale_of(NewSale { total: 2, ..new_sale() }).await.id;
    let mut http = Connection::open(running.address()).await;
    let (ann, bob) = (running.token("ann"), running.token("bob"));
    let key = [("idempotency-key", "checkout-1")];
    let first = http.buy(sale, &ann, &key).await;
    assert_eq!(first.status, 202, "{}", first.text);
    let again = http.buy(sale, &ann, &key).await;
    assert_eq!((again.status, again.text.as_str()), (202, first.text.as_str()));
    let bobs = http.buy(sale, &bob, &key).await;
    assert_eq!(bobs.status, 202);
    assert_ne!(bobs.json()["order_id"], first.json()["order_id"], "another user's key is another key");

    let bearer = format!("Bearer {ann}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json"), key[0]];
    let other = http.send("POST", &format!("/api/v1/sales/{sale}/purchases"), &headers, "{\"quantity\":2}").await;
    assert_problem(&other, 422, "idempotency_key_reused", "another body");

    // Sold out by now, and the flag is up: a replay passes it.
    let loser = http.buy(sale, &running.token("cid"), &[]).await;
    assert_problem(&loser, 409, "sold_out", "a loser");
    let replay = http.buy(sale, &ann, &key).await;
    assert_eq!((replay.status, replay.text.as_str()), (202, first.text.as_str()));
    running.settle(sale).await;
    running.stop().await;
}

/// Behind a proxy each client has its own limit, and nobody can pretend to be another.
#[tokio::test]
async fn clients_behind_a_trusted_proxy_have_limits_of_their_own() {
    let mut settings = settings("proxy").await;
    settings.http.trusted_proxies = vec![[127, 0, 0, 1].into()];
    settings.admission.address_per_second = 1;
    settings.admission.address_burst = 2;
    let running = Running::start(&settings, Roles::SERVE).await;
    let sale = running.open_sale(1).await.id;
    let mut http = Connection::open(running.address()).await;
    let mut codes = async |forwarded: &str| {
        let answer = http.buy(sale, &running.token("ann"), &[("x-forwarded-for", forwarded)]).await;
        (answer.status, answer.header("retry-after").map(str::to_owned))
    };
    for _ in 0..2 {
        assert_ne!(codes("203.0.113.1").await.0, 429);
    }
    assert_eq!(codes("203.0.113.1").await, (429, Some("1".to_owned())));
    assert_eq!(codes("198.51.100.7, 203.0.113.1").await.0, 429, "what the client wrote to the left counts for nothing");
    assert_ne!(codes("203.0.113.2").await.0, 429);
    running.stop().await;
}

#[tokio::test]
async fn a_sale_with_a_challenge_sells_only_to_those_who_solved_it() {
    let mut settings = settings("challenge").await;
    settings.admission.challenge_bits = 8;
    let running = Running::start(&settings, Roles::SERVE).await;
    let sale = running.open_sale_of(NewSale { challenge: true, ..new_sale() }).await.id;
    let mut http = Connection::open(running.address()).await;
    let ann = running.token("ann");
    let without = http.buy(sale, &ann, &[]).await;
    assert_problem(&without, 403, "challenge_required", "no token");
    let issued = http.get(&format!("/api/v1/sales/{sale}/challenge"), &ann).await.json();
    let (challenge, bits) =
        (issued["challenge"].as_str().expect("a challenge"), issued["bits"].as_u64().expect("bits"));
    let token = seckill::admission::challenge::solve(challenge, u8::try_from(bits).expect("few bits"));
    let thief = http.buy(sale, &running.token("bob"), &[("x-purchase-token", &token)]).await;
    assert_problem(&thief, 403, "challenge_required", "another user's token");
    let solved = http.buy(sale, &ann, &[("x-purchase-token", &token)]).await;
    assert_eq!(solved.status, 202, "{}", solved.text);
    running.stop().await;
}

#[tokio::test]
async fn a_blocked_user_buys_nothing_until_unblocked() {
    let settings = settings("blocked_by_operator").await;
    let running = Running::start(&settings, Roles::SERVE).await;
    let sale = running.open_sale(1).await.id;
    let mut http = Connection::open(running.address()).await;
    let operator = format!("Bearer {}", running.operator_token());
    let put = http.send("PUT", "/admin/v1/blacklist/ann", &[("authorization", &operator)], "").await;
    assert_eq!(put.status, 204, "{}", put.text);
    let blocked = http.buy(sale, &running.token("ann"), &[]).await;
    assert_problem(&blocked, 403, "blocked", "a blocked user");
    let delete = http.send("DELETE", "/admin/v1/blacklist/ann", &[("authorization", &operator)], "").await;
    assert_eq!(delete.status, 204);
    assert_eq!(http.buy(sale, &running.token("ann"), &[]).await.status, 202);
    running.stop().await;
}
