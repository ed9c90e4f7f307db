//! `spec.rollout` of a Placement or ClusterPlacement, and `rollout` of a `[[placement]]` table.

mod fields;

use std::time::Duration;

use edgesync_object::name::check_label_key;
use edgesync_object::node_labels::is_set_by_agents;
use edgesync_object::{Problems, Selector};
use serde_json::Value;

use super::waves::{Wave, Waves};
use fields::{Fields, problem};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How changes of what a rule places reach its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The waves in order.
    pub waves: Waves,
    /// How long a wave must have been good before the next one opens. From 0s to 30d, by default
    /// 30m.
    pub soak: Duration,
    /// How long a connected node may take to answer. From 1s to 1d, by default 10m.
    pub healthy_within: Duration,
    /// Successes that a wave needs to be good.
    pub min_success: MinSuccess,
    /// Failures that a wave may have.
    pub max_failures: MaxFailures,
    /// Silence of a node, beyond its planned check-in, after which it is not waited for.
    /// From 1m to 30d, by default 1h.
    pub offline_after: Duration,
    /// Wait of a node for a window or a hold, after which it is not waited for. From 1m to 30d, by
    /// default 24h.
    pub waiting_after: Duration,
    /// Reaction to a wave with more failures than it may have.
    pub on_failure: OnFailure,
    /// Handling of changes while a revision is rolled out.
    pub on_change: OnChange,
    /// Changes within this time are one revision. From 1s to 1h, by default 5s.
    pub settle: Duration,
}

/// Successes that a wave needs; both requirements hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinSuccess {
    /// Share of the wave's nodes, those that are away included. From 0 to 100, by default 50.
    pub percent: u8,
    /// Number of nodes, at least 1 and by default 1.
    pub at_least: u32,
}

/// Failures that a wave may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaxFailures {
    /// Share of the nodes that answered. From 0 to 100, by default 5.
    pub percent: u8,
    /// Key of an assigned label: the limit holds for the nodes of each of its values. Nodes without
    /// the label are one group.
    pub group_by: Option<String>,
}

/// Reaction to failures beyond the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The roll-out pauses.
    #[default]
    Pause,
    /// The revision is undone.
    RollBack,
}

/// Treatment of changes during a roll-out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnChange {
    /// A new revision begins at the first wave.
    #[default]
    Replace,
    /// Changes wait until the current revision has ended.
    Queue,
}

impl Rollout {
    /// Parses the field at `path`, such as `spec.rollout`.
    ///
    /// # Errors
    /// All problems with the paths of their fields, up to a limit.
    pub fn parse(value: &Value, path: &str) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let rollout = Self::read(value, path, &mut problems);
        match rollout {
            Some(rollout) if problems.0.is_empty() => Ok(rollout),
            _ => Err(problems),
        }
    }

    fn read(value: &Value, path: &str, problems: &mut Problems) -> Option<Self> {
        let mut fields = Fields::of(value, path, problems)?;
        let waves = fields.take("waves").map(|waves| (waves, fields.path("waves")));
        let soak = fields.duration("soak", 30 * MINUTE, Duration::ZERO..=30 * DAY);
        let healthy_within = fields.duration("healthyWithin", 10 * MINUTE, SECOND..=DAY);
        let settle = fields.duration("settle", 5 * SECOND, SECOND..=HOUR);
        let on_failure =
            fields.word("onFailure", [("Pause", OnFailure::Pause), ("RollBack", OnFailure::RollBack)]);
        let on_change = fields.word("onChange", [("Replace", OnChange::Replace), ("Queue", OnChange::Queue)]);
        let min_success = fields.inner("minSuccess", read_min_success);
        let max_failures = fields.inner("maxFailures", read_max_failures);
        let offline_after =
            fields.inner("offline", |fields| fields.duration("after", HOUR, MINUTE..=30 * DAY));
        let waiting_after =
            fields.inner("waiting", |fields| fields.duration("after", DAY, MINUTE..=30 * DAY));
        fields.end();
        let waves = match waves {
            Some((waves, path)) => read_waves(waves, &path, problems),
            None => {
                let must = "must list the waves in order, such as [{selector: \"stage=canary\"}, {}]";
                problem(problems, &format!("{path}.waves"), must);
                None
            }
        };
        let min_success = min_success.unwrap_or(MinSuccess { percent: 50, at_least: 1 });
        let max_failures = max_failures.unwrap_or(MaxFailures { percent: 5, group_by: None });
        Some(Self {
            waves: waves?,
            soak,
            healthy_within,
            min_success,
            max_failures,
            offline_after: offline_after.unwrap_or(HOUR),
            waiting_after: waiting_after.unwrap_or(DAY),
            on_failure,
            on_change,
            settle,
        })
    }
}

fn read_min_success(fields: &mut Fields<'_, '_>) -> MinSuccess {
    let percent = fields.whole("percent", 50, 0..=100);
    let at_least = fields.whole("atLeast", 1, 1..=1_000_000);
    MinSuccess { percent: u8::try_from(percent).unwrap_or(100), at_least }
}

fn read_max_failures(fields: &mut Fields<'_, '_>) -> MaxFailures {
    let percent = u8::try_from(fields.whole("percent", 5, 0..=100)).unwrap_or(0);
    let group_by = fields.text("groupBy").map(str::to_owned);
    if let Some(key) = &group_by {
        let checked = check_label_key(key).map_err(|problem| format!("the label key {problem}"));
        fields.check("groupBy", checked.and_then(|()| check_trusted([key.as_str()])));
    }
    MaxFailures { percent, group_by }
}

fn read_waves(value: &Value, path: &str, problems: &mut Problems) -> Option<Waves> {
    let Value::Array(values) = value else {
        problem(problems, path, "must be a list of waves, such as [{selector: \"stage=canary\"}, {}]");
        return None;
    };
    let checked = Waves::new(vec![Wave::default(); values.len()]);
    if let Err(must) = checked {
        problem(problems, path, &must);
        return None;
    }
    let mut waves: Vec<Wave> = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let wave = Fields::of(value, &path, problems).map(|mut fields| {
            let wave = read_wave(&mut fields);
            fields.end();
            wave
        })?;
        if let Some(earlier) = waves.iter().position(|earlier| earlier.covers(&wave)) {
            let must = format!(
                "selects no node, because waves[{earlier}] selects each of them; name other labels, a larger \
                 percentage, or remove one of the two waves"
            );
            problem(problems, &path, &must);
        }
        waves.push(wave);
    }
    Waves::new(waves).ok()
}

fn read_wave(fields: &mut Fields<'_, '_>) -> Wave {
    let mut wave = Wave::default();
    if let Some(text) = fields.text("selector") {
        match text.parse::<Selector>() {
            Ok(selector) => {
                fields.check("selector", check_trusted(selector.keys()));
                wave.selector = selector;
            }
            Err(error) => fields.check("selector", Err(error.to_string())),
        }
    }
    wave.percent = fields.optional_whole("percent", 1..=100).and_then(|percent| u8::try_from(percent).ok());
    wave.allow_empty = fields.switch("allowEmpty");
    wave.held_only = fields.switch("heldOnly");
    wave
}

/// Refuses labels that nodes set themselves.
fn check_trusted<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
    match keys.into_iter().find(|key| is_set_by_agents(key)) {
        Some(key) => Err(format!(
            "must name labels that the cloud side assigns; nodes set '{key}' themselves, \
             and would choose their wave"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
