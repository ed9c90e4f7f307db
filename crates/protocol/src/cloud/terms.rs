//! Renewals of the Lease: the terms that a node has stated in its session, and requests to stay.
//!
//! A Lease proves that the node is alive, not that objects arrive: it does not delay their
//! resending.

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::renewal::Lease;
use crate::renewal::{Feature, LeaseTerms, Renew, Renewal, Stay};

use super::{CloudMachine, Phase};

/// The Lease in the current session of a node.
#[derive(Debug, Default)]
pub(super) struct LeaseSession {
    /// Whether the node has stated its terms.
    has_terms: bool,
    /// Whether the node reads the features of a Welcome, and the frames of later versions.
    reads_features: bool,
    /// Whether the node was asked to stay.
    is_asked_to_stay: bool,
}

impl CloudMachine {
    pub(super) fn lease(&mut self, lease: Lease) {
        if self.phase.session() != Some(&lease.session) {
            return self.refuse_unknown(lease.session);
        }
        self.lease.has_terms = true;
        self.renewed(Renewal::Full(lease));
    }

    pub(super) fn renew(&mut self, renew: Renew) {
        if self.phase.session() != Some(&renew.session) {
            return self.refuse_unknown(renew.session);
        }
        let has_terms = self.lease.has_terms;
        #[cfg(any(test, feature = "simulation"))]
        let has_terms = has_terms || planted(Fault::RenewalWithoutTerms);
        match has_terms {
            true => self.renewed(Renewal::Again),
            false => self.request_terms(),
        }
    }

    fn renewed(&mut self, renewal: Renewal) {
        self.counters.leases += 1;
        self.output.renew(renewal);
    }

    /// Returns the features for the Welcome of a node.
    pub(super) fn features(terms: Option<LeaseTerms>, is_metered: bool) -> Vec<Feature> {
        let of_all = if terms.is_some() { &Feature::ALL[..] } else { &[] };
        of_all.iter().copied().chain(is_metered.then_some(Feature::Metered)).collect()
    }

    /// Applies the terms in the Hello of a node, with its Welcome.
    pub(super) fn begin_lease(&mut self, terms: Option<LeaseTerms>) {
        let Some(terms) = terms else { return };
        (self.lease.has_terms, self.lease.reads_features) = (true, true);
        self.renewed(Renewal::Hello(terms));
    }

    /// Requests a Hello with the terms of the Lease: a renewal repeats terms that are not known
    /// here.
    pub fn request_terms(&mut self) {
        self.end_with_reason("terms of the Lease unknown");
    }

    /// Sets how long the node shall stay connected, in seconds from now on; `None` for as long as
    /// its plan says. Does nothing before the Welcome, and with nodes that know no such request.
    /// Returns whether a frame waits.
    pub fn set_stay(&mut self, seconds: Option<u64>) -> bool {
        let Phase::Live { session, .. } = &self.phase else { return false };
        let is_change = seconds.is_some() || self.lease.is_asked_to_stay;
        let is_asked = is_change && self.lease.reads_features;
        if is_asked {
            self.lease.is_asked_to_stay = seconds.is_some();
            self.output.stay(Stay { session: session.clone(), seconds: seconds.unwrap_or(0) });
        }
        is_asked
    }
}

#[cfg(test)]
mod tests;
