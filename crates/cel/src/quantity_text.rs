//! Quantities as texts: `500m`, `1.5`, `2Gi`, `12e6`. Pure.

/// Suffixes of powers of ten with their exponents, and of powers of 1024.
pub const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
pub const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Which suffixes a quantity is written with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Suffix,
    Exponent,
    Binary,
}

/// A quantity as it was written.
pub struct Written {
    pub negative: bool,
    /// All digits, without the point.
    pub digits: i128,
    /// The power of ten that the digits stand for.
    pub exponent: i32,
    /// By what they are multiplied besides: a power of 1024.
    pub factor: i128,
    pub form: Form,
}

/// Reads a quantity of up to so many digits.
pub fn read(text: &str, most_digits: usize) -> Option<Written> {
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
    Some(Written { negative: text.starts_with('-'), digits: digits.parse().ok()?, exponent, factor, form })
}
