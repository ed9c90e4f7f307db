//! Hides messages of nodes that may quote a Secret from callers who may not read Secrets.
//!
//! A program that checks or loads files reads all files of its rule, and its output may quote any
//! line of them. So a message about a ConfigMap quotes Secrets too, if the rule has some.

use std::collections::{HashMap, HashSet};

use edgesync_admin::agent::RejectedObject;
use edgesync_cloud_store::InEffect;
use edgesync_object::ObjectRef;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Record;
use edgesync_protocol::upload::EffectState;

/// Text that replaces a hidden message.
const HIDDEN: &str = "hidden: it may quote a Secret, which the role 'view' may not read";

/// Hides the messages of all rules that concern a Secret, or an object of unknown kind. `effects`
/// are all of a node, also those without a message.
pub(super) fn hide_effects(effects: &mut [InEffect], records: &HashMap<Uid, Record>) {
    let may_be_secret =
        |effect: &&InEffect| is_secret(records.get(&effect.uid).map(|record| &*record.object));
    let rules: HashSet<String> =
        effects.iter().filter(may_be_secret).map(|effect| effect.rule.clone()).collect();
    // No program has written what an object waits for.
    let written = |effect: &&mut InEffect| effect.state != EffectState::Waiting;
    for effect in effects.iter_mut().filter(|effect| rules.contains(&effect.rule)).filter(written) {
        hide(&mut effect.message);
    }
}

/// Hides why a node has rejected a Secret, or an object of unknown kind.
pub(super) fn hide_rejections(rejected: &mut [RejectedObject]) {
    for rejected in rejected.iter_mut().filter(|rejected| is_secret(rejected.object.as_ref())) {
        hide(&mut rejected.message);
    }
}

fn hide(message: &mut String) {
    if !message.is_empty() {
        HIDDEN.clone_into(message);
    }
}

fn is_secret(object: Option<&ObjectRef>) -> bool {
    object.is_none_or(|object| (&*object.api_version, &*object.kind) == ("v1", "Secret"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(uid: &str, rule: &str, state: EffectState, message: &str) -> InEffect {
        InEffect {
            uid: uid.into(),
            version: None,
            wanted: "7".into(),
            state,
            rule: rule.into(),
            message: message.into(),
            since: 0,
        }
    }

    fn object(kind: &str) -> ObjectRef {
        ObjectRef { api_version: "v1".into(), kind: kind.into(), namespace: "plant".into(), name: "x".into() }
    }

    fn record(uid: &str, kind: &str) -> (Uid, Record) {
        (uid.into(), Record { object: object(kind).into(), version: "7".into() })
    }

    /// The role 'view' used to read lines of Secrets that a program had quoted.
    #[test]
    fn messages_of_rules_with_secrets_are_hidden() {
        let records =
            HashMap::from([record("m", "ConfigMap"), record("s", "Secret"), record("p", "ConfigMap")]);
        let mut effects = [
            effect("m", "mixed", EffectState::NotInEffect, "line 3: 'hunter2'"),
            effect("s", "mixed", EffectState::InEffect, ""),
            effect("p", "plain", EffectState::NotInEffect, "line 4"),
            effect("u", "unknown", EffectState::Conflict, "line 5"),
        ];
        hide_effects(&mut effects, &records);
        assert_eq!(effects.map(|effect| effect.message), [HIDDEN, "", "line 4", HIDDEN]);
    }

    #[test]
    fn reasons_of_rejected_secrets_are_hidden() {
        let rejected = |object| RejectedObject {
            uid: "u".into(),
            object,
            resource_version: "7".into(),
            reason: "Invalid".into(),
            message: "invalid value 'hunter2'".into(),
        };
        let mut all = [rejected(Some(object("Secret"))), rejected(Some(object("ConfigMap"))), rejected(None)];
        hide_rejections(&mut all);
        let hidden = all.map(|rejected| rejected.message == HIDDEN);
        assert_eq!(hidden, [true, false, true]);
    }
}
