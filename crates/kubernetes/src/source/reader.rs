//! Reads the objects of the cluster: their changes, their bodies, and the problems of rules.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use super::intake::{Intake, OtherSources, Problems};
use super::mark;
use crate::cache::Cache;
use crate::cluster::{Cause, Cluster, Feed, Interest, Origin, Problem};
use edgesync_fleet::config::{Config, Kubernetes as Options};
use edgesync_fleet::reasons::PlacementReason;
use edgesync_fleet::source::{Result, RuleProblem};
use edgesync_object::{OmittedFields, ResourceVersion, Target};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Loaded;

/// Reads objects by the interests of the configuration.
pub(super) struct Reader {
    cluster: Cluster,
    cache: Cache,
    interests: Vec<Interest>,
    /// The namespaces of edgesync itself.
    reserved: Vec<Arc<str>>,
    /// Problems of all interests; [`Intake`] replaces them as a whole.
    problems: Problems,
}

impl Reader {
    pub(super) fn new(config: &Config, cluster: Cluster, cache: Cache) -> Self {
        let reserved = config.reserved_namespaces();
        Self { cluster, cache, interests: interests(config), reserved, problems: Problems::default() }
    }

    /// Starts the stream of changes.
    pub(super) fn follow(&self, others: OtherSources) -> Intake {
        let feed = Feed::new(self.cluster.clone(), self.interests.clone(), self.reserved.clone());
        Intake::new(feed, self.cache.clone(), Arc::clone(&self.problems), others)
    }

    /// Returns the bodies of objects, without unknown ones.
    ///
    /// # Errors
    /// Those of the cache.
    pub(super) async fn bodies(&self, uids: Vec<Uid>, left_out: OmittedFields) -> Result<Vec<Loaded>> {
        Ok(self.cache.bodies(uids, left_out).await?)
    }

    /// Returns earlier versions of objects, as far as the cache has them.
    ///
    /// # Errors
    /// Those of the cache.
    pub(super) async fn bases(
        &self,
        wanted: Vec<(Uid, ResourceVersion)>,
        left_out: OmittedFields,
    ) -> Result<Vec<(Uid, ResourceVersion, String)>> {
        Ok(self.cache.bases(wanted, left_out).await?)
    }

    /// Returns the problems of a rule, without duplicates: several watches of a kind have the same
    /// one.
    pub(super) fn rule_problems(&self, rule: &Uid) -> Vec<RuleProblem> {
        let problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        problems_of(&problems, rule)
    }

    /// Drains the queue of the cache and closes its file.
    pub(super) async fn close(&self) {
        self.cache.close().await;
    }
}

/// Returns the interests that the configuration and the fleet itself give.
fn interests(config: &Config) -> Vec<Interest> {
    let Options { labelled, annotated, pods, .. } = &config.kubernetes;
    let mut interests: Vec<Interest> = Interest::fleet(mark::selector().parse().unwrap_or_default()).into();
    let rules = config.placement.rules.iter().map(|configured| &configured.rule.objects).enumerate();
    interests
        .extend(rules.map(|(number, objects)| Interest::rule(Origin::Configured(number), objects.clone())));
    if !labelled.is_empty() {
        interests.push(Interest::labelled(labelled.clone()));
    }
    if !annotated.is_empty() {
        interests.push(Interest::annotated(annotated.clone()));
    }
    for namespace in pods {
        interests.push(Interest::pods(namespace.clone()));
        for target in [Target::ConfigMap, Target::Secret] {
            interests.push(Interest::referred(target, namespace.clone()));
        }
    }
    interests
}

fn problems_of(problems: &[Problem], rule: &Uid) -> Vec<RuleProblem> {
    let is_its = |problem: &&Problem| matches!(&problem.origin, Origin::Rule(uid) if uid == rule);
    let by_message: BTreeMap<String, RuleProblem> = problems
        .iter()
        .filter(is_its)
        .map(rule_problem)
        .map(|problem| (problem.message.clone(), problem))
        .collect();
    by_message.into_values().collect()
}

/// Maps a problem of a rule to a problem in its status.
fn rule_problem(problem: &Problem) -> RuleProblem {
    let (reason, hides) = match &problem.cause {
        Cause::Unserved => (PlacementReason::KindUnknown, false),
        Cause::Reserved => (PlacementReason::NamespaceReserved, false),
        Cause::Refused(_) => (PlacementReason::Forbidden, true),
        Cause::TooMany => (PlacementReason::TooManyWatches, true),
        Cause::Undiscovered | Cause::Broken(_) => (PlacementReason::Unreadable, true),
    };
    RuleProblem { reason, message: format!("{}: {}", problem.kind, problem.cause), hides }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_each_of_its_problems_once() {
        let problem = |rule: &str, cause: Cause| Problem {
            origin: Origin::Rule(rule.into()),
            kind: "secrets".to_owned(),
            cause,
        };
        let refused = || Cause::Refused("no".to_owned());
        let all = [
            problem("u1", refused()),
            problem("u1", refused()),
            problem("u1", Cause::TooMany),
            problem("u2", Cause::Unserved),
        ];
        let reasons = |rule: &str| -> Vec<_> {
            let problems = problems_of(&all, &rule.into());
            problems.into_iter().map(|problem| (problem.reason, problem.hides)).collect()
        };
        assert_eq!(
            reasons("u1"),
            [(PlacementReason::TooManyWatches, true), (PlacementReason::Forbidden, true)]
        );
        assert_eq!(reasons("u2"), [(PlacementReason::KindUnknown, false)]);
        assert_eq!(reasons("u3"), []);
    }
}
