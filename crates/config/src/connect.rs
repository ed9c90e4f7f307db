//! When the agent connects: always, or at planned check-ins.

use std::fmt;
use std::time::Duration;

use toml::de::DeValue;

use super::binding::{Binding, Raw, Refusals};
use super::units::{hours, parse_duration_within, seconds, show_duration};

/// Expected forms, for messages.
const FORMS: &str = "\"always\", \"every 6h\", or { at = \"02:00-04:00\" } in UTC";
/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// When the agent connects to the cloud side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectPlan {
    /// All the time.
    #[default]
    Always,
    /// Once in each interval, 10 s to 7 days.
    Every(Duration),
    /// Once a day, at a time within a window of the day in UTC.
    Daily {
        /// Begin of the window, in minutes after midnight.
        from: u16,
        /// End of the window, in minutes after midnight; may be before `from`, and is not equal.
        to: u16,
    },
}

impl ConnectPlan {
    /// Parses the text forms: `always`, `every 6h`, `at 02:00-04:00`.
    fn parse(text: &str) -> Result<Self, String> {
        if text == "always" {
            return Ok(Self::Always);
        }
        if let Some(interval) = text.strip_prefix("every ") {
            let range = seconds(10)..=hours(24 * 7);
            return parse_duration_within(interval.trim(), &range).map(Self::Every);
        }
        match text.strip_prefix("at ") {
            Some(window) => Self::parse_window(window.trim()),
            None => Err(format!("must be {FORMS}, not {text:?}")),
        }
    }

    fn parse_window(text: &str) -> Result<Self, String> {
        let times = text.split_once('-').and_then(|(from, to)| Some((minutes(from)?, minutes(to)?)));
        match times {
            Some((from, to)) if from != to => Ok(Self::Daily { from, to }),
            _ => Err(format!("must be two times of the day such as \"02:00-04:00\", not {text:?}")),
        }
    }
}

/// Parses a time of the day as `02:00`.
fn minutes(text: &str) -> Option<u16> {
    let (hour, minute) = text.trim().split_once(':')?;
    let is_time = |part: &str| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_digit());
    let (hours, minutes): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
    let is_valid = is_time(hour) && is_time(minute) && hours < 24 && minutes < 60;
    Some(hours * 60 + minutes).filter(|minutes| is_valid && *minutes < DAY)
}

impl fmt::Display for ConnectPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Every(interval) => write!(f, "every {}", show_duration(*interval)),
            Self::Daily { from, to } => {
                write!(f, "at {:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
            }
        }
    }
}

/// Returns the binding of a plan.
pub(super) fn plan(value: &mut ConnectPlan) -> impl Binding + '_ {
    Plan(value)
}

struct Plan<'a>(&'a mut ConnectPlan);

impl Binding for Plan<'_> {
    fn set(&mut self, raw: Raw<'_>) -> Result<(), Refusals> {
        *self.0 = match raw {
            Raw::Toml(DeValue::String(text)) => ConnectPlan::parse(text)?,
            Raw::Variable(text) => ConnectPlan::parse(text)?,
            Raw::Toml(DeValue::Table(table)) => {
                let (mut refusals, mut plan) = (Refusals::default(), None);
                for (key, value) in table {
                    match (key.get_ref().as_ref(), value.get_ref()) {
                        ("at", DeValue::String(text)) => {
                            let read = ConnectPlan::parse_window(text).map(|window| plan = Some(window));
                            refusals.add("at", &value.span(), read);
                        }
                        ("at", other) => {
                            let expected = Raw::Toml(other).expected("a string").message;
                            refusals.add("at", &value.span(), Err(expected));
                        }
                        _ => refusals.unknown(key, &["at"]),
                    }
                }
                refusals.result()?;
                plan.ok_or_else(|| Refusals::from(format!("must be {FORMS}")))?
            }
            Raw::Toml(_) => return Err(raw.expected(FORMS).into()),
        };
        Ok(())
    }

    fn show(&self) -> String {
        match *self.0 {
            ConnectPlan::Daily { .. } => {
                let text = self.0.to_string();
                format!("{{ at = \"{}\" }}", text.strip_prefix("at ").unwrap_or(&text))
            }
            plan => format!("\"{plan}\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_survive_a_round_trip() {
        for text in ["always", "every 6h", "every 10s", "at 02:00-04:00", "at 22:30-01:15"] {
            assert_eq!(ConnectPlan::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_plans_are_refused_with_the_forms() {
        for text in [
            "",
            "never",
            "every",
            "every 1s",
            "every 8d",
            "every day",
            "at 2:00-4:00",
            "at 24:00-01:00",
            "at 02:60-03:00",
            "at 02:00",
            "at 02:00-02:00",
            "at +2:00-03:00",
        ] {
            let refused = ConnectPlan::parse(text).unwrap_err();
            assert!(refused.starts_with("must be"), "{text}: {refused}");
        }
    }
}
