//! The lexer.

use std::sync::Arc;

use super::Fault;
use super::meter::truncated;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// An identifier or a keyword such as `in`.
    Name(Arc<str>),
    Int(i64),
    /// 2^63, which is an integer only after a minus sign.
    TooLarge,
    Uint(u64),
    Double(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    /// An operator or a bracket.
    Sign(&'static str),
    End,
}

/// Operators and brackets, longer ones first.
const SIGNS: &[&str] = &[
    "&&", "||", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ".", ",", "?", ":", "+", "-", "*", "/",
    "%", "!", "<", ">",
];

/// Returns the tokens of a text with their byte offsets.
///
/// # Errors
/// The first character sequence that is no token.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, Fault> {
    let mut reader = Reader { text, at: 0 };
    let mut found = Vec::new();
    loop {
        reader.skip_space();
        let at = reader.at;
        if reader.rest().is_empty() {
            found.push((at, Token::End));
            return Ok(found);
        }
        let token = reader.token().map_err(|problem| Fault::at(at, format!("Syntax error: {problem}")))?;
        found.push((at, token));
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Takes characters while the predicate holds.
    fn take(&mut self, such: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|letter| !such(letter)).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.rest().chars().next()?;
        self.at += letter.len_utf8();
        Some(letter)
    }

    fn skip_space(&mut self) {
        loop {
            self.take(char::is_whitespace);
            if !self.rest().starts_with("//") {
                return;
            }
            self.take(|letter| letter != '\n');
        }
    }

    fn token(&mut self) -> Result<Token, String> {
        let rest = self.rest();
        let first = rest.chars().next().unwrap_or_default();
        let digit = |text: &str| text.starts_with(|letter: char| letter.is_ascii_digit());
        if digit(rest) || rest.strip_prefix('.').is_some_and(digit) {
            return self.number();
        }
        let quote = rest.bytes().take(3).position(|byte| matches!(byte, b'"' | b'\''));
        let prefix = quote.and_then(|end| rest.get(..end)).unwrap_or("no text");
        if matches!(prefix.to_ascii_lowercase().as_str(), "" | "r" | "b" | "rb" | "br") {
            self.at += prefix.len();
            return self.quoted(prefix.contains(['r', 'R']), prefix.contains(['b', 'B']));
        }
        if first == '_' || first.is_ascii_alphabetic() {
            return Ok(Token::Name(
                self.take(|letter| letter == '_' || letter.is_ascii_alphanumeric()).into(),
            ));
        }
        match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            Some(sign) => {
                self.at += sign.len();
                Ok(Token::Sign(sign))
            }
            None => Err(format!("token recognition error at: '{first}'")),
        }
    }

    fn number(&mut self) -> Result<Token, String> {
        let start = self.at;
        if self.rest().starts_with("0x") || self.rest().starts_with("0X") {
            self.at += 2;
            let digits = self.take(|letter| letter.is_ascii_hexdigit());
            return self.whole(digits, 16);
        }
        let digits = self.take(|letter| letter.is_ascii_digit());
        let mut fraction = false;
        let after_dot = self.rest().strip_prefix('.');
        if after_dot.is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit())) {
            self.at += 1;
            self.take(|letter| letter.is_ascii_digit());
            fraction = true;
        }
        if self.rest().starts_with(['e', 'E']) {
            self.at += 1;
            if self.rest().starts_with(['+', '-']) {
                self.at += 1;
            }
            self.take(|letter| letter.is_ascii_digit());
            fraction = true;
        }
        if !fraction {
            return self.whole(digits, 10);
        }
        let written = self.text.get(start..self.at).unwrap_or_default();
        match written.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Token::Double(number)),
            _ => Err(format!("invalid double literal '{}'", truncated(written))),
        }
    }

    fn whole(&mut self, digits: &str, base: u32) -> Result<Token, String> {
        if self.rest().starts_with(['u', 'U']) {
            self.at += 1;
            return u64::from_str_radix(digits, base)
                .map(Token::Uint)
                .map_err(|_| "invalid uint literal".to_owned());
        }
        match u64::from_str_radix(digits, base) {
            Ok(number) if number == 1 << 63 => Ok(Token::TooLarge),
            Ok(number) if i64::try_from(number).is_ok() => Ok(Token::Int(number.cast_signed())),
            _ => Err("invalid int literal".to_owned()),
        }
    }

    fn quoted(&mut self, raw: bool, bytes: bool) -> Result<Token, String> {
        let quote = self.rest().chars().next().unwrap_or_default();
        let triple = quote.to_string().repeat(3);
        let end = if self.rest().starts_with(&triple) { triple } else { quote.to_string() };
        self.at += end.len();
        let mut content = Vec::new();
        loop {
            if self.rest().starts_with(&end) {
                self.at += end.len();
                break;
            }
            match self.next() {
                None => return Err("unterminated string literal".to_owned()),
                Some('\n' | '\r') if end.len() == 1 => return Err("unterminated string literal".to_owned()),
                Some('\\') if !raw => self.escaped(bytes, &mut content)?,
                Some(letter) => content.extend(letter.to_string().bytes()),
            }
        }
        if bytes {
            return Ok(Token::Bytes(content.into()));
        }
        String::from_utf8(content)
            .map(|text| Token::Text(text.into()))
            .map_err(|_| "string literal is not UTF-8".to_owned())
    }

    fn escaped(&mut self, bytes: bool, content: &mut Vec<u8>) -> Result<(), String> {
        let letter = self.next().unwrap_or_default();
        let plain = match letter {
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'v' => 11,
            '\\' | '\'' | '"' | '`' | '?' => letter as u8,
            'x' | 'X' => return self.coded(2, 16, bytes, content),
            'u' => return self.coded(4, 16, false, content),
            'U' => return self.coded(8, 16, false, content),
            '0'..='3' => {
                self.at -= 1;
                return self.coded(3, 8, bytes, content);
            }
            _ => return Err(format!("unknown escape: '\\{letter}'")),
        };
        content.push(plain);
        Ok(())
    }

    fn coded(&mut self, length: usize, base: u32, byte: bool, content: &mut Vec<u8>) -> Result<(), String> {
        let digits =
            self.rest().get(..length).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, base).ok());
        self.at += length;
        let wrong = || "escape without its digits".to_owned();
        let code = code.ok_or_else(wrong)?;
        if byte {
            content.push(u8::try_from(code).map_err(|_| wrong())?);
        } else {
            content.extend(char::from_u32(code).ok_or_else(wrong)?.to_string().bytes());
        }
        Ok(())
    }
}
