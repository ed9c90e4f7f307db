//! Estimates the maximum cost of an expression from the maximum sizes of its variables, in the cost
//! units of Kubernetes and with its estimates for each operator, macro and function. Pure.
//!
//! Numbers of one expression agree with those of an API server, also where these are arbitrary: a
//! value that is not part of a variable has an unknown size, a part of such a value has the size of
//! the whole variable.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::check::Types;
use super::tree::{Each, Expr, How, Node, Operator};
use super::types::Type;

/// Cost of reading one character or byte.
const READ: f64 = 0.1;
/// Cost of one character of a pattern, for each unit of text.
const PATTERN: f64 = 0.25;
/// Cost of a new list.
const NEW_LIST: u64 = 10;
/// Cost of a new map.
const NEW_MAP: u64 = 30;
/// Length that patterns of named formats are taken to have.
const FORMAT_PATTERN: f64 = 128.0;
/// Length that a named format is taken to have.
const FORMAT: u64 = 64;
/// Cost of comparing two IP addresses or ranges.
const COMPARE_ADDRESSES: u64 = 4;
/// Cost of masking an address range and comparing the bits.
const MASK_RANGE: u64 = 3;

/// The maximum sizes of a value and of its parts, as a schema limits them.
#[derive(Debug, Default)]
pub struct Sizes {
    /// Maximum number of bytes, items or entries; zero for other values.
    pub max: u64,
    /// The fields of an object, by the names that expressions use.
    pub fields: BTreeMap<Arc<str>, Arc<Sizes>>,
    /// The items of a list, or the values of a map.
    pub items: Option<Arc<Sizes>>,
    /// Whether it is a map.
    pub is_map: bool,
}

/// A range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    min: u64,
    max: u64,
}

impl Size {
    const UNKNOWN: Self = Self { min: 0, max: u64::MAX };
    const SCALAR: Self = Self::fixed(1);

    const fn fixed(size: u64) -> Self {
        Self { min: size, max: size }
    }

    fn or(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Returns the cost of reading all of it.
    fn read(self) -> u64 {
        scaled(self.max, READ)
    }
}

/// Returns the product, rounded up.
fn scaled(size: u64, factor: f64) -> u64 {
    // A product beyond the range becomes its maximum.
    (size as f64 * factor).ceil() as u64
}

/// Location of a value among the variables.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    /// The value is computed.
    None,
    At(&'a Sizes),
    /// No sizes are declared there.
    Undeclared,
}

/// A step from a value to its part.
enum Step<'s> {
    Field(&'s str),
    /// An item of a list, or a value of a map.
    Item,
    Key,
    /// The index of an item.
    Index,
}

/// Estimates for a node of an expression.
#[derive(Clone, Copy, Debug)]
struct Found<'a> {
    cost: u64,
    place: Place<'a>,
    size: Option<Size>,
    /// The sizes of keys and values in a computed list or map; a list has the key size 1.
    entry: Option<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    is_list: bool,
    key: Size,
    value: Size,
}

impl Entry {
    fn or(self, other: Self) -> Self {
        Self { key: self.key.or(other.key), value: self.value.or(other.value), ..self }
    }
}

impl Found<'_> {
    fn sized(&self) -> Size {
        self.size.unwrap_or(Size::UNKNOWN)
    }
}

/// A variable of a macro.
struct Local<'a> {
    name: &'a str,
    place: Place<'a>,
    size: Option<Size>,
}

struct Estimator<'a> {
    root: &'a Sizes,
    types: &'a Types,
    locals: Vec<Local<'a>>,
}

/// Estimates the cost of a checked expression whose variables have these sizes.
pub(super) fn estimate(node: &Node, types: &Types, sizes: &Sizes) -> u64 {
    Estimator { root: sizes, types, locals: Vec::new() }.node(node).cost
}

fn is_scalar(of: &Type) -> bool {
    match of {
        Type::Bool | Type::Int | Type::Uint | Type::Double | Type::Span | Type::Time => true,
        Type::Optional(of) => is_scalar(of),
        _ => false,
    }
}

impl<'a> Estimator<'a> {
    fn type_of(&self, node: &Node) -> &'a Type {
        self.types.get(&std::ptr::from_ref(node)).unwrap_or(&Type::Dyn)
    }

    fn part(&self, place: Place<'a>, step: &Step<'_>) -> Place<'a> {
        let of = match place {
            Place::None => return Place::At(self.root),
            Place::Undeclared => return Place::Undeclared,
            Place::At(of) => of,
        };
        // The keys of a map have no declared limit.
        static KEYS: Sizes = Sizes { max: 0, fields: BTreeMap::new(), items: None, is_map: false };
        let part = match step {
            Step::Field(name) => of.fields.get(*name).map(|field| &**field),
            Step::Item => of.items.as_deref(),
            Step::Key => of.is_map.then_some(&KEYS),
            Step::Index => None,
        };
        part.map_or(Place::Undeclared, Place::At)
    }

    /// Returns a node of this cost, with the size of its place or its type.
    fn found(&self, node: &Node, cost: u64, place: Place<'a>) -> Found<'a> {
        let size = match place {
            Place::At(of) => Some(Size { min: 0, max: of.max }),
            _ => is_scalar(self.type_of(node)).then_some(Size::SCALAR),
        };
        Found { cost, place, size, entry: None }
    }

    /// Returns a computed node of this cost and size; `None` stands for the size of its type.
    fn computed(&self, node: &Node, cost: u64, size: Option<Size>) -> Found<'a> {
        let found = self.found(node, cost, Place::None);
        Found { size: size.or(found.size), ..found }
    }

    fn costs(&mut self, nodes: &'a [Node]) -> u64 {
        nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(self.node(node).cost))
    }

    fn node(&mut self, node: &'a Node) -> Found<'a> {
        match &node.expr {
            Expr::Null | Expr::Bool(_) | Expr::Int(_) | Expr::Uint(_) | Expr::Double(_) => {
                self.computed(node, 0, Some(Size::SCALAR))
            }
            Expr::Text(text) => self.computed(node, 0, Some(Size::fixed(text.chars().count() as u64))),
            Expr::Bytes(bytes) => self.computed(node, 0, Some(Size::fixed(bytes.len() as u64))),
            Expr::Name(name) => self.name(node, name),
            Expr::Field { of, optional: true, .. } => {
                let cost = self.node(of).cost;
                self.computed(node, cost.saturating_add(1), None)
            }
            Expr::Field { of, name, optional: false } => {
                let has_fields = matches!(self.type_of(of), Type::Map(_) | Type::Object(_));
                let of = self.node(of);
                let place = self.part(of.place, &Step::Field(name));
                self.found(node, of.cost.saturating_add(u64::from(has_fields)), place)
            }
            Expr::Has { of, .. } => {
                let cost = self.node(of).cost;
                self.computed(node, cost, None)
            }
            Expr::Index { of, key, optional } => self.index(node, of, key, *optional),
            Expr::Not(of) | Expr::Negative(of) => {
                let cost = self.node(of).cost;
                self.computed(node, cost.saturating_add(1), None)
            }
            Expr::All(nodes) | Expr::Any(nodes) => {
                let cost = self.costs(nodes);
                self.computed(node, cost, None)
            }
            Expr::Choice(nodes) => {
                let [condition, yes, no] = &**nodes;
                let (condition, yes, no) = (self.node(condition), self.node(yes), self.node(no));
                let cost = condition.cost.saturating_add(yes.cost.max(no.cost));
                let entry = yes.entry.zip(no.entry).map(|(yes, no)| yes.or(no));
                Found { entry, ..self.computed(node, cost, Some(yes.sized().or(no.sized()))) }
            }
            Expr::Operator { name, sides } => self.operator(node, *name, sides),
            Expr::Call { name, of, arguments } => self.call(node, name, of.as_deref(), arguments),
            Expr::List(items) => {
                let items: Vec<Found<'_>> = items.iter().map(|(item, _)| self.node(item)).collect();
                self.collection(node, true, items.len(), items.iter().map(|item| (None, *item)))
            }
            Expr::Map(entries) => {
                let entries: Vec<(Option<Found<'_>>, Found<'_>)> =
                    entries.iter().map(|(key, value, _)| (Some(self.node(key)), self.node(value))).collect();
                self.collection(node, false, entries.len(), entries.iter().copied())
            }
            Expr::Each(each) => self.each(node, each),
            Expr::Given { of, variable, body, flat } => self.given(node, of, variable, body, *flat),
        }
    }

    fn name(&self, node: &Node, name: &str) -> Found<'a> {
        let Some(local) = self.locals.iter().rev().find(|local| local.name == name) else {
            return self.found(node, 1, Place::At(self.root));
        };
        let found = self.found(node, 1, local.place);
        Found { size: found.size.or(local.size), ..found }
    }

    fn index(&mut self, node: &Node, of: &'a Node, key: &'a Node, optional: bool) -> Found<'a> {
        let of_type = self.type_of(of);
        let (of, key) = (self.node(of), self.node(key));
        let cost = of.cost.saturating_add(key.cost).saturating_add(1);
        if optional || matches!(of_type, Type::Optional(_)) {
            return self.computed(node, cost, None);
        }
        let found = self.found(node, cost, self.part(of.place, &Step::Item));
        Found { size: of.entry.map(|entry| entry.value).or(found.size), ..found }
    }

    fn collection(
        &self,
        node: &Node,
        is_list: bool,
        length: usize,
        parts: impl Iterator<Item = (Option<Found<'a>>, Found<'a>)>,
    ) -> Found<'a> {
        let nothing = Size { min: if length == 0 { 0 } else { u64::MAX }, max: 0 };
        let key = if is_list { Size::SCALAR } else { nothing };
        let price = if is_list { NEW_LIST } else { NEW_MAP };
        let (mut cost, mut entry) = (price, Entry { is_list, key, value: nothing });
        for (key, value) in parts {
            if let Some(key) = key {
                cost = cost.saturating_add(key.cost);
                entry.key = entry.key.or(key.sized());
            }
            cost = cost.saturating_add(value.cost);
            entry.value = entry.value.or(value.sized());
        }
        let found = self.computed(node, cost, Some(Size::fixed(length as u64)));
        Found { entry: Some(entry), ..found }
    }

    fn operator(&mut self, node: &Node, name: Operator, sides: &'a [Node; 2]) -> Found<'a> {
        use Operator as O;
        let (left_type, right_type) = (self.type_of(&sides[0]), self.type_of(&sides[1]));
        let (left, right) = (self.node(&sides[0]), self.node(&sides[1]));
        let may_be = |wanted: fn(&Type) -> bool| {
            [left_type, right_type].into_iter().all(|of| of.is_dyn() || wanted(of))
        };
        let may_be_text = may_be(|of| *of == Type::Text) || may_be(|of| *of == Type::Bytes);
        let both_dyn = left_type.is_dyn() && right_type.is_dyn();
        let smaller = Size::fixed(left.sized().max.min(right.sized().max)).read();
        let mut size = None;
        let cost = match name {
            O::Equal => equality(left_type, right_type, &right).unwrap_or(smaller),
            O::NotEqual => smaller,
            O::Less | O::LessOrEqual | O::Greater | O::GreaterOrEqual if may_be_text => {
                smaller.max(u64::from(both_dyn))
            }
            O::In => match right_type {
                Type::List(_) => right.sized().max,
                Type::Dyn => right.sized().max.max(1),
                _ => 1,
            },
            O::Add => {
                let sum = left.sized().plus(right.sized());
                let may_be_list = may_be(|of| matches!(of, Type::List(_)));
                size = (may_be_text || may_be_list).then_some(sum);
                let read = if may_be_text { sum.read() } else { 0 };
                if may_be_text && !both_dyn { read } else { read.max(1) }
            }
            _ => 1,
        };
        let cost = cost.saturating_add(left.cost).saturating_add(right.cost);
        let entry = left.entry.zip(right.entry).map(|(left, right)| left.or(right));
        Found { entry: entry.filter(|_| name == O::Add), ..self.computed(node, cost, size) }
    }

    fn call(&mut self, node: &Node, name: &str, of: Option<&'a Node>, arguments: &'a [Node]) -> Found<'a> {
        let target = of.map(|of| (self.type_of(of), self.node(of)));
        let given: Vec<Found<'_>> = arguments.iter().map(|argument| self.node(argument)).collect();
        let (cost, size) = self.function(name, target, arguments, &given);
        let cost = target
            .iter()
            .map(|(_, of)| of)
            .chain(&given)
            .fold(cost, |sum, part| sum.saturating_add(part.cost));
        let found = self.computed(node, cost, size);
        match (name, given.first()) {
            ("dyn", Some(of)) => Found { size: of.size.or(found.size), entry: of.entry, ..found },
            _ => found,
        }
    }

    /// Returns the cost of a call without its arguments, and the size of the result.
    fn function(
        &self,
        name: &str,
        target: Option<(&Type, Found<'a>)>,
        arguments: &[Node],
        given: &[Found<'a>],
    ) -> (u64, Option<Size>) {
        let argument = |number: usize| given.get(number).map(Found::sized).unwrap_or(Size::UNKNOWN);
        let type_of = |number: usize| arguments.get(number).map_or(&Type::Dyn, |node| self.type_of(node));
        let Some((of_type, of)) = target else {
            return match name {
                "url" => (argument(0).read(), Some(argument(0))),
                "ip" | "cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
                    (argument(0).read(), None)
                }
                "ip.isCanonical" => (scaled(argument(0).max, 2.0 * READ), None),
                "strings.quote" => {
                    let Size { min, max } = argument(0);
                    let size = Size { min: min.wrapping_add(2), max: max.wrapping_mul(2).wrapping_add(2) };
                    (argument(0).read(), Some(size))
                }
                "bytes" if *type_of(0) != Type::Bytes => {
                    let Size { min, max } = argument(0);
                    let cost = argument(0).read().max(u64::from(type_of(0).is_dyn()));
                    (cost, Some(Size { min, max: max.wrapping_mul(4) }))
                }
                "string" if matches!(type_of(0), Type::Bytes | Type::Dyn) => {
                    let Size { min, max } = argument(0);
                    let cost = argument(0).read().max(u64::from(type_of(0).is_dyn()));
                    (cost, Some(Size { min: min / 4, max }))
                }
                "sets.contains" | "sets.intersects" => {
                    (argument(0).times(argument(1)).max.saturating_add(1), None)
                }
                "sets.equivalent" => {
                    (scaled(argument(0).times(argument(1)).max, 2.0).saturating_add(1), None)
                }
                _ => (1, None),
            };
        };
        let size = of.sized();
        let items = self.items(of_type, of.place);
        let list = |cost: u64, size: Size| (cost.saturating_add(1 + NEW_LIST), Some(size));
        match name {
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => match items {
                Some((item, item_size)) => {
                    let texts = matches!(item, Type::Text | Type::Bytes);
                    let one = if texts { item_size.read().saturating_add(1) } else { 1 };
                    (size.max.saturating_mul(one), None)
                }
                None => (size.read(), None),
            },
            "lowerAscii" | "upperAscii" | "substring" | "trim" => (size.read(), Some(size)),
            "replace" => (scaled(size.max, 2.0 * READ), Some(replaced(size, argument(0), argument(1)))),
            "split" => {
                let most = match arguments.get(1).map(|node| &node.expr) {
                    Some(Expr::Int(most)) => *most as u64,
                    _ => size.max,
                };
                (scaled(size.max, 2.0 * READ), Some(Size { min: 0, max: most }))
            }
            "join" => {
                let mut joined = items.map_or(Size::fixed(0), |(_, item)| size.times(item));
                if !given.is_empty() {
                    let gaps = Size { min: size.min.saturating_sub(1), max: size.max.saturating_sub(1) };
                    joined = joined.plus(argument(0).times(gaps));
                }
                (joined.read(), Some(joined))
            }
            "find" | "findAll" => {
                let cost = size.plus(Size::SCALAR).read().saturating_mul(scaled(argument(0).max, PATTERN));
                (cost, Some(Size { min: 0, max: size.max }))
            }
            "matches" => {
                let cost = size.plus(Size::SCALAR).read().saturating_mul(scaled(argument(0).max, PATTERN));
                (cost, None)
            }
            "contains" => (size.read().saturating_mul(argument(0).read()), None),
            "startsWith" | "endsWith" => (argument(0).read(), None),
            "format" => (size.read(), None),
            "containsIP" | "containsCIDR" => {
                let parsed =
                    if *type_of(0) == Type::Text || type_of(0).is_dyn() { argument(0).read() } else { 0 };
                let masked = if name == "containsCIDR" { MASK_RANGE } else { 0 };
                (parsed.saturating_add(COMPARE_ADDRESSES + masked), None)
            }
            "validate" => (scaled(argument(0).read(), FORMAT_PATTERN * PATTERN), None),
            "slice" => {
                let bound = |number: usize, default: u64| match arguments.get(number).map(|node| &node.expr) {
                    Some(Expr::Int(bound)) => u64::try_from(*bound).unwrap_or(0),
                    _ => default,
                };
                let length = Size::fixed(bound(1, size.max).wrapping_sub(bound(0, 0)));
                list(length.max, length)
            }
            "reverse" if *of_type != Type::Text => list(size.max, size),
            "distinct" => list(scaled(size.times(size).max, 2.0), size.times(size)),
            "sort" => {
                let texts =
                    items.is_none_or(|(item, _)| matches!(item, Type::Text | Type::Bytes | Type::Dyn));
                let factor = if texts { 2.0 + READ } else { 2.0 };
                list(scaled(size.times(size).max, factor), size.times(size))
            }
            _ => (1, None),
        }
    }

    /// Returns the type and size of a list's items; `None` if it is no list.
    fn items<'t>(&self, of: &'t Type, place: Place<'a>) -> Option<(&'t Type, Size)> {
        let Type::List(list) = of else { return None };
        let place = match place {
            Place::None => Place::None,
            place => self.part(place, &Step::Item),
        };
        Some((
            &list.item,
            match place {
                Place::At(of) => Size { min: 0, max: of.max },
                _ => Size::UNKNOWN,
            },
        ))
    }

    fn each(&mut self, node: &Node, each: &'a Each) -> Found<'a> {
        let is_list = matches!(self.type_of(&each.over), Type::List(_));
        let over = self.node(&each.over);
        let is_list = over.entry.map_or(is_list, |entry| entry.is_list);
        let local = |estimator: &Self, name: &'a str, step: &Step<'_>, size: Option<Size>| Local {
            name,
            place: estimator.part(over.place, step),
            size,
        };
        let (key, value) = (over.entry.map(|entry| entry.key), over.entry.map(|entry| entry.value));
        let length = self.locals.len();
        match &each.second {
            Some(second) => {
                let step = if is_list { Step::Index } else { Step::Key };
                self.locals.push(local(self, &each.variable, &step, key));
                self.locals.push(local(self, second, &Step::Item, value));
            }
            None if is_list => self.locals.push(local(self, &each.variable, &Step::Item, value)),
            None => self.locals.push(local(self, &each.variable, &Step::Key, key)),
        }
        let filter = each.filter.as_ref().map(|filter| self.node(filter).cost);
        let body = self.node(&each.body);
        // A filter keeps the variable.
        let kept = self.locals.get(length).map(|local| match local.place {
            Place::At(of) => Size { min: 0, max: of.max },
            _ => local.size.unwrap_or(Size::UNKNOWN),
        });
        self.locals.truncate(length);
        let filtered = |cost: u64| match filter {
            Some(filter) => filter.saturating_add(cost.max(1)),
            None => cost,
        };
        // The cost of one item, and of the beginning and the end.
        let (one, both) = match each.how {
            How::All => (body.cost.saturating_add(3), 1),
            How::Exists => (body.cost.saturating_add(4), 1),
            How::ExistsOne => (body.cost.saturating_add(2), 2),
            How::List => (filtered(body.cost.saturating_add(NEW_LIST + 2)), NEW_LIST + 1),
            How::Filter => (body.cost.saturating_add(NEW_LIST + 3), NEW_LIST + 1),
            How::Map => (filtered(body.cost.saturating_add(3)), NEW_MAP + 1),
        };
        let range = over.sized();
        let cost = over.cost.saturating_add(both).saturating_add(range.max.saturating_mul(one));
        let entry = |size: Size| {
            Some(Entry { is_list: true, key: Size::SCALAR, value: Size { min: 0, max: size.max } })
        };
        let (size, entry) = match each.how {
            How::All | How::Exists | How::ExistsOne => (Size::SCALAR, None),
            How::List => (range, entry(body.sized())),
            How::Filter => (range, entry(kept.unwrap_or(Size::UNKNOWN))),
            How::Map => (range, None),
        };
        Found { entry, ..self.computed(node, cost, Some(size)) }
    }

    /// `a.optMap(x, b)` is `a.hasValue() ? optional.of(b with x = a.value()) : optional.none()`.
    fn given(&mut self, node: &Node, of: &'a Node, name: &'a str, body: &'a Node, flat: bool) -> Found<'a> {
        let inner = match self.type_of(of) {
            Type::Optional(inner) => is_scalar(inner),
            _ => false,
        };
        let of = self.node(of);
        self.locals.push(Local { name, place: Place::None, size: inner.then_some(Size::SCALAR) });
        let body = self.node(body);
        self.locals.pop();
        let bound = NEW_LIST.saturating_add(of.cost).saturating_add(1).saturating_add(body.cost);
        let yes = if flat { bound } else { bound.saturating_add(1) };
        let cost = of.cost.saturating_add(1).saturating_add(yes);
        let none = if is_scalar(self.type_of(node)) { Size::SCALAR } else { Size::UNKNOWN };
        let size = if flat { body.sized().or(none) } else { none };
        self.computed(node, cost, Some(size))
    }
}

/// Returns the cost of `==` between two values of a type with its own cost.
fn equality(left: &Type, right: &Type, other: &Found<'_>) -> Option<u64> {
    if left != right {
        return None;
    }
    match left {
        Type::Ip | Type::Cidr | Type::Quantity | Type::Semver => Some(1),
        Type::Format => Some(scaled(FORMAT, READ)),
        Type::Url => Some(other.size.unwrap_or(Size::SCALAR).read()),
        _ => None,
    }
}

/// Returns the size of a text in which all occurrences of another are replaced.
fn replaced(text: Size, old: Size, new: Size) -> Size {
    let pieces = |text: u64, old: u64| (text as f64 / old as f64).ceil() as u64;
    // The number of replacements, and the length that stays.
    let (most, kept_most) = match old.min {
        0 => (text.max.saturating_add(1), text.max),
        shortest if new.max <= shortest => (0, text.max),
        shortest => (pieces(text.max, shortest), 0),
    };
    let (least, kept_least) = match old.max {
        0 => (text.min.saturating_add(1), text.min),
        longest if longest <= new.min => (0, text.min),
        longest => (pieces(text.min, longest), 0),
    };
    Size { min: least, max: most }.times(new).plus(Size { min: kept_least, max: kept_most })
}

#[cfg(test)]
mod tests;
