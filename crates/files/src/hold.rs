//! Holds: programs on the device say that a rule must not change anything for a while. Pure; the
//! helper owns them, knows their owners by the credentials of its peers, and persists them.
//!
//! Times are those of [`Clock::elapsed`](super::clock::Clock::elapsed), in microseconds: a clock
//! that is set, or not known, neither ends a hold nor prolongs it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Maximum number of holds in force.
pub(crate) const MAX_HOLDS: usize = 256;
/// Maximum number of holds in force of one user.
pub(crate) const MAX_HOLDS_OF_USER: usize = 64;
/// Maximum length of a hold's reason, in bytes.
pub(crate) const MAX_WHY: usize = 200;

/// A hold in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Number of the hold, never used again.
    pub id: u64,
    /// Name of the rule.
    pub rule: String,
    /// User that made it.
    pub uid: u32,
    /// Name of that user; empty if it has no account.
    pub owner: String,
    /// Its reason.
    pub why: String,
    /// When it began.
    pub since: u64,
    /// When it ends by itself.
    pub ends: u64,
}

impl Hold {
    /// Returns name and number of the user.
    #[must_use]
    pub fn shown_owner(&self) -> String {
        match self.owner.as_str() {
            "" => format!("user {}", self.uid),
            owner => format!("{owner} ({})", self.uid),
        }
    }
}

/// A request for a hold.
#[derive(Clone, Copy, Debug)]
pub struct NewHold<'a> {
    /// Name of the rule.
    pub rule: &'a str,
    /// User that makes it.
    pub uid: u32,
    /// Name of that user; empty if it has no account.
    pub owner: &'a str,
    /// Its reason.
    pub why: &'a str,
    /// Its duration in seconds.
    pub seconds: u64,
}

/// Configured limits of holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest time for which a rule is held, by any number of holds.
    pub longest: Duration,
    /// Shortest time without a hold after which the longest time starts again.
    pub gap: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { longest: Duration::from_secs(24 * 3600), gap: Duration::from_secs(3600) }
    }
}

/// Holds of a rule that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Chain {
    /// When the first of them began.
    begun: u64,
    /// When the last of them ended, or will.
    ended: u64,
}

/// All holds in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holds {
    /// Number of the last hold.
    last: u64,
    holds: Vec<Hold>,
    chains: BTreeMap<String, Chain>,
}

/// Reason why a hold is neither made nor ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The duration is zero or above the longest time.
    #[error("hold for {asked}: must be between 1s and {longest} (helper.longest_hold)")]
    Duration {
        /// The requested duration.
        asked: String,
        /// The configured one.
        longest: String,
    },
    /// The holds before it have used the longest time up.
    #[error(
        "rule {rule:?} may be held for {left} more: holds follow each other since {since} ago, and {longest} is the \
         longest time (helper.longest_hold); the time starts again {gap} after the last hold (helper.hold_gap)"
    )]
    UsedUp {
        /// The rule.
        rule: String,
        /// Time for which a hold is still possible.
        left: String,
        /// Time since the first of the holds.
        since: String,
        /// The configured longest time.
        longest: String,
        /// The configured gap.
        gap: String,
    },
    /// Too many holds are in force.
    #[error("{0} holds are in force, the most; hint: 'edgesync holds', and 'edgesync release'")]
    TooMany(usize),
    /// Too many holds of the user are in force.
    #[error("{0} holds of this user are in force, the most; hint: 'edgesync holds', and 'edgesync release'")]
    TooManyOfUser(usize),
    /// The reason has no text, or has characters that tables and logs do not show.
    #[error("reason of the hold (--why): must have 1 to {MAX_WHY} bytes without control characters")]
    Why,
    /// No hold matches.
    #[error("no such hold is in force; hint: 'edgesync holds'")]
    NotFound,
    /// The hold belongs to another user.
    #[error("hold {id} belongs to {owner}: only that user and root may end it")]
    NotOwner {
        /// Number of the hold.
        id: u64,
        /// Its owner.
        owner: String,
    },
}

/// The holds that a user ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which<'a> {
    /// The one with this number.
    Id(u64),
    /// Those of the user on this rule.
    Rule(&'a str),
    /// All of the user.
    Own,
}

impl Holds {
    /// Makes a hold.
    ///
    /// # Errors
    /// It exceeds a limit, or its reason is unusable; nothing changes then.
    pub fn hold(&mut self, elapsed: u64, new: &NewHold<'_>, limits: Limits) -> Result<Hold, HoldError> {
        self.expire(elapsed, limits);
        let (longest, asked) = (micros(limits.longest), micros(Duration::from_secs(new.seconds)));
        if asked == 0 || asked > longest {
            let (asked, longest) = (shown(asked), shown(longest));
            return Err(HoldError::Duration { asked, longest });
        }
        check_why(new.why)?;
        if self.holds.iter().filter(|hold| hold.uid == new.uid).count() >= MAX_HOLDS_OF_USER {
            return Err(HoldError::TooManyOfUser(MAX_HOLDS_OF_USER));
        }
        if self.holds.len() >= MAX_HOLDS {
            return Err(HoldError::TooMany(MAX_HOLDS));
        }
        let begun = self.chains.get(new.rule).map_or(elapsed, |chain| chain.begun);
        let (ends, limit) = (elapsed.saturating_add(asked), begun.saturating_add(longest));
        if ends > limit {
            return Err(HoldError::UsedUp {
                rule: new.rule.to_owned(),
                left: shown(limit.saturating_sub(elapsed)),
                since: shown(elapsed.saturating_sub(begun)),
                longest: shown(longest),
                gap: shown(micros(limits.gap)),
            });
        }
        self.last += 1;
        let hold = Hold {
            id: self.last,
            rule: new.rule.to_owned(),
            uid: new.uid,
            owner: new.owner.to_owned(),
            why: new.why.to_owned(),
            since: elapsed,
            ends,
        };
        self.holds.push(hold.clone());
        let chain = self.chains.entry(new.rule.to_owned()).or_insert(Chain { begun, ended: ends });
        chain.ended = chain.ended.max(ends);
        Ok(hold)
    }

    /// Ends holds of a user, or with a number, also of others if the user is root. Returns those
    /// that were ended.
    ///
    /// # Errors
    /// There is none, or it belongs to another user.
    pub fn release(
        &mut self,
        elapsed: u64,
        uid: u32,
        which: &Which<'_>,
        limits: Limits,
    ) -> Result<Vec<Hold>, HoldError> {
        self.expire(elapsed, limits);
        let is_meant = |hold: &Hold| match which {
            Which::Id(id) => hold.id == *id,
            Which::Rule(rule) => hold.uid == uid && hold.rule == *rule,
            Which::Own => hold.uid == uid,
        };
        let ended: Vec<Hold> = self.holds.iter().filter(|hold| is_meant(hold)).cloned().collect();
        if let Some(other) = ended.iter().find(|hold| hold.uid != uid && uid != 0) {
            return Err(HoldError::NotOwner { id: other.id, owner: other.shown_owner() });
        }
        if ended.is_empty() {
            return Err(HoldError::NotFound);
        }
        self.holds.retain(|hold| !is_meant(hold));
        for hold in &ended {
            self.shorten_chain(&hold.rule, elapsed);
        }
        Ok(ended)
    }

    /// Spares the holds that were made after `since` the time without power that is counted only
    /// now: it may have passed before they were made.
    pub fn shift(&mut self, (since, time): (u64, u64)) {
        let holds = &self.holds;
        for (rule, chain) in &mut self.chains {
            if holds.iter().any(|hold| hold.rule == *rule && hold.since > since) {
                chain.begun = chain.begun.saturating_add(time);
                chain.ended = chain.ended.saturating_add(time);
            }
        }
        for hold in self.holds.iter_mut().filter(|hold| hold.since > since) {
            hold.since = hold.since.saturating_add(time);
            hold.ends = hold.ends.saturating_add(time);
        }
    }

    /// Ends the holds whose time is over, and forgets those that no longer count. Returns whether
    /// something changed.
    pub fn expire(&mut self, elapsed: u64, limits: Limits) -> bool {
        let before = self.clone();
        let (longest, gap) = (micros(limits.longest), micros(limits.gap));
        for hold in &mut self.holds {
            // The configured time may have become shorter.
            let begun = self.chains.get(&hold.rule).map_or(hold.since, |chain| chain.begun);
            hold.ends = hold.ends.min(begun.saturating_add(longest));
        }
        self.holds.retain(|hold| hold.ends > elapsed);
        let rules: Vec<String> = self.chains.keys().cloned().collect();
        for rule in rules {
            self.shorten_chain(&rule, elapsed);
        }
        let is_held = |rule: &String| self.holds.iter().any(|hold| hold.rule == *rule);
        self.chains.retain(|rule, chain| is_held(rule) || elapsed.saturating_sub(chain.ended) < gap);
        *self != before
    }

    /// Lets a chain end with the last hold in force, or now.
    fn shorten_chain(&mut self, rule: &str, elapsed: u64) {
        let last = self.last_of(rule).map(|hold| hold.ends);
        if let Some(chain) = self.chains.get_mut(rule) {
            chain.ended = last.unwrap_or_else(|| chain.ended.min(elapsed));
        }
    }

    /// Returns the hold of a rule that ends last.
    pub(crate) fn last_of(&self, rule: &str) -> Option<&Hold> {
        self.holds.iter().filter(|hold| hold.rule == rule).max_by_key(|hold| hold.ends)
    }

    /// Returns all holds, the oldest first.
    #[must_use]
    pub fn all(&self) -> &[Hold] {
        &self.holds
    }
}

/// Checks the reason of a hold.
///
/// # Errors
/// It is empty, too long, or has control characters.
pub fn check_why(why: &str) -> Result<(), HoldError> {
    match why.trim().is_empty() || why.len() > MAX_WHY || why.chars().any(char::is_control) {
        true => Err(HoldError::Why),
        false => Ok(()),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Formats a time in microseconds as hours, minutes and seconds.
fn shown(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let text: String =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests;
