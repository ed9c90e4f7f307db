//! The table of functions and their overloads.

use super::types::Type;

/// Overloads by function name. A signature is receiver, dot, arguments, `>` and result, each type
/// as one letter (see `plain`).
const FUNCTIONS: &[(&str, &[&str])] = &[
    ("size", &[".S>I", ".Y>I", ".L>I", ".M>I", "S.>I", "Y.>I", "L.>I", "M.>I"]),
    ("startsWith", &["S.S>B"]),
    ("endsWith", &["S.S>B"]),
    ("contains", &["S.S>B"]),
    ("matches", &["S.S>B", ".SS>B"]),
    ("find", &["S.S>S"]),
    ("findAll", &["S.S>X", "S.SI>X"]),
    ("charAt", &["S.I>S"]),
    ("indexOf", &["S.S>I", "S.SI>I", "L.*>I"]),
    ("lastIndexOf", &["S.S>I", "S.SI>I", "L.*>I"]),
    ("lowerAscii", &["S.>S"]),
    ("upperAscii", &["S.>S"]),
    ("replace", &["S.SS>S", "S.SSI>S"]),
    ("split", &["S.S>X", "S.SI>X"]),
    ("join", &["L.>S", "L.S>S"]),
    ("substring", &["S.I>S", "S.II>S"]),
    ("trim", &["S.>S"]),
    ("format", &["S.L>S"]),
    ("strings.quote", &[".S>S"]),
    ("int", &[".I>I", ".U>I", ".D>I", ".S>I", ".T>I", ".P>I"]),
    ("uint", &[".I>U", ".U>U", ".D>U", ".S>U"]),
    ("double", &[".I>D", ".U>D", ".D>D", ".S>D"]),
    ("string", &[".B>S", ".I>S", ".U>S", ".D>S", ".S>S", ".Y>S", ".T>S", ".P>S", ".A>S", ".C>S"]),
    ("bytes", &[".S>Y", ".Y>Y"]),
    ("bool", &[".B>B", ".S>B"]),
    ("timestamp", &[".S>T", ".T>T", ".I>T"]),
    ("duration", &[".S>P", ".P>P"]),
    ("dyn", &[".*>?"]),
    ("type", &[".*>K"]),
    ("isSorted", &["L.>B"]),
    ("sum", &["L.>1"]),
    ("min", &["L.>1"]),
    ("max", &["L.>1"]),
    ("slice", &["L.II>0"]),
    ("distinct", &["L.>0"]),
    ("reverse", &["L.>0", "S.>S"]),
    ("sort", &["L.>0"]),
    ("getFullYear", &["T.>I", "T.S>I"]),
    ("getMonth", &["T.>I", "T.S>I"]),
    ("getDate", &["T.>I", "T.S>I"]),
    ("getDayOfMonth", &["T.>I", "T.S>I"]),
    ("getDayOfWeek", &["T.>I", "T.S>I"]),
    ("getDayOfYear", &["T.>I", "T.S>I"]),
    ("getHours", &["T.>I", "T.S>I", "P.>I"]),
    ("getMinutes", &["T.>I", "T.S>I", "P.>I"]),
    ("getSeconds", &["T.>I", "T.S>I", "P.>I"]),
    ("getMilliseconds", &["T.>I", "T.S>I", "P.>I"]),
    ("url", &[".S>H"]),
    ("isURL", &[".S>B"]),
    ("getScheme", &["H.>S"]),
    ("getHost", &["H.>S"]),
    ("getHostname", &["H.>S"]),
    ("getPort", &["H.>S"]),
    ("getEscapedPath", &["H.>S"]),
    ("getQuery", &["H.>Z"]),
    ("ip", &[".S>A", "C.>A"]),
    ("isIP", &[".S>B"]),
    ("ip.isCanonical", &[".S>B"]),
    ("family", &["A.>I"]),
    ("isUnspecified", &["A.>B"]),
    ("isLoopback", &["A.>B"]),
    ("isLinkLocalMulticast", &["A.>B"]),
    ("isLinkLocalUnicast", &["A.>B"]),
    ("isGlobalUnicast", &["A.>B"]),
    ("cidr", &[".S>C"]),
    ("isCIDR", &[".S>B"]),
    ("containsIP", &["C.A>B", "C.S>B"]),
    ("containsCIDR", &["C.C>B", "C.S>B"]),
    ("masked", &["C.>C"]),
    ("prefixLength", &["C.>I"]),
    ("quantity", &[".S>Q"]),
    ("isQuantity", &[".S>B"]),
    ("isInteger", &["Q.>B"]),
    ("asInteger", &["Q.>I"]),
    ("asApproximateFloat", &["Q.>D"]),
    ("sign", &["Q.>I"]),
    ("add", &["Q.Q>Q", "Q.I>Q"]),
    ("sub", &["Q.Q>Q", "Q.I>Q"]),
    ("isLessThan", &["Q.Q>B", "V.V>B"]),
    ("isGreaterThan", &["Q.Q>B", "V.V>B"]),
    ("compareTo", &["Q.Q>I", "V.V>I"]),
    ("semver", &[".S>V", ".SB>V"]),
    ("isSemver", &[".S>B", ".SB>B"]),
    ("major", &["V.>I"]),
    ("minor", &["V.>I"]),
    ("patch", &["V.>I"]),
    ("optional.of", &[".*>2"]),
    ("optional.ofNonZeroValue", &[".*>2"]),
    ("optional.none", &[".>3"]),
    ("hasValue", &["O.>B"]),
    ("value", &["O.>4"]),
    ("orValue", &["O.*>5"]),
    ("or", &["O.O>6"]),
    ("sets.contains", &[".LL>B"]),
    ("sets.equivalent", &[".LL>B"]),
    ("sets.intersects", &[".LL>B"]),
    ("format.named", &[".S>7"]),
    ("validate", &["F.S>8"]),
];

/// Functions and macros of Kubernetes and cel-go that are not evaluated.
const LACKING: &[&str] = &[
    "base64.decode",
    "base64.encode",
    "cel.bind",
    "cel.block",
    "first",
    "flatten",
    "last",
    "lists.range",
    "optional.unwrap",
    "sortBy",
    "transformMapEntry",
    "unwrapOpt",
];

/// The result of a look-up.
pub(super) enum Known {
    /// An overload matches and returns this type.
    Gives(Type),
    /// No overload takes these arguments.
    Otherwise,
    /// Kubernetes has the function; it is not evaluated here.
    Lacking,
    /// Neither CEL nor Kubernetes has the function.
    Unknown,
}

/// Looks up a call by name, receiver type and argument types.
pub(super) fn look_up(name: &str, of: Option<&Type>, arguments: &[Type]) -> Known {
    if name.starts_with("format.") && name != "format.named" {
        return if arguments.is_empty() { Known::Gives(Type::Format) } else { Known::Otherwise };
    }
    let Some((_, signatures)) = FUNCTIONS.iter().find(|(known, _)| *known == name) else {
        let lacking = LACKING.contains(&name) || name.starts_with("math.");
        return if lacking { Known::Lacking } else { Known::Unknown };
    };
    let mut found: Option<Type> = None;
    for signature in *signatures {
        if let Some(result) = matching(signature, of, arguments) {
            found = Some(match found {
                None => result,
                Some(before) => before.or(result),
            });
        }
    }
    found.map_or(Known::Otherwise, Known::Gives)
}

fn matching(signature: &str, of: Option<&Type>, arguments: &[Type]) -> Option<Type> {
    let (taken, result) = signature.split_once('>')?;
    let (method, expected) = taken.split_once('.')?;
    let given: Vec<&Type> = of.into_iter().chain(arguments).collect();
    let of_fits = method.is_empty() == of.is_none() && expected.len() == arguments.len();
    let letters = method.chars().chain(expected.chars());
    let fits = of_fits && letters.zip(&given).all(|(letter, given)| accepts(letter, given));
    fits.then(|| result_type(result.chars().next().unwrap_or('?'), &given))
}

fn accepts(letter: char, given: &Type) -> bool {
    match (letter, given) {
        (_, Type::Dyn) | ('*', _) => true,
        ('L', Type::List(_)) | ('M', Type::Map(_) | Type::Object(_)) | ('O', Type::Optional(_)) => true,
        _ => *given == plain(letter),
    }
}

/// Returns the result type of a signature; a digit stands for a type that depends on the arguments.
fn result_type(letter: char, given: &[&Type]) -> Type {
    let first = given.first().copied().unwrap_or(&Type::Dyn);
    let item = |of: &Type| match of {
        Type::List(list) => list.item.clone(),
        _ => Type::Dyn,
    };
    let inner = |of: &Type| match of {
        Type::Optional(of) => (**of).clone(),
        _ => Type::Dyn,
    };
    match letter {
        '0' => match first {
            Type::List(list) => Type::list(list.item.clone()),
            _ => Type::Dyn,
        },
        '1' => item(first),
        '2' => Type::optional(first.clone()),
        '3' => Type::optional(Type::Dyn),
        '4' => inner(first),
        '5' => match inner(first) {
            Type::Dyn => given.get(1).map_or(Type::Dyn, |other| (*other).clone()),
            inner => inner.or(given.get(1).map_or(Type::Dyn, |other| (*other).clone())),
        },
        '6' => first.clone(),
        '7' => Type::optional(Type::Format),
        '8' => Type::optional(Type::list(Type::Text)),
        'X' => Type::list(Type::Text),
        'Z' => Type::map(Type::Text, Type::list(Type::Text)),
        letter => plain(letter),
    }
}

fn plain(letter: char) -> Type {
    match letter {
        'B' => Type::Bool,
        'I' => Type::Int,
        'U' => Type::Uint,
        'D' => Type::Double,
        'S' => Type::Text,
        'Y' => Type::Bytes,
        'T' => Type::Time,
        'P' => Type::Span,
        'K' => Type::Kind,
        'A' => Type::Ip,
        'C' => Type::Cidr,
        'H' => Type::Url,
        'Q' => Type::Quantity,
        'V' => Type::Semver,
        'F' => Type::Format,
        _ => Type::Dyn,
    }
}
