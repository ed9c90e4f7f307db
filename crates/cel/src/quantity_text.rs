//! Parses the text of Kubernetes quantities, such as `500m`, `1.5`, `2Gi` and `12e6`.

/// Decimal SI suffixes with their power of ten.
pub const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// Binary suffixes; the index is the power of 1024.
pub const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The notation of a quantity, which Kubernetes keeps when it writes the value back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A decimal SI suffix or none, as in `500m` and `2`.
    Suffix,
    /// Scientific notation, as in `12e6`.
    Exponent,
    /// A binary suffix, as in `2Gi`.
    Binary,
}

/// A parsed quantity. Its value is `±digits × 10^exponent × factor`.
pub struct ParsedQuantity {
    /// Whether the text begins with `-`.
    pub negative: bool,
    /// All digits, without the decimal point.
    pub digits: i128,
    /// The power of ten, from the point and the suffix or exponent.
    pub exponent: i32,
    /// The power of 1024 of a binary suffix; 1 without one.
    pub factor: i128,
    /// The notation of the text.
    pub form: Form,
}

/// Parses a quantity; `None` if the text is none or has more than `most_digits` digits.
pub fn read(text: &str, most_digits: usize) -> Option<ParsedQuantity> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (number, suffix) = unsigned.split_at_checked(end.unwrap_or(unsigned.len()))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || digits.len() > most_digits {
        return None;
    }
    let (power, factor, form) = if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        (*power, 1, Form::Suffix)
    } else if let Some(power) = BINARY.iter().position(|name| *name == suffix) {
        (0, 1 << (10 * power), Form::Binary)
    } else {
        (suffix.strip_prefix(['e', 'E'])?.parse().ok()?, 1, Form::Exponent)
    };
    let exponent = power.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    Some(ParsedQuantity {
        negative: text.starts_with('-'),
        digits: digits.parse().ok()?,
        exponent,
        factor,
        form,
    })
}
