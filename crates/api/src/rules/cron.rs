//! Schedules of CronJobs: five fields, or a word such as `@daily`. Pure.

use edgesync_object::name::Problem;

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A field of a schedule: name, least and greatest number, and words for the numbers from the least
/// on.
struct Field(&'static str, u32, u32, &'static [&'static str]);

const FIELDS: [Field; 5] = [
    Field("minute", 0, 59, &[]),
    Field("hour", 0, 23, &[]),
    Field("day of the month", 1, 31, &[]),
    Field("month", 1, 12, MONTHS),
    Field("day of the week", 0, 7, DAYS),
];

pub(super) fn check_schedule(schedule: &str) -> Result<(), Problem> {
    if let Some(word) = schedule.strip_prefix('@') {
        return check_word(word);
    }
    if schedule.contains("TZ") {
        return Err("must not name a time zone: use `timeZone`".to_owned());
    }
    let parts: Vec<&str> = schedule.split_whitespace().collect();
    if parts.len() != FIELDS.len() {
        return Err(format!(
            "must have five fields (minute, hour, day of the month, month, day of the week), has {}",
            parts.len()
        ));
    }
    for (field, part) in FIELDS.iter().zip(parts) {
        if !part.split(',').all(|range| field.accepts(range)) {
            let Field(name, least, most, _) = field;
            return Err(format!("must have numbers from {least} to {most}, ranges or '*' as the {name}"));
        }
    }
    Ok(())
}

/// Checks the syntax of a time zone: `UTC`, `Europe/Berlin`, `Etc/GMT+1`. Whether it exists is left
/// to the runner of the job.
pub(super) fn check_time_zone(zone: &str) -> Result<(), Problem> {
    let part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|letter| letter.is_ascii_alphanumeric() || b"+-_".contains(&letter))
    };
    if zone.is_empty() {
        return Err("must be nil or non-empty string".to_owned());
    }
    if zone.eq_ignore_ascii_case("local") || !zone.split('/').all(part) {
        return Err("must be an explicit time zone as defined in https://www.iana.org/time-zones".to_owned());
    }
    Ok(())
}

fn check_word(word: &str) -> Result<(), Problem> {
    let known = ["yearly", "annually", "monthly", "weekly", "daily", "midnight", "hourly"].contains(&word);
    let every = word.strip_prefix("every ").is_some_and(is_duration);
    if known || every {
        return Ok(());
    }
    Err("must be '@yearly', '@monthly', '@weekly', '@daily', '@hourly' or '@every <duration>'".to_owned())
}

/// Returns whether a text is a duration such as `1h30m`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.trim();
    let mut parts = 0;
    while !rest.is_empty() {
        let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let units = ["ms", "us", "ns", "h", "m", "s"];
        let Some(after) = units.iter().find_map(|unit| digits.strip_prefix(unit)) else { return false };
        if digits.len() == rest.len() {
            return false;
        }
        (rest, parts) = (after, parts + 1);
    }
    parts > 0
}

impl Field {
    /// Returns whether a part without commas is valid: `*`, `5`, `1-5`, each optionally followed by
    /// `/2`.
    fn accepts(&self, part: &str) -> bool {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (part, None),
        };
        if step.is_some_and(|step| step.parse::<u32>().map_or(true, |step| step == 0)) {
            return false;
        }
        match range.split_once('-') {
            _ if matches!(range, "*" | "?") => true,
            Some((from, to)) => {
                matches!((self.number(from), self.number(to)), (Some(from), Some(to)) if from <= to)
            }
            None => self.number(range).is_some(),
        }
    }

    fn number(&self, text: &str) -> Option<u32> {
        let Self(_, least, most, words) = self;
        let word = words.iter().position(|word| text.eq_ignore_ascii_case(word));
        let word = word.and_then(|index| u32::try_from(index).ok()).map(|index| index + least);
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        word.or_else(|| text.parse().ok().filter(|number| digits && (least..=most).contains(&number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn schedules_are_five_fields_or_a_word() {
        for good in [
            "* * * * *",
            "*/5 0-6,22 1,15 JAN-mar/2 mon-fri",
            "0 0 ? * 7",
            "@daily",
            "@every 1h30m",
            "@every 1.5s",
        ] {
            assert_eq!(check_schedule(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* * 0 * *",
            "*/0 * * * *",
            "5-1 * * * *",
            "a * * * *",
            "1,, * * * *",
            "@never",
            "@every",
            "@every h",
            "TZ=UTC * * * * *",
        ] {
            assert!(check_schedule(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in r"[@*/,0-9a-zé -]{0,30}") {
            let _ = check_schedule(&text);
        }
    }
}
