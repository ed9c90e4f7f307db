//! The wire format of Protocol Buffers: a message as a sequence of numbered parts. Pure.

/// Result of decoding; the error is a reason for people.
pub(super) type Decoded<T> = std::result::Result<T, &'static str>;

const CUT_SHORT: &str = "it is truncated";
const WRONG_TYPE: &str = "a field has the wrong type";

/// An undecoded part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// A number of variable length.
    Varint(u64),
    Fixed32([u8; 4]),
    Fixed64([u8; 8]),
    /// A string, bytes, a message or packed numbers.
    Bytes(&'a [u8]),
}

impl<'a> Part<'a> {
    pub(super) fn varint(self) -> Decoded<u64> {
        match self {
            Self::Varint(number) => Ok(number),
            _ => Err(WRONG_TYPE),
        }
    }

    pub(super) fn double(self) -> Decoded<f64> {
        match self {
            Self::Fixed64(bytes) => Ok(f64::from_le_bytes(bytes)),
            _ => Err(WRONG_TYPE),
        }
    }

    pub(super) fn bytes(self) -> Decoded<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(WRONG_TYPE),
        }
    }

    pub(super) fn text(self) -> Decoded<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| "a string is not UTF-8")
    }
}

/// Iterates over the numbered parts of a message. Ends after the first failure.
pub(super) struct Parts<'a>(pub(super) &'a [u8]);

impl<'a> Parts<'a> {
    /// Decodes the next number of variable length, at most 64 bits.
    pub(super) fn varint(&mut self) -> Decoded<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(CUT_SHORT)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number is too long")
    }

    fn fixed<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let (&bytes, rest) = self.0.split_first_chunk().ok_or(CUT_SHORT)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn part(&mut self) -> Decoded<(u32, Part<'a>)> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|&number| number > 0);
        let number = number.ok_or("a field has an invalid number")?;
        let part = match tag & 7 {
            0 => Part::Varint(self.varint()?),
            1 => Part::Fixed64(self.fixed()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| CUT_SHORT)?;
                let (bytes, rest) = self.0.split_at_checked(length).ok_or(CUT_SHORT)?;
                self.0 = rest;
                Part::Bytes(bytes)
            }
            5 => Part::Fixed32(self.fixed()?),
            _ => return Err("a field has an unknown type"),
        };
        Ok((number, part))
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = Decoded<(u32, Part<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let part = self.part();
        if part.is_err() {
            self.0 = &[];
        }
        Some(part)
    }
}
