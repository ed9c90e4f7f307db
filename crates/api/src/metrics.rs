//! Metrics of the API and their `/metrics` output. Depends on `object`; reads `/proc` for the
//! process.
//!
//! The text format is written here instead of by a crate: it consists of three kinds of lines,
//! counters are plain atomics that cost nothing between scrapes, and a registry of boxed families
//! would be more code in the edge binary.

use crate::families;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use edgesync_object::Resource;

mod process;
mod text;

pub use text::{MetricsWriter, Type};

/// Maximum number of resources with their own label; all others share `other`.
const MAX_RESOURCES: usize = 128;
/// Label of unknown resources and of those beyond the limit.
const OTHER: &str = "other";
/// Verbs with their own label. The last one stands for all others.
const VERBS: [&str; 9] =
    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", OTHER];
/// Upper bounds of the duration histogram, in seconds.
const BUCKETS: [f64; 7] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0];

/// Counters of one API. All methods are thread-safe.
#[derive(Debug, Default)]
pub(super) struct ApiMetrics {
    /// By group and resource, then by verb and code.
    requests: Mutex<BTreeMap<(String, String), Codes>>,
    verbs: [PerVerb; VERBS.len()],
    watches: AtomicI64,
    watch_events: AtomicU64,
    cuts: [AtomicU64; Cut::ALL.len()],
}

/// Requests by index of the verb and code; bounded by the verbs and codes of this server.
type Codes = BTreeMap<(usize, u16), u64>;

/// Counters of a verb.
#[derive(Debug, Default)]
struct PerVerb {
    /// Requests by duration, in the first bucket that fits; the last one is unbounded.
    buckets: [AtomicU64; BUCKETS.len() + 1],
    nanoseconds: AtomicU64,
    bytes: AtomicU64,
}

/// The cause of ending a watch early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The version that it resumed from was evicted.
    Expired,
    /// The server or its store stopped.
    Closed,
}

impl Cut {
    const ALL: [Self; 2] = [Self::Expired, Self::Closed];

    fn label(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Closed => "closed",
        }
    }
}

/// Counts a watch as open until dropped.
#[derive(Debug)]
pub(super) struct WatchGuard(Arc<ApiMetrics>);

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Relaxed);
    }
}

impl ApiMetrics {
    /// Counts an answered request. `resource` is `None` for kinds that are not served:
    /// client-chosen names get no label of their own. `bytes` is the length of the response body.
    pub(super) fn record_request(
        &self,
        verb: &str,
        resource: Option<&Resource>,
        code: u16,
        duration: Duration,
        bytes: u64,
    ) {
        let verb = verb_index(verb);
        if let Some(counted) = self.verbs.get(verb) {
            let seconds = duration.as_secs_f64();
            let bucket = BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len());
            if let Some(bucket) = counted.buckets.get(bucket) {
                bucket.fetch_add(1, Relaxed);
            }
            let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            counted.nanoseconds.fetch_add(nanoseconds, Relaxed);
            counted.bytes.fetch_add(bytes, Relaxed);
        }
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let other = || (String::new(), OTHER.to_owned());
        let mut key = resource.map_or_else(other, |found| (found.group.clone(), found.plural.clone()));
        if requests.len() >= MAX_RESOURCES && !requests.contains_key(&key) {
            key = other();
        }
        *requests.entry(key).or_default().entry((verb, code)).or_default() += 1;
    }

    /// Counts a watch as open until the guard is dropped.
    #[must_use]
    pub(super) fn watch_opened(self: &Arc<Self>) -> WatchGuard {
        self.watches.fetch_add(1, Relaxed);
        WatchGuard(Arc::clone(self))
    }

    /// Counts events sent to a watch.
    pub(super) fn watch_events(&self, events: u64) {
        self.watch_events.fetch_add(events, Relaxed);
    }

    /// Counts a watch that the server ended.
    pub(super) fn watch_cut(&self, cause: Cut) {
        if let Some(counter) = self.cuts.get(cause as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Writes the metrics of the API and of the process.
    pub(super) fn write(&self, out: &mut MetricsWriter<'_>) {
        self.write_requests(out);
        self.write_durations(out);
        let bytes = self.verbs.iter().map(|counted| counted.bytes.load(Relaxed));
        let cuts = self.cuts.iter().map(|counter| counter.load(Relaxed));
        families! { out;
            Counter edgesync_api_response_bytes_total[verb] = VERBS.iter().zip(bytes),
                "Bytes of response bodies, without watches and without lists that are sent in parts.";
            Gauge edgesync_api_watches = self.watches.load(Relaxed), "Open watches.";
            Counter edgesync_api_watch_events_total = self.watch_events.load(Relaxed),
                "Changes sent to watches, without initial events and bookmarks.";
            Counter edgesync_api_watches_cut_total[cause] = Cut::ALL.map(Cut::label).into_iter().zip(cuts),
                "Watches that the server ended, by cause: expired (too far behind), closed (the program stopped).";
        }
        process::write(out);
    }

    fn write_requests(&self, out: &mut MetricsWriter<'_>) {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = requests.iter().flat_map(|((group, resource), codes)| {
            codes.iter().map(move |((verb, code), count)| {
                let verb = VERBS.get(*verb).copied().unwrap_or(OTHER);
                ([code.to_string(), group.clone(), resource.clone(), verb.to_owned()], *count)
            })
        });
        families! { out;
            Counter edgesync_api_requests_total[code, group, resource, verb] = rows,
                "Answered requests by code, resource and verb; resources beyond the first 128, and paths without a kind, are other.";
        }
    }

    fn write_durations(&self, out: &mut MetricsWriter<'_>) {
        let help = "Time until a request was answered; for lists and watches, until the response began.";
        out.family("edgesync_api_request_duration_seconds", Type::Histogram, help);
        for (verb, counted) in VERBS.iter().zip(&self.verbs) {
            let counts = counted.buckets.iter().map(|bucket| bucket.load(Relaxed));
            let seconds = counted.nanoseconds.load(Relaxed) as f64 / 1e9;
            out.histogram(&[("verb", verb)], &BUCKETS, counts, seconds);
        }
    }
}

fn verb_index(verb: &str) -> usize {
    VERBS.iter().position(|known| *known == verb).unwrap_or(VERBS.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::Scope;

    fn resource(plural: &str) -> Resource {
        Resource {
            group: "example.com".into(),
            version: "v1".into(),
            kind: "Thing".into(),
            plural: plural.into(),
            scope: Scope::Cluster,
        }
    }

    fn text(metrics: &ApiMetrics) -> String {
        let mut out = String::new();
        metrics.write(&mut MetricsWriter::new(&mut out));
        out
    }

    #[test]
    fn requests_are_counted_by_verb_resource_and_code() {
        let metrics = ApiMetrics::default();
        let things = resource("things");
        for (code, bytes) in [(200, 10), (200, 20), (404, 5)] {
            metrics.record_request("get", Some(&things), code, Duration::from_millis(3), bytes);
        }
        metrics.record_request("connect", None, 405, Duration::from_secs(60), 0);
        let text = text(&metrics);
        for line in [
            "edgesync_api_requests_total{code=\"200\",group=\"example.com\",resource=\"things\",verb=\"get\"} 2",
            "edgesync_api_requests_total{code=\"404\",group=\"example.com\",resource=\"things\",verb=\"get\"} 1",
            "edgesync_api_requests_total{code=\"405\",group=\"\",resource=\"other\",verb=\"other\"} 1",
            "edgesync_api_response_bytes_total{verb=\"get\"} 35",
            "edgesync_api_request_duration_seconds_bucket{verb=\"get\",le=\"0.001\"} 0",
            "edgesync_api_request_duration_seconds_bucket{verb=\"get\",le=\"0.005\"} 3",
            "edgesync_api_request_duration_seconds_bucket{verb=\"get\",le=\"+Inf\"} 3",
            "edgesync_api_request_duration_seconds_bucket{verb=\"other\",le=\"10\"} 0",
            "edgesync_api_request_duration_seconds_count{verb=\"other\"} 1",
            "edgesync_api_request_duration_seconds_sum{verb=\"other\"} 60",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn metrics_have_name_type_help_and_labels() {
        let metrics = Arc::new(ApiMetrics::default());
        metrics.record_request("list", Some(&resource("things")), 200, Duration::from_millis(250), 77);
        metrics.record_request("get", None, 404, Duration::from_micros(500), 5);
        let _open = metrics.watch_opened();
        metrics.watch_events(6);
        metrics.watch_cut(Cut::Closed);
        let text = text(&metrics);
        let (of_api, _) = text.split_once("# HELP process_").unwrap_or((&text, ""));
        assert_eq!(of_api, include_str!("../../../tests/fixtures/metrics/api.txt"));
    }

    #[test]
    fn number_of_labels_is_bounded() {
        let metrics = ApiMetrics::default();
        for number in 0..10 * MAX_RESOURCES {
            metrics.record_request("get", Some(&resource(&format!("r{number}"))), 200, Duration::ZERO, 1);
        }
        let text = text(&metrics);
        let series = text.lines().filter(|line| line.starts_with("edgesync_api_requests_total{")).count();
        assert_eq!(series, MAX_RESOURCES + 1);
        let other = 10 * MAX_RESOURCES - MAX_RESOURCES;
        assert!(text.contains(&format!("resource=\"other\",verb=\"get\"}} {other}\n")), "{text}");
    }

    #[test]
    fn watch_counts_as_open_until_its_guard_drops() {
        let metrics = Arc::new(ApiMetrics::default());
        let (first, second) = (metrics.watch_opened(), metrics.watch_opened());
        assert!(text(&metrics).contains("edgesync_api_watches 2\n"));
        drop(first);
        metrics.watch_events(5);
        metrics.watch_cut(Cut::Expired);
        let after = text(&metrics);
        assert!(after.contains("edgesync_api_watches 1\n"));
        assert!(after.contains("edgesync_api_watch_events_total 5\n"));
        assert!(after.contains("edgesync_api_watches_cut_total{cause=\"expired\"} 1\n"));
        drop(second);
        assert!(text(&metrics).contains("edgesync_api_watches 0\n"));
    }
}
