//! Routes under `/edgesync/v1/`: servers match requests, clients format paths.

use edgesync_object::encoding::percent;

/// Prefix of all paths.
pub const PREFIX: &str = "/edgesync/v1/";

/// The HTTP method of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
}

impl Method {
    /// Returns the method as in HTTP.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
        }
    }
}

/// A change of a node by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// Releases the removals held back on the node.
    ConfirmDeletions,
    /// Removes the node from the fleet.
    Remove,
    /// Readmits a removed node.
    Admit,
    /// Revokes the node's certificates.
    Revoke,
    /// Revokes and removes the node, and frees its name.
    Forget,
}

impl NodeAction {
    pub const ALL: [Self; 5] =
        [Self::ConfirmDeletions, Self::Remove, Self::Admit, Self::Revoke, Self::Forget];

    /// Returns the last segment of the path.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConfirmDeletions => "confirm-deletions",
            Self::Remove => "remove",
            Self::Admit => "admit",
            Self::Revoke => "revoke",
            Self::Forget => "forget",
        }
    }

    /// Returns whether the browser page offers the action: reversible ones only.
    #[must_use]
    pub const fn is_on_page(self) -> bool {
        matches!(self, Self::ConfirmDeletions | Self::Remove | Self::Admit)
    }
}

/// The subject of a roll-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutSubject<'a> {
    /// An object, by UID.
    Object(&'a str),
    /// A rule object, by UID.
    Placement(&'a str),
    /// A rule of the configuration, by its number from 1.
    Configured(&'a str),
}

/// A method with a path. Names are decoded here and encoded by [`Route::path`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// Agent and cloud: the served kinds.
    Resources,
    /// Agent: its status, conditions and counters in one document.
    Status,
    /// Agent: bytes and messages of its link.
    Traffic,
    /// Agent: file rules and their objects.
    Files,
    /// Agent: dry run of the file rules.
    CheckFiles,
    /// Agent: applies one file rule.
    ApplyFiles(&'a str),
    /// Agent: checks the database and compares with the cloud.
    Verify,
    /// Agent: rotates the keys of sealed objects.
    RotateSeal,
    /// Agent: connects now, before the next planned check-in.
    Sync,
    /// Cloud: one row per node, optionally followed by changes.
    Summary,
    /// Cloud: the last hour of the fleet.
    SummaryHistory,
    /// Cloud: all nodes, also those that only joined or were removed.
    Nodes,
    /// Cloud: one node in full.
    Node(&'a str),
    /// Cloud: the last hour of a node.
    NodeHistory(&'a str),
    /// Cloud: the objects of a node.
    NodeObjects(&'a str),
    /// Cloud: explains why an object is or is not on a node.
    Placement(&'a str),
    /// Cloud: changes a node.
    ChangeNode(&'a str, NodeAction),
    /// Cloud: objects of all nodes.
    Objects,
    /// Cloud: labels of nodes.
    Labels,
    /// Cloud: all placement rules.
    Rollouts,
    /// Cloud: progress of an object or a rule.
    Rollout(RolloutSubject<'a>),
    /// Cloud: status of the roll-out of a rule, by `NAME` or `NAMESPACE/NAME`.
    RolloutStatus(&'a str),
    /// Cloud: moves the roll-out of a rule.
    MoveRollout(&'a str),
    /// Cloud: usable tokens, and those that ended within the last week.
    Tokens,
    /// Cloud: creates a token.
    CreateToken,
    /// Cloud: revokes a token, by its id.
    RevokeToken(&'a str),
    /// Cloud: all operator certificates.
    Operators,
    /// Cloud: creates an operator certificate.
    CreateOperator,
    /// Cloud: revokes certificates, by operator name or by serial number.
    RevokeOperators(&'a str),
    /// Cloud: generates configuration files for a broker.
    BrokerConfig,
    /// Cloud: creates a key for the page.
    Page,
    /// Cloud: revokes all keys of the page.
    RevokePageKeys,
}

impl<'a> Route<'a> {
    /// Matches a method and the decoded path after [`PREFIX`]; `None` if no program serves it.
    #[must_use]
    pub fn parse(method: &str, path: &'a str) -> Option<Self> {
        let segments: Vec<&str> = path.split('/').collect();
        Some(match (method, segments.as_slice()) {
            ("GET", ["resources"]) => Self::Resources,
            ("GET", ["status"]) => Self::Status,
            ("GET", ["traffic"]) => Self::Traffic,
            ("GET", ["files"]) => Self::Files,
            ("GET", ["files", "check"]) => Self::CheckFiles,
            ("POST", ["files", "apply", rule]) => Self::ApplyFiles(rule),
            ("POST", ["verify"]) => Self::Verify,
            ("POST", ["seal", "rotate"]) => Self::RotateSeal,
            ("POST", ["sync"]) => Self::Sync,
            ("GET", ["summary"]) => Self::Summary,
            ("GET", ["summary", "history"]) => Self::SummaryHistory,
            ("GET", ["nodes"]) => Self::Nodes,
            ("GET", ["nodes", node]) => Self::Node(node),
            ("GET", ["nodes", node, "history"]) => Self::NodeHistory(node),
            ("GET", ["nodes", node, "objects"]) => Self::NodeObjects(node),
            ("GET", ["nodes", node, "placement"]) => Self::Placement(node),
            ("POST", ["nodes", node, action]) => {
                Self::ChangeNode(node, NodeAction::ALL.into_iter().find(|one| one.name() == *action)?)
            }
            ("GET", ["objects"]) => Self::Objects,
            ("GET", ["labels"]) => Self::Labels,
            ("GET", ["rollouts"]) => Self::Rollouts,
            ("GET", ["rollouts", "objects", uid]) => Self::Rollout(RolloutSubject::Object(uid)),
            ("GET", ["rollouts", "placements", uid]) => Self::Rollout(RolloutSubject::Placement(uid)),
            ("GET", ["rollouts", "configured", number]) => Self::Rollout(RolloutSubject::Configured(number)),
            ("GET", ["rollouts", "rules", ..]) if segments.len() > 2 => {
                Self::RolloutStatus(path.strip_prefix("rollouts/rules/")?)
            }
            ("POST", ["rollouts", "rules", ..]) if segments.len() > 2 => {
                Self::MoveRollout(path.strip_prefix("rollouts/rules/")?)
            }
            ("GET", ["tokens"]) => Self::Tokens,
            ("POST", ["tokens"]) => Self::CreateToken,
            ("POST", ["tokens", id, "revoke"]) => Self::RevokeToken(id),
            ("GET", ["operators"]) => Self::Operators,
            ("POST", ["operators"]) => Self::CreateOperator,
            ("POST", ["operators", which, "revoke"]) => Self::RevokeOperators(which),
            ("POST", ["broker-config"]) => Self::BrokerConfig,
            ("POST", ["page"]) => Self::Page,
            ("POST", ["page", "revoke"]) => Self::RevokePageKeys,
            _ => return None,
        })
    }

    /// Returns whether the page sends the request to change something.
    #[must_use]
    pub const fn is_action_of_the_page(&self) -> bool {
        match self {
            Self::ChangeNode(_, action) => action.is_on_page(),
            Self::MoveRollout(_) => true,
            _ => false,
        }
    }

    /// Returns whether the request is about tokens or operators.
    #[must_use]
    pub const fn is_enrollment(&self) -> bool {
        matches!(
            self,
            Self::Tokens
                | Self::CreateToken
                | Self::RevokeToken(_)
                | Self::Operators
                | Self::CreateOperator
                | Self::RevokeOperators(_)
        )
    }

    #[must_use]
    pub fn method(&self) -> Method {
        self.parts().0
    }

    /// Returns the whole path, with encoded names.
    #[must_use]
    pub fn path(&self) -> String {
        let (_, segments) = self.parts();
        let mut path = PREFIX.trim_end_matches('/').to_owned();
        for segment in segments {
            path.push('/');
            path.push_str(&percent(segment));
        }
        path
    }

    fn parts(&self) -> (Method, Vec<&'a str>) {
        use Method::{Get, Post};
        match *self {
            Self::Resources => (Get, vec!["resources"]),
            Self::Status => (Get, vec!["status"]),
            Self::Traffic => (Get, vec!["traffic"]),
            Self::Files => (Get, vec!["files"]),
            Self::CheckFiles => (Get, vec!["files", "check"]),
            Self::ApplyFiles(rule) => (Post, vec!["files", "apply", rule]),
            Self::Verify => (Post, vec!["verify"]),
            Self::RotateSeal => (Post, vec!["seal", "rotate"]),
            Self::Sync => (Post, vec!["sync"]),
            Self::Summary => (Get, vec!["summary"]),
            Self::SummaryHistory => (Get, vec!["summary", "history"]),
            Self::Nodes => (Get, vec!["nodes"]),
            Self::Node(node) => (Get, vec!["nodes", node]),
            Self::NodeHistory(node) => (Get, vec!["nodes", node, "history"]),
            Self::NodeObjects(node) => (Get, vec!["nodes", node, "objects"]),
            Self::Placement(node) => (Get, vec!["nodes", node, "placement"]),
            Self::ChangeNode(node, action) => (Post, vec!["nodes", node, action.name()]),
            Self::Objects => (Get, vec!["objects"]),
            Self::Labels => (Get, vec!["labels"]),
            Self::Rollouts => (Get, vec!["rollouts"]),
            Self::Rollout(RolloutSubject::Object(uid)) => (Get, vec!["rollouts", "objects", uid]),
            Self::Rollout(RolloutSubject::Placement(uid)) => (Get, vec!["rollouts", "placements", uid]),
            Self::Rollout(RolloutSubject::Configured(number)) => {
                (Get, vec!["rollouts", "configured", number])
            }
            Self::RolloutStatus(rule) => (Get, vec!["rollouts", "rules", rule]),
            Self::MoveRollout(rule) => (Post, vec!["rollouts", "rules", rule]),
            Self::Tokens => (Get, vec!["tokens"]),
            Self::CreateToken => (Post, vec!["tokens"]),
            Self::RevokeToken(id) => (Post, vec!["tokens", id, "revoke"]),
            Self::Operators => (Get, vec!["operators"]),
            Self::CreateOperator => (Post, vec!["operators"]),
            Self::RevokeOperators(which) => (Post, vec!["operators", which, "revoke"]),
            Self::BrokerConfig => (Post, vec!["broker-config"]),
            Self::Page => (Post, vec!["page"]),
            Self::RevokePageKeys => (Post, vec!["page", "revoke"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All routes. The exhaustive match breaks the build when one is missing.
    fn all() -> Vec<Route<'static>> {
        let mut all = vec![
            Route::Resources,
            Route::Status,
            Route::Traffic,
            Route::Files,
            Route::CheckFiles,
            Route::ApplyFiles("nginx"),
            Route::Verify,
            Route::RotateSeal,
            Route::Sync,
            Route::Summary,
            Route::SummaryHistory,
            Route::Nodes,
            Route::Node("a"),
            Route::NodeHistory("a"),
            Route::NodeObjects("a"),
            Route::Placement("a"),
            Route::Objects,
            Route::Labels,
            Route::Rollouts,
            Route::Rollout(RolloutSubject::Object("u")),
            Route::Rollout(RolloutSubject::Placement("u")),
            Route::Rollout(RolloutSubject::Configured("1")),
            Route::RolloutStatus("config"),
            Route::MoveRollout("config"),
            Route::Tokens,
            Route::CreateToken,
            Route::RevokeToken("t"),
            Route::Operators,
            Route::CreateOperator,
            Route::RevokeOperators("ada"),
            Route::BrokerConfig,
            Route::Page,
            Route::RevokePageKeys,
        ];
        all.extend(NodeAction::ALL.map(|action| Route::ChangeNode("a", action)));
        all
    }

    #[test]
    fn formatted_path_matches_the_same_route() {
        for route in all() {
            let path = route.path();
            let rest = path.strip_prefix(PREFIX).unwrap();
            assert_eq!(Route::parse(route.method().as_str(), rest), Some(route), "{path}");
        }
    }

    #[test]
    fn tokens_and_operators_are_the_matter_of_enrollment() {
        for route in all() {
            let path = route.path();
            let expected = path.contains("/tokens") || path.contains("/operators");
            assert_eq!(route.is_enrollment(), expected, "{path}");
        }
    }

    #[test]
    fn routes_have_distinct_methods_and_paths() {
        let mut seen: Vec<_> = all().iter().map(|route| (route.method().as_str(), route.path())).collect();
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }

    #[test]
    fn names_are_encoded_and_unknown_paths_are_no_route() {
        assert_eq!(Route::Status.path(), "/edgesync/v1/status");
        assert_eq!(Route::Node("a/b ü").path(), "/edgesync/v1/nodes/a%2Fb%20%C3%BC");
        let forget = Route::ChangeNode("edge-1", NodeAction::Forget);
        assert_eq!(forget.path(), "/edgesync/v1/nodes/edge-1/forget");
        for (method, path) in [
            ("POST", "status"),
            ("GET", "verify"),
            ("GET", ""),
            ("GET", "nodes/a/b"),
            ("POST", "nodes/a/history"),
            ("DELETE", "nodes/a"),
            ("GET", "status/"),
        ] {
            assert_eq!(Route::parse(method, path), None, "{method} {path}");
        }
    }
}
