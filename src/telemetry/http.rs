//! What the HTTP layer counts.
//!
//! Routes and problem codes are `&'static str`: they come from the code, so no request can invent a label. Requests
//! that match no route are counted under one name, [`UNMATCHED`].

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};

/// The route of every path that is none of ours.
pub const UNMATCHED: &str = "unmatched";

/// The code of an answer that is no problem.
const FINE: &str = "none";

/// Seconds. A loser is answered within the first two, a winner within the next ones; whatever is above 1 is a fault.
const BUCKETS: [f64; 14] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];

crate::metrics! {
    /// Metrics of all routes of a node.
    pub struct Http {
        /// Answered requests by route, class of status and problem code.
        requests: IntCounterVec["route", "status", "code"] = "seckill_http_requests_total",
        /// Time from the request's head to its answer.
        seconds: HistogramVec["route"](&BUCKETS) = "seckill_http_request_seconds",
        /// Requests that are being answered.
        in_flight: IntGauge = "seckill_http_in_flight_requests",
    }
}

impl Http {
    /// The handles of one route: resolve once, at start-up, and keep.
    pub fn route(&self, name: &'static str) -> Route {
        Route {
            name,
            fine: self.requests.with_label_values(&[name, "2xx", FINE]),
            seconds: self.seconds.with_label_values(&[name]),
            http: self.clone(),
        }
    }
}

/// Metrics of one route.
#[derive(Clone)]
pub struct Route {
    name: &'static str,
    fine: IntCounter,
    seconds: Histogram,
    http: Http,
}

impl Route {
    /// Counts one request as being answered until the returned value is dropped.
    #[must_use]
    pub fn enter(&self) -> InFlight {
        self.http.in_flight.inc();
        InFlight(self.http.in_flight.clone())
    }

    /// The counter of a problem's code: resolve once and keep, for a look-up by labels is dearer than a refusal.
    pub fn counter(&self, status: u16, code: &'static str) -> IntCounter {
        self.http.requests.with_label_values(&[self.name, class(status), code])
    }

    /// Counts one answer, by its problem's counter if it is one.
    pub fn answered(&self, status: u16, problem: Option<&IntCounter>, took: Duration) {
        self.seconds.observe(took.as_secs_f64());
        match (problem, status) {
            (Some(problem), _) => problem.inc(),
            (None, 200..=299) => self.fine.inc(),
            (None, _) => self.counter(status, FINE).inc(),
        }
    }
}

/// A request that is being answered.
pub struct InFlight(IntGauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

const fn class(status: u16) -> &'static str {
    match status {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::telemetry::render;

    #[test]
    fn answers_are_counted_by_route_class_and_code() {
        let registry = Registry::new();
        let http = Http::registered(&registry).expect("metrics");
        let purchase = http.route("purchase");
        purchase.answered(202, None, Duration::from_millis(3));
        let sold_out = purchase.counter(409, "sold_out");
        purchase.answered(409, Some(&sold_out), Duration::from_micros(90));
        purchase.answered(409, Some(&sold_out), Duration::from_micros(90));
        let unmatched = http.route(UNMATCHED);
        unmatched.answered(404, Some(&unmatched.counter(404, "not_found")), Duration::ZERO);

        let text = render(&registry).expect("text");
        for line in [
            r#"seckill_http_requests_total{code="none",route="purchase",status="2xx"} 1"#,
            r#"seckill_http_requests_total{code="sold_out",route="purchase",status="4xx"} 2"#,
            r#"seckill_http_requests_total{code="not_found",route="unmatched",status="4xx"} 1"#,
            r#"seckill_http_request_seconds_bucket{route="purchase",le="0.0001"} 2"#,
            r#"seckill_http_request_seconds_count{route="purchase"} 3"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn a_request_is_in_flight_until_it_is_dropped_however_it_ends() {
        let http = Http::registered(&Registry::new()).expect("metrics");
        let one = http.route("purchase").enter();
        let two = http.route("order").enter();
        assert_eq!(http.in_flight.get(), 2);
        drop((one, two));
        assert_eq!(http.in_flight.get(), 0);
    }

    #[test]
    fn registering_twice_is_an_error_and_not_a_panic() {
        let registry = Registry::new();
        assert!(Http::registered(&registry).is_ok());
        assert!(Http::registered(&registry).is_err());
    }
}
