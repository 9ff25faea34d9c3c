//! A whole service in the test's own process: node, relay and consumer on the shared servers.

use std::net::SocketAddr;
use std::time::Duration;

use seckill::admission::identity::Verifier;
use seckill::app::{Roles, Service};
use seckill::catalogue::{NewSale, SaleChange};
use seckill::config::Settings;
use seckill::domain::{Sale, SaleId, SaleState};
use seckill::promises::{CheckResult, Finding};
use seckill::shutdown::{Stop, Stopped};
use seckill::{app, kafka, ledger};
use tokio::sync::mpsc;

use super::fixtures::new_sale;
use super::servers::{number_sales_apart, shared_settings};
use super::wait_until;

/// Long enough for a loaded machine; reached only by broken code.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Running {
    pub settings: Settings,
    pub service: Service,
    pub stop: Stop,
}

/// Settings for the service `name` on the shared servers, with schema and topics in place and limits out of the way.
pub async fn settings(name: &str) -> Settings {
    prepared(shared_settings(name).await).await
}

/// Brings schema and topics up to date, and lifts the limits.
pub async fn prepared(mut settings: Settings) -> Settings {
    let ledger = app::ledger(&settings).await.expect("PostgreSQL answers");
    ledger::migrate(ledger.pool()).await.expect("migrations");
    number_sales_apart(ledger.pool()).await;
    kafka::topics::ensure(&settings.kafka).await.expect("topics");
    settings.admission.address_per_second = 1_000_000;
    settings.admission.address_burst = 1_000_000;
    settings.admission.user_per_second = 1_000_000;
    settings.admission.user_burst = 1_000_000;
    settings.http.workers = 2;
    settings
}

impl Running {
    pub async fn start(settings: &Settings, roles: Roles) -> Self {
        let stop = Stop::new();
        let service = Service::start(settings, roles, &stop).await.expect("the service starts");
        stop.set_ready();
        Self { settings: settings.clone(), service, stop }
    }

    /// No role: an operator and observer, straight to the stores.
    pub async fn observe(settings: &Settings) -> Self {
        let stop = Stop::new();
        let service = Service::start(settings, Roles::OBSERVE, &stop).await.expect("the stores answer");
        Self { settings: settings.clone(), service, stop }
    }

    pub fn address(&self) -> SocketAddr {
        self.service.http.expect("the service serves")
    }

    pub fn token(&self, user: &str) -> String {
        self.sign(user, false)
    }

    pub fn operator_token(&self) -> String {
        self.sign("operator", true)
    }

    fn sign(&self, user: &str, operator: bool) -> String {
        let verifier = Verifier::new(&self.settings.auth.jwt_secret).expect("a secret");
        let user = user.parse().expect("a user id");
        verifier.sign(&user, Duration::from_secs(3600), operator).expect("a token")
    }

    /// A sale of `total` units that is open now.
    pub async fn open_sale(&self, total: u32) -> Sale {
        self.open_sale_of(NewSale { total, ..new_sale() }).await
    }

    pub async fn open_sale_of(&self, new: NewSale) -> Sale {
        let sale = self.service.operator.create(new).await.expect("a sale");
        let open = SaleChange { state: Some(SaleState::Open), ..SaleChange::default() };
        self.service.operator.change(sale.id, open).await.expect("an open sale")
    }

    /// Waits until nothing is on its way, then checks that no promise is broken.
    pub async fn settle(&self, sale: SaleId) -> Vec<Finding> {
        wait_until("the sale settles", PATIENCE, || self.is_settled(sale)).await;
        let findings = self.service.operator.audit(sale).await.expect("an audit");
        let broken: Vec<_> = findings.iter().filter(|finding| finding.holds == CheckResult::Broken).collect();
        assert!(broken.is_empty(), "{broken:#?}");
        findings
    }

    async fn is_settled(&self, sale: SaleId) -> bool {
        let findings = self.service.operator.audit(sale).await.unwrap_or_default();
        let agreement = findings.iter().find(|finding| finding.name == "agreement");
        agreement.is_some_and(|finding| finding.holds == CheckResult::Holds)
    }

    pub async fn stop(self) -> Stopped {
        let (_signal, signals) = mpsc::channel(1);
        self.stop.request();
        self.stop.run(signals, Duration::ZERO, PATIENCE).await
    }
}
