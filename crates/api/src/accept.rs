//! Content negotiation: media types and encodings. Pure.

/// Maximum number of ranges of a header that are considered.
const MAX_RANGES: usize = 32;

/// Parses an `Accept` or `Accept-Encoding` header and returns the offer for the range with the
/// highest quality that `offer` supports; the first of equal ones. `offer` receives the range in
/// lower case and its parameters.
pub(super) fn choose<T>(
    accept: &str,
    mut offer: impl FnMut(&str, &[(&str, &str)]) -> Option<T>,
) -> Option<T> {
    let mut best: Option<(f32, T)> = None;
    for range in accept.split(',').take(MAX_RANGES) {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let quality = parameters.iter().find(|(name, _)| *name == "q");
        let quality = quality.and_then(|(_, value)| value.parse::<f32>().ok()).unwrap_or(1.0).clamp(0.0, 1.0);
        // The comparison rejects NaN.
        let better = quality > best.as_ref().map_or(0.0, |(most, _)| *most);
        if better && let Some(offered) = offer(&name, &parameters) {
            best = Some((quality, offered));
        }
    }
    best.map(|(_, offered)| offered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chosen(accept: &str) -> Option<String> {
        choose(accept, |media_type, parameters| {
            media_type.starts_with("a/").then(|| format!("{media_type}{}", parameters.len()))
        })
    }

    #[test]
    fn first_range_of_the_highest_offered_quality_is_chosen() {
        assert_eq!(chosen("b/b, A/x, a/y;g=1;v=2"), Some("a/x0".into()));
        assert_eq!(chosen("a/x;q=0.5, a/y;q=0.9;g=1"), Some("a/y2".into()));
        assert_eq!(chosen("a/x;q=0, a/y;q=NaN"), None);
        assert_eq!(chosen(""), None);
    }

    proptest! {
        #[test]
        fn no_header_panics(accept in ".{0,80}") {
            let _ = chosen(&accept);
        }
    }
}
