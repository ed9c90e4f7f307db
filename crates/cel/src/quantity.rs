//! Quantities as fixed-point numbers.

use std::cmp::Ordering;

use crate::quantity_text::{ParsedQuantity, read};

const BILLION: i128 = 1_000_000_000;
/// Digits beyond which a text is not a quantity.
const MAX_DIGITS: usize = 30;
/// Maximum amount; larger ones saturate, as in Kubernetes.
const MAX_AMOUNT: i128 = i64::MAX as i128 * BILLION;

/// An amount in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Quantity(i128);

impl Quantity {
    /// Parses a quantity such as `500m`, `1.5` or `2Gi`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let ParsedQuantity { negative, digits, exponent, factor, .. } = read(text, MAX_DIGITS)?;
        let exponent = exponent.checked_add(9)?;
        let amount = digits.checked_mul(factor).unwrap_or(MAX_AMOUNT);
        let factor = 10i128.checked_pow(exponent.unsigned_abs());
        let amount = match factor {
            _ if amount == 0 => 0,
            Some(factor) if exponent >= 0 => amount.checked_mul(factor).unwrap_or(MAX_AMOUNT),
            None if exponent >= 0 => MAX_AMOUNT,
            // Fractions of a billionth are rounded up.
            Some(factor) => (amount - 1) / factor + 1,
            None => 1,
        };
        let amount = amount.min(MAX_AMOUNT);
        Some(Self(if negative { -amount } else { amount }))
    }

    pub(super) fn of(number: i64) -> Self {
        Self(i128::from(number) * BILLION)
    }

    pub(super) fn add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    pub(super) fn subtract(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    pub(super) fn sign(self) -> i64 {
        match self.0.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    /// Returns the amount as an integer, if it is one.
    pub(super) fn integer(self) -> Option<i64> {
        if self.0 % BILLION == 0 { i64::try_from(self.0 / BILLION).ok() } else { None }
    }

    pub(super) fn double(self) -> f64 {
        self.0 as f64 / BILLION as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_compared_across_suffixes() {
        let quantity = |text: &str| Quantity::parse(text).unwrap();
        assert_eq!(quantity("1000m"), quantity("1"));
        assert_eq!(quantity("1Gi"), quantity("1024Mi"));
        assert_eq!(quantity("1e3"), quantity("1k"));
        assert!(quantity("1G") < quantity("1Gi") && quantity("-1") < quantity("0"));
        assert_eq!(quantity("0.1n"), quantity("1n"));
        assert_eq!(quantity("100E"), quantity("9223372036854775807"));
        for text in ["", "a", "1.2.3", "1gi", "--1", ".", "1e"] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }
}
