//! The evaluator, a tree walker bounded by a meter. An error of one operand of `&&` or `||` counts
//! only if the other operands do not decide, as CEL specifies.

use std::sync::Arc;

use jiff::SignedDuration;

use super::call::call;
use super::check::Sums;
use super::meter::{Failure, Meter, Outcome, failed};
use super::operate::operate;
use super::regexes::Tools;
use super::tree::{Each, Expr, How, Node};
use super::types::Type;
use super::value::{Text, Val};

/// Nesting limit of lists, maps and optionals that an expression makes: traversal is recursive.
const MAX_LEVELS: usize = 100;

/// Evaluates an expression over variables.
pub(super) struct Runner<'a, 'm> {
    pub(super) tools: Tools<'m>,
    pub(super) scope: Vec<(&'a str, Val<'a>)>,
    pub(super) sums: &'a Sums,
}

impl<'a> Runner<'a, '_> {
    fn meter(&mut self) -> &mut Meter {
        self.tools.meter
    }

    pub(super) fn node(&mut self, node: &'a Node) -> Outcome<Val<'a>> {
        self.meter().spend(1)?;
        let value = self.value(node)?;
        if value.level() > MAX_LEVELS {
            return failed(format!("values are nested deeper than {MAX_LEVELS} levels"));
        }
        Ok(value)
    }

    fn value(&mut self, node: &'a Node) -> Outcome<Val<'a>> {
        Ok(match &node.expr {
            Expr::Null => Val::Null,
            Expr::Bool(value) => Val::Bool(*value),
            Expr::Int(number) => Val::Int(*number),
            Expr::Uint(number) => Val::Uint(*number),
            Expr::Double(number) => Val::Double(*number),
            Expr::Text(text) => Val::Text(Text::Of(text)),
            Expr::Bytes(bytes) => Val::Bytes(Arc::clone(bytes)),
            Expr::Name(name) => return self.name(name),
            Expr::Field { of, name, optional } => {
                let of = self.node(of)?;
                return self.field(&of, &Val::Text(Text::Of(name)), *optional);
            }
            Expr::Has { of, name } => {
                let found = self.node(of)?;
                Val::Bool(self.find(&found, &Val::Text(Text::Of(name)))?.is_some())
            }
            Expr::Index { of, key, optional } => {
                let (of, key) = (self.node(of)?, self.node(key)?);
                return self.field(&of, &key, *optional);
            }
            Expr::Not(of) => Val::Bool(!self.condition(of)?),
            Expr::Negative(of) => match self.node(of)? {
                Val::Int(number) => {
                    number.checked_neg().map_or_else(|| failed("integer overflow"), |n| Ok(Val::Int(n)))?
                }
                Val::Double(number) => Val::Double(-number),
                other => return failed(format!("no such overload: -{}", other.kind())),
            },
            Expr::All(nodes) => Val::Bool(self.joined(nodes.iter(), false)?),
            Expr::Any(nodes) => Val::Bool(self.joined(nodes.iter(), true)?),
            Expr::Choice(nodes) => {
                let [condition, yes, no] = &**nodes;
                let chosen = if self.condition(condition)? { yes } else { no };
                return self.node(chosen);
            }
            Expr::Operator { name, sides } => {
                let [left, right] = &**sides;
                let (left, right) = (self.node(left)?, self.node(right)?);
                return operate(*name, &left, &right, self.tools.meter);
            }
            Expr::Call { name, of, arguments } => {
                let mut values = Vec::with_capacity(arguments.len() + 1);
                for node in of.as_deref().into_iter().chain(arguments) {
                    values.push(self.node(node)?);
                }
                if &**name == "sum"
                    && let [list] = &values[..]
                    && list.length() == Some(0)
                    && let Some(zero) = self.sums.get(&node.at)
                {
                    return Ok(zero_of(zero));
                }
                return call(name, &values, &mut self.tools);
            }
            Expr::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for (node, optional) in items {
                    list.extend(self.item(node, *optional)?);
                }
                Val::list(list)
            }
            Expr::Map(items) => {
                let mut map: Vec<(Val<'a>, Val<'a>)> = Vec::with_capacity(items.len());
                for (key, value, optional) in items {
                    let key = self.node(key)?;
                    if !key.may_be_key() {
                        return failed(format!("unsupported key type: {}", key.kind()));
                    }
                    for (known, _) in &map {
                        if known.equals(&key, self.tools.meter)? {
                            return failed("insert failed: duplicate key");
                        }
                    }
                    map.extend(self.item(value, *optional)?.map(|value| (key, value)));
                }
                Val::map(map)
            }
            Expr::Each(each) => return self.each(each),
            Expr::Given { of, variable, body, flat } => match self.node(of)? {
                Val::Optional(None) => Val::Optional(None),
                Val::Optional(Some(value)) => {
                    let found = self.within(variable, (**value).clone(), |runner| runner.node(body))?;
                    if *flat { found } else { Val::some(found) }
                }
                other => return failed(format!("no such overload: {}.optMap", other.kind())),
            },
        })
    }

    fn name(&mut self, name: &'a str) -> Outcome<Val<'a>> {
        match self.scope.iter().rev().find(|(known, _)| *known == name) {
            Some((_, value)) => Ok(value.clone()),
            None => Ok(Val::Kind(name.into())),
        }
    }

    fn within<T>(&mut self, name: &'a str, value: Val<'a>, run: impl FnOnce(&mut Self) -> T) -> T {
        self.scope.push((name, value));
        let done = run(self);
        self.scope.pop();
        done
    }

    fn condition(&mut self, node: &'a Node) -> Outcome<bool> {
        match self.node(node)? {
            Val::Bool(value) => Ok(value),
            other => failed(format!("no such overload: {} is not a condition", other.kind())),
        }
    }

    /// Returns whether a condition equals `decides`; if none does, the first error counts.
    fn joined(&mut self, nodes: impl Iterator<Item = &'a Node>, decides: bool) -> Outcome<bool> {
        let mut failure = None;
        for node in nodes {
            match self.condition(node) {
                Ok(value) if value == decides => return Ok(decides),
                Ok(_) => {}
                Err(Failure::Budget) => return Err(Failure::Budget),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(!decides), Err)
    }

    fn item(&mut self, node: &'a Node, optional: bool) -> Outcome<Option<Val<'a>>> {
        match (self.node(node)?, optional) {
            (Val::Optional(value), true) => Ok(value.map(|value| (**value).clone())),
            (value, _) => Ok(Some(value)),
        }
    }

    /// Returns the value at a key; an optional is unwrapped.
    fn find(&mut self, of: &Val<'a>, key: &Val<'a>) -> Outcome<Option<Val<'a>>> {
        match of {
            Val::Optional(None) => Ok(None),
            Val::Optional(Some(inner)) => self.find(inner, key),
            Val::Items(..) | Val::List(_) => match index(key) {
                Some(place) => of.item(place, self.tools.meter),
                None => Ok(None),
            },
            Val::Object(..) | Val::Fields(..) | Val::Map(_) => of.get(key, self.tools.meter),
            other => failed(format!("no such overload: {} has no fields", other.kind())),
        }
    }

    fn field(&mut self, of: &Val<'a>, key: &Val<'a>, optional: bool) -> Outcome<Val<'a>> {
        let found = self.find(of, key)?;
        if optional || matches!(of, Val::Optional(_)) {
            return Ok(match found {
                Some(already @ Val::Optional(_)) => already,
                found => Val::optional(found),
            });
        }
        match found {
            Some(found) => Ok(found),
            None if matches!(of, Val::Items(..) | Val::List(_)) => {
                failed(format!("index out of bounds: {key}"))
            }
            None => failed(format!("no such key: {key}")),
        }
    }

    fn each(&mut self, each: &'a Each) -> Outcome<Val<'a>> {
        let over = self.node(&each.over)?;
        let pairs: Vec<(Val<'a>, Val<'a>)> = match &over {
            Val::Fields(..) | Val::Map(_) => {
                let entries = over.entries(self.tools.meter)?;
                let two = each.second.is_some();
                entries
                    .into_iter()
                    .map(|(key, value)| if two { (key, value) } else { (Val::Null, key) })
                    .collect()
            }
            _ => {
                let items = over.items(self.tools.meter)?;
                items.into_iter().zip(0i64..).map(|(item, place)| (Val::Int(place), item)).collect()
            }
        };
        let is_map = matches!(over, Val::Fields(..) | Val::Map(_));
        let mut gathered = Gathered::default();
        for (first, second) in pairs {
            self.meter().spend(1)?;
            match &each.second {
                Some(name) => {
                    self.scope.push((&each.variable, first.clone()));
                    self.scope.push((name, second.clone()));
                }
                None => self.scope.push((&each.variable, second.clone())),
            }
            let done = self.one(each, first, second, is_map, &mut gathered);
            let length = self.scope.len() - 1 - usize::from(each.second.is_some());
            self.scope.truncate(length);
            if let Some(decided) = done? {
                return Ok(Val::Bool(decided));
            }
        }
        match each.how {
            How::All => gathered.failure.map_or(Ok(Val::Bool(true)), Err),
            How::Exists => gathered.failure.map_or(Ok(Val::Bool(false)), Err),
            How::ExistsOne => Ok(Val::Bool(gathered.count == 1)),
            How::List | How::Filter => Ok(Val::list(gathered.list)),
            How::Map => Ok(Val::map(gathered.map)),
        }
    }

    /// Returns the result as soon as the remaining items cannot change it.
    fn one(
        &mut self,
        each: &'a Each,
        first: Val<'a>,
        second: Val<'a>,
        is_map: bool,
        gathered: &mut Gathered<'a>,
    ) -> Outcome<Option<bool>> {
        if let Some(filter) = &each.filter
            && !self.condition(filter)?
        {
            return Ok(None);
        }
        match each.how {
            How::All | How::Exists => match self.condition(&each.body) {
                Ok(holds) if holds == (each.how == How::Exists) => return Ok(Some(holds)),
                Ok(_) => {}
                Err(Failure::Budget) => return Err(Failure::Budget),
                Err(error) => gathered.failure = gathered.failure.take().or(Some(error)),
            },
            How::ExistsOne => gathered.count += usize::from(self.condition(&each.body)?),
            How::Filter => {
                if self.condition(&each.body)? {
                    gathered.list.push(if is_map && each.second.is_some() { first } else { second });
                }
            }
            How::List => {
                let found = self.node(&each.body)?;
                gathered.list.push(found);
            }
            How::Map => {
                let found = self.node(&each.body)?;
                gathered.map.push((first, found));
            }
        }
        Ok(None)
    }
}

/// Returns the sum of an empty list.
fn zero_of<'a>(item: &Type) -> Val<'a> {
    match item {
        Type::Uint => Val::Uint(0),
        Type::Double => Val::Double(0.0),
        Type::Span => Val::Span(SignedDuration::ZERO),
        _ => Val::Int(0),
    }
}

#[derive(Default)]
struct Gathered<'a> {
    failure: Option<Failure>,
    count: usize,
    list: Vec<Val<'a>>,
    map: Vec<(Val<'a>, Val<'a>)>,
}

/// Converts a number to an index.
fn index(key: &Val<'_>) -> Option<usize> {
    match key {
        Val::Int(place) => usize::try_from(*place).ok(),
        Val::Uint(place) => usize::try_from(*place).ok(),
        Val::Double(place) if place.fract() == 0.0 && *place >= 0.0 => Some(*place as usize),
        _ => None,
    }
}
