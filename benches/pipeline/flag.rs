//! What a buyer costs a node once the sale is sold out: over HTTP, and by its parts.

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use actix_web::http::StatusCode;
use actix_web::{App, HttpResponse, HttpServer, web};
use anyhow::Context;
use seckill::admission::identity::Verifier;
use seckill::admission::{Admission, Caller};
use seckill::app::{Roles, Service};
use seckill::catalogue::SaleChange;
use seckill::config::Settings;
use seckill::domain::{SaleId, SaleState, UserId};
use seckill::sandbox::Sandbox;
use seckill::shutdown::Stop;
use seckill::sold_out::Flags;
use tokio::sync::mpsc;

use super::figures::Report;
use super::{load, shop};

const NO_OP: &str = "no-op handler";
const CONNECTIONS: usize = 64;
const WORKERS: usize = 2;
const TIME: Duration = Duration::from_secs(2);
const CALLS: u32 = 200_000;

/// What the node answers, byte for byte.
const SOLD_OUT: &str =
    r#"{"type":"urn:seckill:problem:sold_out","title":"Nothing is left","status":409,"code":"sold_out"}"#;

pub async fn measure(sandbox: &Sandbox, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut settings = shop::settings(sandbox, "bench_flag").await?;
    settings.http.workers = WORKERS;
    settings.http.trusted_proxies = vec![IpAddr::from([127, 0, 0, 1])];
    let stop = Stop::new();
    let service = Service::start(&settings, Roles::SERVE, &stop).await?;
    let node = service.http.context("the node does not serve")?;
    let no_op = no_op()?;

    let sale = service.operator.create(shop::new_sale(1)).await?.id;
    let open = SaleChange { state: Some(SaleState::Open), ..SaleChange::default() };
    service.operator.change(sale, open).await?;
    let verifier = Verifier::new(&settings.auth.jwt_secret)?;
    let requests: Vec<_> = (0..CONNECTIONS).map(|n| request(&verifier, sale, n)).collect::<Result<_, _>>()?;
    // The first buyer takes the only unit and the second raises the flag.
    load::answers_per_second(node, &requests[..1], 202, Duration::ZERO).await?;
    load::answers_per_second(node, &requests[1..2], 409, Duration::ZERO).await?;

    for _ in 0..rounds {
        let base = load::answers_per_second(no_op, &requests[1..], 409, TIME).await?;
        report.note(NO_OP, "answers/s", base);
        let answers = load::answers_per_second(node, &requests[1..], 409, TIME).await?;
        report.note_against(NO_OP, "sold-out answers", "answers/s", answers);
        parts(&settings, &verifier, sale, report)?;
    }
    stop.request();
    let (_signal, signals) = mpsc::channel(1);
    stop.run(signals, Duration::ZERO, Duration::from_secs(10)).await;
    Ok(())
}

fn request(verifier: &Verifier, sale: SaleId, n: usize) -> anyhow::Result<Vec<u8>> {
    let token = verifier.sign(&format!("buyer-{n}").parse()?, Duration::from_secs(3600), false)?;
    let request = format!(
        "POST /api/v1/sales/{sale}/purchases HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         x-forwarded-for: 10.0.0.{n}\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n{{\"quantity\":1}}"
    );
    Ok(request.into_bytes())
}

/// The same framework, workers, request and answer, and nothing in between.
fn no_op() -> anyhow::Result<SocketAddr> {
    async fn answer(_body: web::Bytes) -> HttpResponse {
        HttpResponse::build(StatusCode::CONFLICT).content_type("application/problem+json").body(SOLD_OUT)
    }
    let application = || App::new().route("/api/v1/sales/{sale}/purchases", web::post().to(answer));
    let server = HttpServer::new(application).workers(WORKERS).disable_signals().bind("127.0.0.1:0")?;
    let address = server.addrs().first().copied().context("no address was bound")?;
    // Ends with the program.
    tokio::spawn(server.run());
    Ok(address)
}

/// Nanoseconds of each step that a loser takes, one call after the other on one thread.
fn parts(settings: &Settings, verifier: &Verifier, sale: SaleId, report: &mut Report) -> anyhow::Result<()> {
    let flags = Flags::default();
    report.note("read the flag", "ns", nanoseconds(|_| flags.of(sale).is_raised()));

    let users: Vec<UserId> = (0..10_000).map(|n| format!("buyer-{n}").parse()).collect::<Result<_, _>>()?;
    let header = format!("Bearer {}", verifier.sign(&users[0], Duration::from_secs(3600), false)?);
    report.note("verify the token", "ns", nanoseconds(|_| verifier.verify(Some(&header)).is_ok()));

    let registry = prometheus::Registry::new();
    let admission = Admission::new(&settings.admission, &settings.http, &settings.auth.jwt_secret, &registry)?;
    let peer = IpAddr::from([127, 0, 0, 1]);
    let admit = |n: u32| {
        let user = &users[n as usize % users.len()];
        let address = admission.client_address(peer, std::iter::once("10.1.2.3"));
        admission.admit(&Caller { user, address, blocked: false, proof: None }).is_ok()
    };
    report.note("admit", "ns", nanoseconds(admit));
    Ok(())
}

fn nanoseconds(call: impl Fn(u32) -> bool) -> f64 {
    let begin = Instant::now();
    for n in 0..CALLS {
        black_box(call(black_box(n)));
    }
    begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
}
