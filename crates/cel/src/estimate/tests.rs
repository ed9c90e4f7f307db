//! Estimates of Kubernetes and of cel-go for the same expressions.

use super::*;
use crate::Program;

/// Estimates an expression over `self`, a list of at most 10 texts of at most 40 bytes.
fn cost(text: &str) -> u64 {
    let of = Type::list(Type::Text);
    let item = Arc::new(Sizes { max: 40, ..Sizes::default() });
    let sizes = Sizes { max: 10, items: Some(item), ..Sizes::default() };
    let variables = [("self", of.clone()), ("oldSelf", Type::optional(of))];
    Program::compile_and_estimate(text, &variables, &sizes).unwrap().1
}

fn assert_costs(expected: &[(&str, u64)]) {
    for (text, expected) in expected {
        assert_eq!(cost(text), *expected, "{text}");
    }
}

#[test]
fn operators_and_literals_cost_what_cel_go_estimates() {
    assert_costs(&[
        ("true || false", 0),
        ("[1, 2, 3] == []", 10 + 10),
        ("{'a': 1, 'b': 2}.size() == 2", 30 + 1 + 1),
        ("2 in [1, 2, 3]", 13),
        ("((5 != 6) == (1 == 2)) == ((3 <= 4) == (9 != 9))", 7),
        ("true ? true : false", 0),
        ("'123'.matches('[0-9]')", 2),
        ("size('123') > 0", 2),
        ("{'hello': 'hi'}['hello'] != {'hello': 'bye'}['hello']", 63),
        ("['hello', 'hi'][0] != ['hello', 'bye'][1]", 23),
        ("[[1, 2], [1, 2], [1, 2], [1, 2], [1, 2]][4].size() > 0", 61 + 1 + 1),
        ("self.size() == oldSelf.value().size()", 2 + 3 + 1),
        ("self == oldSelf.value()", 1 + 2 + 1),
    ]);
}

#[test]
fn macros_cost_what_cel_go_estimates() {
    assert_costs(&[
        ("self.all(x, true)", 32),
        ("self.exists(x, x == 'abc')", 1 + 1 + 10 * (4 + 2)),
        ("[1, 2, 3].all(x, true)", 20),
        ("[1, 2, 3, 4, 5].filter(x, x % 2 == 0).size() > 0", 101 + 2),
        ("[1, 2, 3, 4, 5].map(x, x).map(x, x).size() > 0", 162 + 2),
        ("[1, 2, 3, 4, 5].map(x, x).filter(x, x % 2 == 0).size() > 0", 177 + 2),
        ("[1, 2, 3].all(i, i in [1, 2, 3].map(j, j + j))", 230),
        ("{'a': 1, 'b': 2}.all(k, v, v > 0)", 41),
        ("{'a': 1, 'b': 2}.exists(k, v, v > 0)", 43),
        ("{'a': 1, 'b': 2}.existsOne(k, v, v > 0)", 40),
        ("{'a': 1, 'b': 2}.transformMap(k, v, v + 1).size() > 0", 71 + 2),
        ("{'a': 1, 'b': 2}.transformMap(k, v, v < 5, v + 1).size() > 0", 75 + 2),
        ("[1, 2].transformList(i, v, v + 1).size() > 0", 49 + 2),
        ("[1, 2].transformList(i, v, v < 5, v + 1).size() > 0", 53 + 2),
        ("self[?0].optMap(x, x.size()).orValue(0) > 0", 2 + 1 + 1 + 10 + 2 + 1 + 2 + 1 + 1),
    ]);
}

#[test]
fn functions_cost_what_kubernetes_estimates() {
    assert_costs(&[
        ("url('https:://kubernetes.io/').getScheme() == ''", 4),
        ("url('https:://kubernetes.io/') == url('https:://kubernetes.io/')", 9),
        ("ip('192.168.0.1') == ip('192.168.0.1')", 5),
        ("cidr('192.168.0.0/16').containsIP('192.168.0.1')", 2 + 4 + 2),
        ("cidr('192.168.0.0/16').containsCIDR(cidr('192.168.10.0/24'))", 2 + 7 + 2),
        ("'ABCDEFGHIJ abcdefghij'.lowerAscii() == 'abcdefghij ABCDEFGHIJ'.lowerAscii()", 9),
        ("strings.quote('ABCDEFGHIJ abcdefghij') == strings.quote('ABCDEFGHIJ abcdefghij')", 11),
        ("'abc 123 def 123'.replace('123', '456').size() > 0", 3 + 2),
        ("'abc 123 def 123'.split(' ', 1).size() > 0", 3 + 2),
        ("'abc 123 def 123'.substring(5, 8).size() > 0", 2 + 2),
        ("'abc 123 def 123'.find('123').size() > 0", 2 + 2),
        ("quantity('50k').add(20).sub(quantity('100k')).asInteger() > 0", 6),
        ("format.named('dns1123Label').value().validate('my-name').hasValue()", 34 + 1),
        ("format.named('dns1123Label').value() == format.named('dns1123Label').value()", 11),
        ("sets.contains([[1], [2, 3]], [[2, 3]])", 53),
        ("sets.equivalent([1], [1, 1])", 25),
        ("sets.intersects(self, ['a'])", 1 + 10 + 10 + 1),
        ("semver('1.0.0').compareTo(semver('1.2.3')) > 0", 4),
        ("self.isSorted()", 1 + 10 * (1 + 4)),
        ("self.join(',').size() > 0", 1 + 41 + 2),
    ]);
}

#[test]
fn dynamic_operands_cost_as_much_as_their_most_expensive_type() {
    // A part of a computed list has the size of the variable, so a sum of two is 20 bytes.
    assert_costs(&[("dyn([1, 2, 3]).all(i, i in dyn([1, 2, 3]).map(j, j + j))", 243)]);
    let long = format!("dyn('{}') == 'x' && dyn(1) < dyn(2)", "x".repeat(100));
    assert_eq!(cost(&long), 1 + 1 + 3);
}

#[test]
fn unknown_sizes_saturate() {
    // The parts of computed texts have no limit.
    assert_eq!(cost("self.exists(x, x.split('').map(y, y).join('') == x.findAll('a').join(''))"), u64::MAX);
}
