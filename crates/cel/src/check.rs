//! The type checker. An expression whose type is known only at run time has the type `dyn` and fits
//! everywhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Fault;
use super::meter::{Meter, truncated};
use super::regexes;
use super::signatures::{Known, look_up};
use super::tree::{Each, Expr, How, Node, Operator};
use super::types::Type;

/// Returns the type of an expression over variables of these types, and the item types of its `sum`
/// calls. A step is a node of the tree, or a few bytes of a compiled pattern. Adds the types of all
/// nodes to `types`.
///
/// # Errors
/// The first type error, the first function that is not evaluated, or too few steps.
pub(super) fn check(
    node: &Node,
    variables: &[(&str, Type)],
    steps: u64,
    types: Option<&mut Types>,
) -> Result<(Type, Sums), Fault> {
    let scope = variables.iter().map(|(name, of)| (Arc::from(*name), of.clone())).collect();
    let mut checker = Checker { scope, sums: Sums::new(), meter: Meter::new(steps), types };
    let of = checker.node(node)?;
    Ok((of, checker.sums))
}

/// The calls of `sum` by byte offset, each with its item type: the sum of an empty list needs it.
pub(super) type Sums = BTreeMap<usize, Type>;

/// The types of nodes, by address.
pub(super) type Types = BTreeMap<*const Node, Type>;

/// Arguments that an error message shows.
const MAX_SHOWN: usize = 10;

struct Checker<'t> {
    scope: Vec<(Arc<str>, Type)>,
    sums: Sums,
    meter: Meter,
    types: Option<&'t mut Types>,
}

type Checked = Result<Type, Fault>;

impl Checker<'_> {
    fn node(&mut self, node: &Node) -> Checked {
        let of = self.type_of(node)?;
        if let Some(types) = &mut self.types {
            types.insert(node, of.clone());
        }
        Ok(of)
    }

    fn type_of(&mut self, node: &Node) -> Checked {
        let at = node.at;
        self.meter.spend(1).map_err(|_| too_costly(at))?;
        match &node.expr {
            Expr::Null => Ok(Type::Null),
            Expr::Bool(_) => Ok(Type::Bool),
            Expr::Int(_) => Ok(Type::Int),
            Expr::Uint(_) => Ok(Type::Uint),
            Expr::Double(_) => Ok(Type::Double),
            Expr::Text(_) => Ok(Type::Text),
            Expr::Bytes(_) => Ok(Type::Bytes),
            Expr::Name(name) => self.name(at, name),
            Expr::Field { of, name, optional } => {
                let of = self.node(of)?;
                let found = field(at, &of, name)?;
                Ok(if *optional || matches!(of, Type::Optional(_)) { as_optional(found) } else { found })
            }
            Expr::Has { of, name } => {
                let of = self.node(of)?;
                field(at, &of, name).map(|_| Type::Bool)
            }
            Expr::Index { of, key, optional } => self.index(at, of, key, *optional),
            Expr::Not(of) => self.expect(of, &Type::Bool, at, "!_"),
            Expr::Negative(of) => match self.node(of)? {
                found @ (Type::Int | Type::Double | Type::Dyn) => Ok(found),
                found => Err(no_overload(at, "-_", None, &[found])),
            },
            Expr::All(nodes) => self.conditions(at, nodes, "_&&_"),
            Expr::Any(nodes) => self.conditions(at, nodes, "_||_"),
            Expr::Choice(nodes) => {
                let [condition, yes, no] = &**nodes;
                self.expect(condition, &Type::Bool, at, "_?_:_")?;
                let (yes, no) = (self.node(yes)?, self.node(no)?);
                if yes.fits(&no) {
                    return Ok(yes.or(no));
                }
                Err(no_overload(at, "_?_:_", None, &[Type::Bool, yes, no]))
            }
            Expr::Operator { name, sides } => {
                let [left, right] = &**sides;
                let (left, right) = (self.node(left)?, self.node(right)?);
                operator(*name, &left, &right)
                    .ok_or_else(|| no_overload(at, name.name(), None, &[left, right]))
            }
            Expr::Call { name, of, arguments } => self.call(at, name, of.as_deref(), arguments),
            Expr::List(items) => {
                let mut item = None;
                for (node, optional) in items {
                    let found = self.item(node, *optional)?;
                    item = Some(item.map_or(found.clone(), |before: Type| before.or(found)));
                }
                Ok(Type::list(item.unwrap_or(Type::Dyn)))
            }
            Expr::Map(items) => {
                let mut of: Option<(Type, Type)> = None;
                for (key, value, optional) in items {
                    let (at, key) = (key.at, self.node(key)?);
                    if !key.may_be_key() {
                        return Err(Fault::at(at, format!("unsupported key type: {key}")));
                    }
                    let value = self.item(value, *optional)?;
                    of = Some(match of {
                        None => (key, value),
                        Some((keys, values)) => (keys.or(key), values.or(value)),
                    });
                }
                let (key, value) = of.unwrap_or((Type::Dyn, Type::Dyn));
                Ok(Type::map(key, value))
            }
            Expr::Each(each) => self.each(each),
            Expr::Given { of, variable, body, flat } => {
                let inner = match self.node(of)? {
                    Type::Optional(inner) => (*inner).clone(),
                    Type::Dyn => Type::Dyn,
                    other => return Err(no_overload(at, "optMap", Some(&other), &[])),
                };
                let found = self.within(&[(variable, inner)], |checker| checker.node(body))?;
                Ok(if *flat { found } else { Type::optional(found) })
            }
        }
    }

    fn name(&self, at: usize, name: &Arc<str>) -> Checked {
        if let Some((_, found)) = self.scope.iter().rev().find(|(known, _)| known == name) {
            return Ok(found.clone());
        }
        let kinds = ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type"];
        if kinds.contains(&&**name) { Ok(Type::Kind) } else { Err(undeclared(at, name)) }
    }

    fn within<T>(&mut self, variables: &[(&Arc<str>, Type)], check: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.scope.len();
        self.scope.extend(variables.iter().map(|(name, of)| (Arc::clone(name), of.clone())));
        let checked = check(self);
        self.scope.truncate(length);
        checked
    }

    fn expect(&mut self, node: &Node, expected: &Type, at: usize, name: &str) -> Checked {
        let found = self.node(node)?;
        if found == *expected || found.is_dyn() {
            return Ok(expected.clone());
        }
        Err(no_overload(at, name, None, &[found]))
    }

    fn conditions(&mut self, at: usize, nodes: &[Node], name: &str) -> Checked {
        for node in nodes {
            self.expect(node, &Type::Bool, at, name)?;
        }
        Ok(Type::Bool)
    }

    fn item(&mut self, node: &Node, optional: bool) -> Checked {
        match (self.node(node)?, optional) {
            (Type::Optional(inner), true) => Ok((*inner).clone()),
            (Type::Dyn, true) => Ok(Type::Dyn),
            (other, true) => {
                Err(Fault::at(node.at, format!("expected type 'optional_type(dyn)' but found '{other}'")))
            }
            (found, false) => Ok(found),
        }
    }

    fn index(&mut self, at: usize, of: &Node, key: &Node, optional: bool) -> Checked {
        let (of, key) = (self.node(of)?, self.node(key)?);
        let (inner, was_optional) = match &of {
            Type::Optional(inner) => (&**inner, true),
            other => (other, false),
        };
        let found = match inner {
            Type::Dyn => Type::Dyn,
            Type::List(list) if key.is_number() || key.is_dyn() => list.item.clone(),
            Type::Map(map) if map.0.fits(&key) || (map.0.is_number() && key.is_number()) => map.1.clone(),
            _ => return Err(no_overload(at, "_[_]", None, &[of, key])),
        };
        Ok(if optional || was_optional { as_optional(found) } else { found })
    }

    fn call(&mut self, at: usize, name: &str, of: Option<&Node>, arguments: &[Node]) -> Checked {
        let of_type = of.map(|of| self.node(of)).transpose();
        let types: Result<Vec<Type>, Fault> = arguments.iter().map(|argument| self.node(argument)).collect();
        let (of_type, types) = match (of_type, types) {
            (Ok(of_type), Ok(types)) => (of_type, types),
            (of_type, types) => {
                // The arguments of a macro that is not evaluated need not be expressions.
                if matches!(look_up(name, None, &[]), Known::Lacking) {
                    return Err(Fault::Lacking(name.to_owned()));
                }
                return of_type.and(types.map(|_| Type::Dyn));
            }
        };
        let found = match look_up(name, of_type.as_ref(), &types) {
            Known::Gives(found) => found,
            Known::Otherwise => return Err(no_overload(at, name, of_type.as_ref(), &types)),
            Known::Lacking => return Err(Fault::Lacking(name.to_owned())),
            Known::Unknown => return Err(undeclared(at, name)),
        };
        // `matches` has a form with receiver and one without.
        let literal = arguments.get(arguments.len().min(2 - usize::from(of.is_some())).saturating_sub(1));
        let literal = literal.and_then(|argument| match &argument.expr {
            Expr::Text(text) => Some(&**text),
            _ => None,
        });
        match (name, literal) {
            ("matches" | "find" | "findAll", Some(pattern)) => {
                let compiled = regexes::compile(pattern, &mut self.meter).map_err(|_| too_costly(at))?;
                compiled.map_err(|problem| {
                    Fault::Lacking(format!("{name} with the pattern {:?}: {problem}", truncated(pattern)))
                })?;
            }
            (getter, zone)
                if getter.starts_with("get")
                    && of.is_some()
                    && !arguments.is_empty()
                    && super::times::zone(zone.unwrap_or_default()).is_none() =>
            {
                return Err(Fault::Lacking(format!("{getter} with the name of a time zone")));
            }
            ("sum", _) if found != Type::Int => drop(self.sums.insert(at, found.clone())),
            _ => {}
        }
        Ok(found)
    }

    fn each(&mut self, each: &Each) -> Checked {
        let over = self.node(&each.over)?;
        let (first, second, is_map) = match &over {
            Type::List(list) => (Type::Int, list.item.clone(), false),
            Type::Map(map) => (map.0.clone(), map.1.clone(), true),
            Type::Dyn => (Type::Dyn, Type::Dyn, false),
            other => {
                let problem = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                return Err(Fault::at(each.over.at, problem));
            }
        };
        let variables = match &each.second {
            Some(name) => vec![(&each.variable, first.clone()), (name, second.clone())],
            None if is_map => vec![(&each.variable, first.clone())],
            None => vec![(&each.variable, second.clone())],
        };
        let body = self.within(&variables, |checker| {
            if let Some(filter) = &each.filter {
                checker.expect(filter, &Type::Bool, filter.at, "_?_:_")?;
            }
            let body = checker.node(&each.body)?;
            let condition = !matches!(each.how, How::List | How::Map);
            if condition && body != Type::Bool && !body.is_dyn() {
                return Err(Fault::at(each.body.at, format!("expected type 'bool' but found '{body}'")));
            }
            Ok(body)
        })?;
        Ok(match each.how {
            How::All | How::Exists | How::ExistsOne => Type::Bool,
            How::List => Type::list(body),
            How::Filter => Type::list(if is_map { first } else { second }),
            How::Map if over.is_dyn() => Type::map(Type::Dyn, body),
            How::Map if is_map => Type::map(first, body),
            How::Map => Type::map(Type::Int, body),
        })
    }
}

fn as_optional(of: Type) -> Type {
    if matches!(of, Type::Optional(_)) { of } else { Type::optional(of) }
}

fn field(at: usize, of: &Type, name: &str) -> Checked {
    match of {
        Type::Dyn => Ok(Type::Dyn),
        Type::Optional(inner) => field(at, inner, name),
        Type::Map(map) if map.0.fits(&Type::Text) => Ok(map.1.clone()),
        Type::Object(object) => match object.fields.get(name) {
            Some(field) => Ok(field.of.clone()),
            None => Err(Fault::at(at, format!("undefined field '{}'", truncated(name)))),
        },
        other => Err(Fault::at(at, format!("type '{other}' does not support field selection"))),
    }
}

/// Returns the result type of an operator; `None` if it has no overload for the operands.
fn operator(name: Operator, left: &Type, right: &Type) -> Option<Type> {
    use Operator as O;
    let dynamic = left.is_dyn() || right.is_dyn();
    let same = |of: &Type| (left == of || left.is_dyn()) && (right == of || right.is_dyn());
    match name {
        O::Equal | O::NotEqual => left.fits(right).then_some(Type::Bool),
        O::Less | O::LessOrEqual | O::Greater | O::GreaterOrEqual => {
            let ordered = [Type::Bool, Type::Text, Type::Bytes, Type::Time, Type::Span];
            let numbers = left.is_number() && right.is_number();
            (numbers || ordered.iter().any(same) || dynamic).then_some(Type::Bool)
        }
        O::In => match right {
            Type::List(list) => list.item.fits(left).then_some(Type::Bool),
            Type::Map(map) => map.0.fits(left).then_some(Type::Bool),
            Type::Dyn => Some(Type::Bool),
            _ => None,
        },
        O::Add => match (left, right) {
            (Type::Dyn, other) | (other, Type::Dyn) => {
                Some(if matches!(other, Type::Time | Type::Span | Type::List(_)) {
                    Type::Dyn
                } else {
                    other.clone()
                })
            }
            (Type::Time, Type::Span) | (Type::Span, Type::Time) => Some(Type::Time),
            (Type::List(_), Type::List(_)) if left.fits(right) => Some(left.clone().or(right.clone())),
            (Type::Text | Type::Bytes | Type::Span, _) if left == right => Some(left.clone()),
            _ => (left.is_number() && left == right).then(|| left.clone()),
        },
        O::Subtract => match (left, right) {
            (Type::Time, Type::Time) => Some(Type::Span),
            (Type::Time, Type::Span) => Some(Type::Time),
            (Type::Span, Type::Span) => Some(Type::Span),
            _ if dynamic => Some(Type::Dyn),
            _ => (left.is_number() && left == right).then(|| left.clone()),
        },
        O::Multiply | O::Divide => match (left, right) {
            _ if dynamic => Some(Type::Dyn),
            _ => (left.is_number() && left == right).then(|| left.clone()),
        },
        O::Modulo => {
            let whole = [Type::Int, Type::Uint].into_iter().find(same);
            if left.is_dyn() && right.is_dyn() { Some(Type::Dyn) } else { whole }
        }
    }
}

fn too_costly(at: usize) -> Fault {
    Fault::at(at, "the expression is too complex to check")
}

fn undeclared(at: usize, name: &str) -> Fault {
    Fault::at(at, format!("undeclared reference to '{}' (in container '')", truncated(name)))
}

fn no_overload(at: usize, name: &str, of: Option<&Type>, arguments: &[Type]) -> Fault {
    let shown = |of: &Type| truncated(&of.to_string()).to_owned();
    let mut arguments_shown: Vec<String> = arguments.iter().take(MAX_SHOWN).map(shown).collect();
    if arguments.len() > MAX_SHOWN {
        arguments_shown.push("…".to_owned());
    }
    let name = truncated(name);
    let of = of.map(|of| format!("{}.", shown(of))).unwrap_or_default();
    Fault::at(
        at,
        format!("found no matching overload for '{name}' applied to '{of}({})'", arguments_shown.join(", ")),
    )
}
