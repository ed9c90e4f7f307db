//! The syntax tree.

use std::sync::Arc;

/// An expression with its position.
#[derive(Debug)]
pub(super) struct Node {
    /// Byte offset at which an error in it is shown.
    pub(super) at: usize,
    /// Height of the tree below this node.
    pub(super) depth: usize,
    pub(super) expr: Expr,
}

/// The kinds of expressions.
#[derive(Debug)]
pub(super) enum Expr {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    /// A variable, or a name that a macro binds.
    Name(Arc<str>),
    /// A field selection; `.?x` gives an empty optional for an absent field.
    Field {
        of: Box<Node>,
        name: Arc<str>,
        optional: bool,
    },
    /// The macro `has(a.b)`: whether `a` has the field `b`.
    Has {
        of: Box<Node>,
        name: Arc<str>,
    },
    Index {
        of: Box<Node>,
        key: Box<Node>,
        optional: bool,
    },
    Not(Box<Node>),
    Negative(Box<Node>),
    /// `a && b && …`
    All(Vec<Node>),
    /// `a || b || …`
    Any(Vec<Node>),
    /// `a ? b : c`
    Choice(Box<[Node; 3]>),
    /// A binary operator except `&&` and `||`, which are [`Expr::All`] and [`Expr::Any`].
    Operator {
        name: Operator,
        sides: Box<[Node; 2]>,
    },
    Call {
        name: Arc<str>,
        of: Option<Box<Node>>,
        arguments: Vec<Node>,
    },
    /// Items; an empty optional item (`[?x]`) is left out.
    List(Vec<(Node, bool)>),
    /// Keys and values; an empty optional value (`{?k: v}`) is left out.
    Map(Vec<(Node, Node, bool)>),
    Each(Box<Each>),
    /// `a.optMap(x, b)` and `a.optFlatMap(x, b)`.
    Given {
        of: Box<Node>,
        variable: Arc<str>,
        body: Box<Node>,
        flat: bool,
    },
}

/// A comprehension over the items of a list or the keys of a map.
#[derive(Debug)]
pub(super) struct Each {
    pub(super) how: How,
    pub(super) over: Node,
    pub(super) variable: Arc<str>,
    /// With two variables, the first is the index or the key, the second the item or the value.
    pub(super) second: Option<Arc<str>>,
    pub(super) filter: Option<Node>,
    pub(super) body: Node,
}

/// The result of a comprehension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    All,
    Exists,
    ExistsOne,
    /// A list of results: `map`, `transformList`.
    List,
    /// The items for which the body holds.
    Filter,
    /// A map with the same keys: `transformMap`.
    Map,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
}

impl Operator {
    /// Returns CEL's name of the operator, as errors show it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Add => "_+_",
            Self::Subtract => "_-_",
            Self::Multiply => "_*_",
            Self::Divide => "_/_",
            Self::Modulo => "_%_",
            Self::Equal => "_==_",
            Self::NotEqual => "_!=_",
            Self::Less => "_<_",
            Self::LessOrEqual => "_<=_",
            Self::Greater => "_>_",
            Self::GreaterOrEqual => "_>=_",
            Self::In => "@in",
        }
    }
}

impl Node {
    pub(super) fn new(at: usize, expr: Expr) -> Self {
        let depth = 1 + deepest(&expr);
        Self { at, depth, expr }
    }
}

fn deepest(expr: &Expr) -> usize {
    let most = |nodes: &[Node]| nodes.iter().map(|node| node.depth).max().unwrap_or_default();
    match expr {
        Expr::Field { of, .. } | Expr::Has { of, .. } | Expr::Not(of) | Expr::Negative(of) => of.depth,
        Expr::Index { of, key, .. } => of.depth.max(key.depth),
        Expr::All(nodes) | Expr::Any(nodes) => most(nodes),
        Expr::Choice(nodes) => most(&nodes[..]),
        Expr::Operator { sides, .. } => most(&sides[..]),
        Expr::Call { of, arguments, .. } => of.as_ref().map_or(0, |of| of.depth).max(most(arguments)),
        Expr::List(items) => items.iter().map(|(node, _)| node.depth).max().unwrap_or_default(),
        Expr::Map(items) => {
            items.iter().map(|(key, value, _)| key.depth.max(value.depth)).max().unwrap_or_default()
        }
        Expr::Each(each) => {
            let filter = each.filter.as_ref().map_or(0, |filter| filter.depth);
            each.over.depth.max(each.body.depth).max(filter)
        }
        Expr::Given { of, body, .. } => of.depth.max(body.depth),
        _ => 0,
    }
}

impl Node {
    /// Returns whether the tree names a variable. A macro variable of the same name counts too.
    pub(super) fn names(&self, variable: &str) -> bool {
        let any = |nodes: &[Node]| nodes.iter().any(|node| node.names(variable));
        match &self.expr {
            Expr::Name(name) => **name == *variable,
            Expr::Field { of, .. } | Expr::Has { of, .. } | Expr::Not(of) | Expr::Negative(of) => {
                of.names(variable)
            }
            Expr::Index { of, key, .. } => of.names(variable) || key.names(variable),
            Expr::All(nodes) | Expr::Any(nodes) => any(nodes),
            Expr::Choice(nodes) => any(&nodes[..]),
            Expr::Operator { sides, .. } => any(&sides[..]),
            Expr::Call { of, arguments, .. } => {
                of.as_ref().is_some_and(|of| of.names(variable)) || any(arguments)
            }
            Expr::List(items) => items.iter().any(|(node, _)| node.names(variable)),
            Expr::Map(items) => {
                items.iter().any(|(key, value, _)| key.names(variable) || value.names(variable))
            }
            Expr::Each(each) => {
                let filter = each.filter.as_ref().is_some_and(|filter| filter.names(variable));
                filter || each.over.names(variable) || each.body.names(variable)
            }
            Expr::Given { of, body, .. } => of.names(variable) || body.names(variable),
            _ => false,
        }
    }
}
