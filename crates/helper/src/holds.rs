//! Requests of programs on the device that hold rules.
//!
//! Only root and the group of the socket can connect, and the kernel names the peer's user. The
//! agent is in neither, so it makes no hold and ends none, even if it is compromised.

use std::path::Path;

use super::executor::Executor;
use super::hold_state::limits;
use super::owner;
use super::records::Records;
use edgesync_config::edge::Config;
use edgesync_files::hold::{NewHold, Which};
use edgesync_files::wire::{HoldReply, HoldRequest};

/// Executes a request of a user.
pub(super) fn execute(config: &Config, records: &mut Records, uid: u32, request: &HoldRequest) -> HoldReply {
    records.holds.observe(config);
    let which = match request {
        HoldRequest::List => return HoldReply::Done(records.holds.infos()),
        HoldRequest::Hold { rule, seconds, why } => {
            return hold(config, records, uid, (rule, *seconds, why));
        }
        HoldRequest::Release(id) => Which::Id(*id),
        HoldRequest::ReleaseOwn(None) => Which::Own,
        HoldRequest::ReleaseOwn(Some(rule)) => Which::Rule(rule),
    };
    match records.holds.change(|holds, elapsed| holds.release(elapsed, uid, &which, limits(config))) {
        Err(why) => HoldReply::Refused(why),
        Ok(ended) => {
            for hold in &ended {
                tracing::info!(id = hold.id, rule = hold.rule, owner = hold.uid, by = uid, "hold ended");
            }
            HoldReply::Done(ended.iter().map(|hold| records.holds.info(hold)).collect())
        }
    }
}

fn hold(
    config: &Config,
    records: &mut Records,
    uid: u32,
    (name, seconds, why): (&str, u64, &str),
) -> HoldReply {
    let Some(rule) = config.files.rules.iter().find(|rule| rule.name == name) else {
        let names: Vec<&str> = config.files.rules.iter().map(|rule| rule.name.as_str()).collect();
        let known = if names.is_empty() { "there are none".to_owned() } else { names.join(", ") };
        return HoldReply::Refused(format!("no rule {name:?} in the configuration; rules: {known}"));
    };
    let owner = owner::name_of(uid, Path::new("/etc")).unwrap_or_default();
    let new = NewHold { rule: name, uid, owner: &owner, why, seconds };
    let made = match records.holds.change(|holds, elapsed| holds.hold(elapsed, &new, limits(config))) {
        Ok(made) => made,
        Err(why) => return HoldReply::Refused(why),
    };
    tracing::info!(id = made.id, rule = name, owner = uid, why, "hold made");
    let info = vec![records.holds.info(&made)];
    // What is in effect must outlive a reboot from now on.
    let kept = Executor::new(rule, config, records).map_err(|error| error.to_string());
    match kept.and_then(|mut executor| executor.keep_all(records)) {
        Ok(()) => HoldReply::Done(info),
        Err(why) => HoldReply::Unkept(info, why),
    }
}
