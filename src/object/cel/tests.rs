use serde_json::{Value, json};

use super::*;

/// What an expression comes to over `self`, whose type is `dyn`.
fn answer(text: &str, value: &Value) -> Result<Answer, String> {
    let of = Type::Dyn;
    let program = Program::compile(text, &[("self", of.clone())]).map_err(|fault| fault.message(text))?;
    let run = program.run(&[("self", &of, Some(value))], &mut Meter::new(1_000_000), &mut Regexes::default());
    run.map_err(|failure| format!("{failure:?}"))
}

fn assert_all_hold(texts: &[&str], value: &Value) {
    for text in texts {
        assert_eq!(answer(text, value), Ok(Answer::Bool(true)), "{text}");
    }
}

#[test]
fn operators_bind_as_in_the_language() {
    let texts = [
        "1 + 2 * 3 == 7 && (1 + 2) * 3 == 9",
        "-3 % 2 == -1 && 7 / 2 == 3 && 7.0 / 2.0 == 3.5",
        "true || 1 / 0 == 1",
        "1 / 0 == 1 || true",
        "!(false && 1 / 0 == 1)",
        "true ? (false ? false : true) : false",
        "1 < 2u && 2.5 > 2 && 0x10 == 16 && -9223372036854775808 < 0",
        "'a' + \"b\" == r'ab' && '''x\ny''' == 'x\\ny' && '\\u00e9' == 'é'",
        "b'abc' == bytes('abc') && string(b'abc') == 'abc'",
        "1 in [1, 2] && !('c' in {'a': 1}) && [1] + [2] == [1, 2]",
        "{'a': 1}.a == 1 && {'a': 1}['a'] == 1 && size({'a': 1}) == 1",
        "type(1) == int && type('') == string && null == null",
        "[1, 2, 3][1] == 2 // a comment",
    ];
    assert_all_hold(&texts, &json!(null));
}

#[test]
fn macros_look_at_each_item() {
    let texts = [
        "self.all(x, x > 0) && self.exists(x, x == 3) && self.exists_one(x, x == 1)",
        "self.map(x, x * 2) == [2, 4, 6] && self.map(x, x > 1, x) == [2, 3]",
        "self.filter(x, x != 2) == [1, 3]",
        "self.all(i, x, x == i + 1) && self.exists(i, x, i == 2 && x == 3)",
        "self.transformList(i, x, i * x) == [0, 2, 6]",
        "{'a': 1}.transformMap(k, v, v + 1) == {'a': 2} && {'a': 1}.all(k, k == 'a')",
        "{'a': 1, 'b': 2}.exists(k, v, k == 'b' && v == 2)",
        "[0, 1].exists(x, 1 / x == 1)",
        "!self.exists(x, self.exists(y, x != y && x == y))",
    ];
    assert_all_hold(&texts, &json!([1, 2, 3]));
}

#[test]
fn absent_fields_are_told_from_those_that_are_there() {
    let texts = [
        "has(self.a) && !has(self.x) && has(self.a.b)",
        "self.?a.b.orValue(5) == 1 && self.?x.y.orValue(5) == 5",
        "!self.?x.hasValue() && self.?a.hasValue() && optional.of(1).value() == 1",
        "self.?list[?9].orValue(7) == 7 && self.list[?0] == optional.of(1)",
        "optional.none().or(optional.of(2)).value() == 2",
        "self.?a.optMap(a, a.b + 1).orValue(0) == 2",
        "[?self.?x, 1] == [1] && {?'k': self.?x} == {}",
        "has(self.nothing) && self.nothing == null",
    ];
    assert_all_hold(&texts, &json!({"a": {"b": 1}, "list": [1], "nothing": null}));
    assert_eq!(answer("self.x == 1", &json!({})), Err("Failed(\"no such key: x\")".to_owned()));
    assert_eq!(answer("[1][2] == 1", &json!({})), Err("Failed(\"index out of bounds: 2\")".to_owned()));
}

#[test]
fn texts_have_their_functions() {
    let texts = [
        "'tacocat'.charAt(3) == 'o' && 'hello'.indexOf('l') == 2 && 'hello'.lastIndexOf('l') == 3",
        "'hello'.indexOf('l', 3) == 3 && 'x'.indexOf('y') == -1 && 'hello'.lastIndexOf('l', 2) == 2",
        "'AbC'.lowerAscii() == 'abc' && 'AbC'.upperAscii() == 'ABC' && ' x '.trim() == 'x'",
        "'a b c'.replace(' ', '') == 'abc' && 'a b c'.replace(' ', '-', 1) == 'a-b c'",
        "'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'ab'.split('') == ['a', 'b']",
        "['a', 'b'].join('-') == 'a-b' && ['a'].join() == 'a'",
        "'tacocat'.substring(4) == 'cat' && 'tacocat'.substring(0, 4) == 'taco' && 'é!'.size() == 2",
        "'abc'.matches('^a') && matches('abc', 'c$') && !'abc'.matches('^b')",
        "'abc 123'.find('[0-9]+') == '123' && '1 2 3'.findAll('[0-9]') == ['1', '2', '3'] && '1 2'.findAll('[0-9]', 1) == ['1']",
        "'%s is %d, %.2f, %x'.format(['a', 3, 2.5, 255]) == 'a is 3, 2.50, ff' && '100%%'.format([]) == '100%'",
        "'abc'.startsWith('a') && 'abc'.endsWith('c') && 'abc'.contains('b')",
        "int('12') == 12 && double('1.5') == 1.5 && string(12) == '12' && uint(3) == 3u && bool('true')",
    ];
    assert_all_hold(&texts, &json!(null));
}

#[test]
fn lists_and_sets_have_their_functions() {
    let texts = [
        "[1, 2, 2].isSorted() && ![2, 1].isSorted() && [1, 2].sum() == 3 && [3, 1].min() == 1 && [3, 1].max() == 3",
        "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(5) == -1",
        "sets.contains([1, 2], [2]) && sets.equivalent([1, 1, 2], [2, 1]) && !sets.intersects([1], [2])",
        "[1, 2, 3].slice(1, 3) == [2, 3] && [3, 1].sort() == [1, 3] && [1, 1].distinct() == [1]",
    ];
    assert_all_hold(&texts, &json!(null));
}

#[test]
fn kubernetes_own_types_have_their_functions() {
    let texts = [
        "isURL('https://example.com/a?b=1') && !isURL('a b') && url('https://example.com:80/').getHost() == 'example.com:80'",
        "url('https://example.com:80/').getPort() == '80' && url('https://a/x?k=v&k=w').getQuery()['k'] == ['v', 'w']",
        "isIP('10.0.0.1') && !isIP('10.0.0.300') && ip('::1').family() == 6 && ip('127.0.0.1').isLoopback()",
        "ip.isCanonical('127.0.0.1') && !ip.isCanonical('2001:DB8::1') && ip('10.0.0.1').isGlobalUnicast()",
        "isCIDR('10.0.0.0/8') && cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsCIDR(cidr('10.1.0.0/16'))",
        "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.0.0.0/8').prefixLength() == 8",
        "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('1000m') == quantity('1') && isQuantity('2k')",
        "quantity('1').add(quantity('500m')).compareTo(quantity('1500m')) == 0 && quantity('2k').asInteger() == 2000",
        "quantity('10').sub(3).sign() == 1 && quantity('50k').asApproximateFloat() == 50000.0 && !quantity('1.5').isInteger()",
        "semver('1.2.3').isLessThan(semver('1.10.0')) && isSemver('v1', true) && semver('1.2.3').minor() == 2",
        "format.dns1123Label().validate('my-label') == optional.none() && format.dns1123Label().validate('My').hasValue()",
        "format.named('uuid').hasValue() && format.uuid().validate('123e4567-e89b-12d3-a456-426614174000') == optional.none()",
        "timestamp('2024-05-06T07:08:09Z').getFullYear() == 2024 && timestamp('2024-05-06T23:08:09Z').getHours('+02:00') == 1",
        "timestamp('2024-05-06T07:08:09Z') + duration('1h') > timestamp('2024-05-06T08:00:00Z')",
        "duration('90m').getHours() == 1 && duration('1h') == duration('60m') && string(duration('1m')) == '60s'",
    ];
    assert_all_hold(&texts, &json!(null));
}

#[test]
fn what_cannot_be_is_found_before_anything_is_worked_out() {
    let object = Type::Object(std::sync::Arc::new(ObjectOf {
        fields: [("name", Type::Text), ("count", Type::Int), ("items", Type::list(Type::Int))]
            .into_iter()
            .map(|(name, of)| (name.into(), FieldOf { name: name.into(), of }))
            .collect(),
    }));
    for (text, expected) in [
        ("self.foo == 1", "ERROR: <input>:1:5: undefined field 'foo'\n | self.foo == 1\n | ....^"),
        (
            "foo == 1",
            "ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')\n | foo == 1\n | ^",
        ),
        ("self.name + 1 == 2", "found no matching overload for '_+_' applied to '(string, int)'"),
        ("self.count == 'a'", "found no matching overload for '_==_' applied to '(int, string)'"),
        ("self.count == 1.0", "found no matching overload for '_==_' applied to '(int, double)'"),
        ("self.name.frobnicate()", "undeclared reference to 'frobnicate'"),
        ("self.name.startsWith(1)", "found no matching overload for 'startsWith' applied to 'string.(int)'"),
        ("self.count.all(x, true)", "expression of type 'int' cannot be range of a comprehension"),
        ("self.items.all(x, x)", "expected type 'bool' but found 'int'"),
        ("self.items.all(x, x.y == 1)", "type 'int' does not support field selection"),
        ("self.items.all(1, true)", "argument must be a simple name"),
        ("has(self)", "invalid argument to has() macro"),
        ("self.count >", "Syntax error: mismatched input '<EOF>' expecting an expression"),
        ("self.name == 'a", "Syntax error: a text without an end"),
        (
            "1 == 1\n  && self.foo",
            "ERROR: <input>:2:10: undefined field 'foo'\n |   && self.foo\n | .........^",
        ),
        ("self # 1", "token recognition error at: '#'"),
        ("'a'.format()", "found no matching overload for 'format' applied to 'string.()'"),
    ] {
        let fault = Program::compile(text, &[("self", object.clone())]).map(|_| ()).unwrap_err();
        let message = fault.message(text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn what_is_known_and_lacking_is_told_from_what_is_wrong() {
    for (text, function) in [
        ("math.greatest(1, 2) == 2", "math.greatest"),
        ("[[1]].flatten() == [1]", "flatten"),
        ("self.sortBy(x, x.a) == []", "sortBy"),
        ("cel.bind(x, 1, x == 1)", "cel.bind"),
        ("base64.encode(b'a') == ''", "base64.encode"),
        (
            "timestamp('2024-05-06T07:08:09Z').getHours('Europe/Berlin') == 9",
            "getHours with the name of a time zone",
        ),
    ] {
        let fault = Program::compile(text, &[("self", Type::Dyn)]).map(|_| ()).unwrap_err();
        assert_eq!(fault, Fault::Lacking(function.to_owned()), "{text}");
    }
    let pattern = Program::compile("'a'.matches('\\\\p{Greek}')", &[]).map(|_| ()).unwrap_err();
    assert!(
        matches!(&pattern, Fault::Lacking(what) if what.starts_with("matches with the pattern")),
        "{pattern:?}"
    );
}

#[test]
fn nothing_costs_more_than_was_given() {
    let many: Vec<Value> = (0..2000).map(|number| json!(number)).collect();
    let long = "x".repeat(20_000);
    let value = json!({"many": many, "long": long});
    for text in [
        "self.many.all(a, self.many.all(b, self.many.all(c, a + b + c >= 0)))",
        "self.many.all(a, self.many.map(b, a).size() > 0)",
        "[self.long].map(a, a+a).map(a, a+a).map(a, a+a).map(a, a+a).map(a, a+a).map(a, a+a).map(a, a+a).map(a, a+a).map(a, a+a).map(a, a+a).size() > 0",
        "self.many.all(a, !self.long.matches('(x+x+)+y'))",
        "self.long.findAll('x*y|x').size() > 0",
        "self.many.all(a, !self.long.matches('(x{1,100}){1,20}y'))",
        "self.many.all(a, self.long.replace('x', self.long).size() > 0)",
        "self.many.all(a, self.many == self.many)",
        "self.many.all(a, self.long.split('').size() > 0)",
        "self.many.map(a, self.many).map(a, self.many).all(a, a == self.many)",
    ] {
        assert_eq!(answer(text, &value), Err("Budget".to_owned()), "{text}");
    }
}

#[test]
fn what_is_nested_too_deeply_is_refused() {
    for text in [
        format!("{}1{}", "(".repeat(3000), ")".repeat(3000)),
        format!("{}true", "!".repeat(3000)),
        format!("{}1", "-".repeat(3000)),
        format!("1{}", " + 1".repeat(3000)),
        format!("self{}", ".a".repeat(3000)),
        format!("{}{}", "[".repeat(3000), "]".repeat(3000)),
        format!("{}1", "true ? 1 : ".repeat(3000)),
    ] {
        let fault = Program::compile(&text, &[("self", Type::Dyn)]).map(|_| ()).unwrap_err();
        assert!(fault.message(&text).contains("recursion limit"), "{}", fault.message(&text));
    }
    let wide = format!("true{}", " && true".repeat(3000));
    assert_eq!(answer(&wide, &json!(null)), Ok(Answer::Bool(true)));
}
