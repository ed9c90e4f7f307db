//! The parser. Macros are recognized by name and number of arguments.

use std::sync::Arc;

use super::Fault;
use super::meter::truncated;
use super::token::{Token, tokens};
use super::tree::{Each, Expr, How, Node, Operator};
use super::types::RESERVED;

/// Longest expression, in bytes.
const MAX_BYTES: usize = 100_000;
/// Nesting limit of expressions.
const MAX_DEPTH: usize = 100;
/// Namespaces: words before a dot that belong to the name of a function.
const SPACES: &[(&str, &[&str])] = &[
    ("ip", &["isCanonical"]),
    ("optional", &["of", "none", "ofNonZeroValue", "unwrap"]),
    ("sets", &["contains", "equivalent", "intersects"]),
    ("format", &["named"]),
    (
        "math",
        &[
            "greatest",
            "least",
            "ceil",
            "floor",
            "round",
            "trunc",
            "abs",
            "sign",
            "isNaN",
            "isInf",
            "isFinite",
            "sqrt",
            "bitAnd",
            "bitOr",
            "bitXor",
            "bitNot",
            "bitShiftLeft",
            "bitShiftRight",
        ],
    ),
    ("base64", &["encode", "decode"]),
    ("lists", &["range"]),
    ("cel", &["bind", "block"]),
    ("strings", &["quote"]),
];

/// Parses an expression.
///
/// # Errors
/// The first syntax error.
pub(super) fn parse(text: &str) -> Result<Node, Fault> {
    if text.len() > MAX_BYTES {
        return Err(Fault::at(0, format!("expression code point size exceeds limit: {MAX_BYTES}")));
    }
    let mut parser = Parser { tokens: tokens(text)?, next: 0, nesting: 0 };
    let node = parser.expression()?;
    match parser.peek() {
        Token::End => Ok(node),
        other => Err(parser.unexpected(&other.clone(), "<EOF>")),
    }
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    nesting: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(_, token)| token)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(0, |(at, _)| *at)
    }

    fn advance(&mut self) -> Token {
        let token = self.peek().clone();
        self.next += 1;
        token
    }

    fn takes(&mut self, sign: &str) -> bool {
        let there = matches!(self.peek(), Token::Sign(found) if *found == sign);
        self.next += usize::from(there);
        there
    }

    fn expect(&mut self, sign: &str) -> Result<(), Fault> {
        if self.takes(sign) { Ok(()) } else { Err(self.unexpected(&self.peek().clone(), sign)) }
    }

    fn unexpected(&self, token: &Token, expected: &str) -> Fault {
        let found = match token {
            Token::Name(name) => truncated(name).to_owned(),
            Token::Int(number) => number.to_string(),
            Token::Uint(number) => format!("{number}u"),
            Token::Double(number) => number.to_string(),
            Token::TooLarge => (1u64 << 63).to_string(),
            Token::Text(text) => format!("{:?}", truncated(text)),
            Token::Bytes(_) => "bytes".to_owned(),
            Token::Sign(sign) => (*sign).to_owned(),
            Token::End => "<EOF>".to_owned(),
        };
        Fault::at(self.at(), format!("Syntax error: mismatched input '{found}' expecting {expected}"))
    }

    fn node(&self, at: usize, expr: Expr) -> Result<Node, Fault> {
        let node = Node::new(at, expr);
        if node.depth <= MAX_DEPTH { Ok(node) } else { Err(too_deep(at)) }
    }

    fn expression(&mut self) -> Result<Node, Fault> {
        self.nesting += 1;
        if self.nesting > MAX_DEPTH / 2 {
            return Err(too_deep(self.at()));
        }
        let condition = self.any()?;
        let at = self.at();
        let node = if self.takes("?") {
            let yes = self.any()?;
            self.expect(":")?;
            let no = self.expression()?;
            self.node(at, Expr::Choice(Box::new([condition, yes, no])))?
        } else {
            condition
        };
        self.nesting -= 1;
        Ok(node)
    }

    fn any(&mut self) -> Result<Node, Fault> {
        let first = self.all()?;
        let at = self.at();
        let mut nodes = vec![first];
        while self.takes("||") {
            nodes.push(self.all()?);
        }
        self.joined(at, nodes, Expr::Any)
    }

    fn all(&mut self) -> Result<Node, Fault> {
        let first = self.binary(0)?;
        let at = self.at();
        let mut nodes = vec![first];
        while self.takes("&&") {
            nodes.push(self.binary(0)?);
        }
        self.joined(at, nodes, Expr::All)
    }

    fn joined(&self, at: usize, mut nodes: Vec<Node>, join: fn(Vec<Node>) -> Expr) -> Result<Node, Fault> {
        match nodes.pop() {
            Some(only) if nodes.is_empty() => Ok(only),
            Some(last) => {
                nodes.push(last);
                self.node(at, join(nodes))
            }
            None => Err(too_deep(at)),
        }
    }

    /// Returns the next operator and its precedence.
    fn operator(&self) -> Option<(u8, Operator)> {
        let sign = match self.peek() {
            Token::Sign(sign) => sign,
            Token::Name(name) if &**name == "in" => "in",
            _ => return None,
        };
        Some(match sign {
            "==" => (0, Operator::Equal),
            "!=" => (0, Operator::NotEqual),
            "<" => (0, Operator::Less),
            "<=" => (0, Operator::LessOrEqual),
            ">" => (0, Operator::Greater),
            ">=" => (0, Operator::GreaterOrEqual),
            "in" => (0, Operator::In),
            "+" => (1, Operator::Add),
            "-" => (1, Operator::Subtract),
            "*" => (2, Operator::Multiply),
            "/" => (2, Operator::Divide),
            "%" => (2, Operator::Modulo),
            _ => return None,
        })
    }

    fn binary(&mut self, least: u8) -> Result<Node, Fault> {
        let mut left = self.unary()?;
        while let Some((strength, name)) = self.operator().filter(|(strength, _)| *strength >= least) {
            let at = self.at();
            self.next += 1;
            let right = self.binary(strength + 1)?;
            left = self.node(at, Expr::Operator { name, sides: Box::new([left, right]) })?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Node, Fault> {
        let at = self.at();
        if self.takes("!") {
            let of = self.nested(Self::unary)?;
            return self.node(at, Expr::Not(Box::new(of)));
        }
        if self.takes("-") {
            let literal = match self.peek() {
                Token::Int(number) => Some(Expr::Int(-number)),
                Token::TooLarge => Some(Expr::Int(i64::MIN)),
                Token::Double(number) => Some(Expr::Double(-number)),
                _ => None,
            };
            if let Some(literal) = literal {
                self.next += 1;
                let literal = self.node(at, literal)?;
                return self.postfix(literal);
            }
            let of = self.nested(Self::unary)?;
            return self.node(at, Expr::Negative(Box::new(of)));
        }
        let first = self.primary()?;
        self.postfix(first)
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        self.nesting += 1;
        if self.nesting > MAX_DEPTH / 2 {
            return Err(too_deep(self.at()));
        }
        let read = read(self)?;
        self.nesting -= 1;
        Ok(read)
    }

    fn postfix(&mut self, mut node: Node) -> Result<Node, Fault> {
        loop {
            let at = self.at();
            if self.takes(".") {
                let optional = self.takes("?");
                let name = self.name()?;
                let call = self.at();
                let of = Box::new(node);
                node = if !optional && self.takes("(") {
                    let arguments = self.arguments(")")?;
                    self.method(call, of, name, arguments)?
                } else {
                    self.node(at, Expr::Field { of, name, optional })?
                };
            } else if self.takes("[") {
                let optional = self.takes("?");
                let key = Box::new(self.expression()?);
                self.expect("]")?;
                node = self.node(at, Expr::Index { of: Box::new(node), key, optional })?;
            } else if matches!(self.peek(), Token::Sign("{"))
                && matches!(node.expr, Expr::Name(_) | Expr::Field { .. })
            {
                return Err(Fault::at(at, "undeclared reference: message construction is not supported"));
            } else {
                return Ok(node);
            }
        }
    }

    /// Parses a name after a dot, which may be a reserved word.
    fn name(&mut self) -> Result<Arc<str>, Fault> {
        match self.advance() {
            Token::Name(name) if !matches!(&*name, "in" | "true" | "false" | "null") => Ok(name),
            token => {
                self.next -= 1;
                Err(self.unexpected(&token, "IDENTIFIER"))
            }
        }
    }

    fn arguments(&mut self, end: &str) -> Result<Vec<Node>, Fault> {
        let mut arguments = Vec::new();
        if self.takes(end) {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.expression()?);
            if !self.takes(",") {
                self.expect(end)?;
                return Ok(arguments);
            }
        }
    }

    fn primary(&mut self) -> Result<Node, Fault> {
        let at = self.at();
        let expr = match self.advance() {
            Token::Int(number) => Expr::Int(number),
            Token::Uint(number) => Expr::Uint(number),
            Token::Double(number) => Expr::Double(number),
            Token::Text(text) => Expr::Text(text),
            Token::Bytes(bytes) => Expr::Bytes(bytes),
            Token::Sign("(") => {
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Sign("[") => self.list()?,
            Token::Sign("{") => self.map()?,
            // A leading dot: a name from the root.
            Token::Sign(".") if !matches!(self.peek(), Token::Name(_)) => {
                return Err(self.unexpected(&self.peek().clone(), "IDENTIFIER"));
            }
            Token::Sign(".") => return self.primary(),
            Token::Name(name) => match &*name {
                "true" => Expr::Bool(true),
                "false" => Expr::Bool(false),
                "null" => Expr::Null,
                word if RESERVED.contains(&word) => {
                    return Err(Fault::at(at, format!("Syntax error: reserved identifier: {word}")));
                }
                _ if matches!(self.peek(), Token::Sign("(")) => {
                    let call = self.at();
                    self.next += 1;
                    let arguments = self.arguments(")")?;
                    return self.function(call, name, arguments);
                }
                _ => Expr::Name(name),
            },
            token => {
                self.next -= 1;
                return Err(self.unexpected(&token, "an expression"));
            }
        };
        self.node(at, expr)
    }

    fn list(&mut self) -> Result<Expr, Fault> {
        let mut items = Vec::new();
        while !self.takes("]") {
            let optional = self.takes("?");
            items.push((self.expression()?, optional));
            if !self.takes(",") {
                self.expect("]")?;
                break;
            }
        }
        Ok(Expr::List(items))
    }

    fn map(&mut self) -> Result<Expr, Fault> {
        let mut items = Vec::new();
        while !self.takes("}") {
            let optional = self.takes("?");
            let key = self.expression()?;
            self.expect(":")?;
            items.push((key, self.expression()?, optional));
            if !self.takes(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr::Map(items))
    }

    fn function(&self, at: usize, name: Arc<str>, mut arguments: Vec<Node>) -> Result<Node, Fault> {
        if &*name == "has" && arguments.len() == 1 {
            let Some(Node { expr: Expr::Field { of, name, optional: false }, at, .. }) = arguments.pop()
            else {
                return Err(Fault::at(at, "invalid argument to has() macro"));
            };
            return self.node(at, Expr::Has { of, name });
        }
        self.node(at, Expr::Call { name, of: None, arguments })
    }

    fn method(&self, at: usize, of: Box<Node>, name: Arc<str>, arguments: Vec<Node>) -> Result<Node, Fault> {
        if let Expr::Name(space) = &of.expr {
            let known = SPACES.iter().find(|(known, _)| **known == **space);
            let format = &**space == "format" && super::named::NAMES.contains(&&*name);
            if format || known.is_some_and(|(_, names)| names.contains(&&*name)) {
                let name = format!("{space}.{name}").into();
                return self.node(at, Expr::Call { name, of: None, arguments });
            }
        }
        self.each(at, of, name, arguments)
    }

    /// Parses a comprehension macro, or a method.
    fn each(
        &self,
        at: usize,
        of: Box<Node>,
        name: Arc<str>,
        mut arguments: Vec<Node>,
    ) -> Result<Node, Fault> {
        let variable = |node: &Node| match &node.expr {
            Expr::Name(name) => Ok(Arc::clone(name)),
            _ => Err(Fault::at(node.at, "argument must be a simple name")),
        };
        let how = match (&*name, arguments.len()) {
            ("all", 2 | 3) => Some(How::All),
            ("exists", 2 | 3) => Some(How::Exists),
            ("exists_one" | "existsOne", 2 | 3) => Some(How::ExistsOne),
            ("map", 2 | 3) | ("transformList", 3 | 4) => Some(How::List),
            ("filter", 2) => Some(How::Filter),
            ("transformMap", 3 | 4) => Some(How::Map),
            ("optMap" | "optFlatMap", 2) => None,
            _ => return self.node(at, Expr::Call { name, of: Some(of), arguments }),
        };
        let two = matches!(&*name, "transformList" | "transformMap")
            || (arguments.len() == 3 && !matches!(&*name, "map"));
        let Some(body) = arguments.pop() else { return Err(too_deep(at)) };
        let first = arguments.first().map(variable).transpose()?.unwrap_or_default();
        let Some(how) = how else {
            let flat = &*name == "optFlatMap";
            return self.node(at, Expr::Given { of, variable: first, body: Box::new(body), flat });
        };
        let second = if two { arguments.get(1).map(variable).transpose()? } else { None };
        let filter = if arguments.len() > 1 + usize::from(two) { arguments.pop() } else { None };
        let each = Each { how, over: *of, variable: first, second, filter, body };
        self.node(at, Expr::Each(Box::new(each)))
    }
}

fn too_deep(at: usize) -> Fault {
    Fault::at(at, format!("expression recursion limit exceeded: {MAX_DEPTH}"))
}
