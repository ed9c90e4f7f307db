//! Tests of expressions over JSON: results, errors, and limits of cost.

use serde_json::{Value, json};

use super::*;

/// Evaluates an expression over `self`, whose type is `dyn`.
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
fn operators_have_the_precedence_of_cel() {
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
fn macros_evaluate_each_item() {
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
fn absent_fields_differ_from_present_ones() {
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
fn strings_have_their_functions() {
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
        // Numbers beyond 32 and 64 bits are the same precision on every machine.
        "'%.4294967296f'.format([0.5]).size() == 102 && '%.99999999999999999999f'.format([0.5]).size() == 102",
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
fn kubernetes_types_have_their_functions() {
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
fn type_errors_are_found_at_compile_time() {
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
        ("self.name == 'a", "Syntax error: unterminated string literal"),
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
fn unsupported_functions_differ_from_errors() {
    for (text, function) in [
        ("math.greatest(1, 2) == 2", "math.greatest"),
        ("[[1]].flatten() == [1]", "flatten"),
        ("self.sortBy(x, x.a) == []", "sortBy"),
        ("cel.bind(x, 1, x == 1)", "cel.bind"),
        ("base64.encode(b'a') == ''", "base64.encode"),
        ("optional.unwrap([optional.of(1)]) == [1]", "optional.unwrap"),
        ("[optional.of(1)].unwrapOpt() == [1]", "unwrapOpt"),
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
fn evaluation_never_exceeds_its_budget() {
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
fn too_deep_expressions_are_refused() {
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

/// Returns the type of a compiled expression, or its error.
fn fault(text: &str) -> String {
    Program::compile(text, &[("self", Type::Dyn)]).map_or_else(|fault| fault.message(text), |_| String::new())
}

#[test]
fn leading_dots_do_not_nest() {
    assert!(fault(&".".repeat(100_000)).contains("expecting IDENTIFIER"));
    assert!(fault(&format!("{}self", ".".repeat(90_000))).contains("expecting IDENTIFIER"));
    assert_all_hold(&[".self == 1 && [.self] == [1]"], &json!(1));
    // The deepest allowed expression, with the longest path at each level.
    let deep = format!("{}1{}", "true ? 1 : 1 < 1 + 1 * -[".repeat(15), "]".repeat(15));
    assert!(!fault(&deep).contains("recursion"), "{}", fault(&deep));
}

#[test]
fn types_have_bounded_size() {
    // Each one doubles the previous one.
    let doubled = |value: &str| format!("[1]{}", format!(".map(a, {{{value}: a}})").repeat(40));
    for text in [
        format!("{} + 1 == 1", doubled("a")),
        format!("{0} == {0}", doubled("a")),
        format!("{} + 1 == 1", doubled("dyn(a)")),
    ] {
        let said = fault(&text);
        assert!(said.len() < 1000, "{}", said.len());
    }
    assert!(fault("{[1]: 1} == {[1]: 1}").contains("unsupported key type: list(int)"));
    assert!(fault("{1.5: 1}.size() == 1").contains("unsupported key type: double"));
    assert!(fault("{null: 1}.size() == 1").contains("unsupported key type: null"));
    assert_all_hold(&["{1: 1, 'a': 2u, true: 3, 4u: 5}.size() == 4"], &json!(null));
    let lists = answer("{self: 1}.size() == 1", &json!([1]));
    assert_eq!(lists, Err("Failed(\"unsupported key type: list\")".to_owned()));
}

#[test]
fn nesting_of_computed_values_is_bounded() {
    let inner = format!("[a]{}", format!(".map(b, {}b{})", "[".repeat(40), "]".repeat(40)).repeat(27));
    let outer = format!("[0]{}", format!(".map(a, {inner})").repeat(28));
    let optional = format!(
        "optional.of(1){}",
        format!(".optMap(a, optional.of(a){})", ".optMap(b, [[[[b]]]])".repeat(60)).repeat(30)
    );
    for nested in [&*outer, &*optional] {
        for text in [
            format!("{nested} + 1"),
            format!("dyn({nested}) + 1 == 1"),
            format!("{nested} == {nested}"),
            format!("'%s'.format([{nested}]) == ''"),
            format!("[{nested}].size() == 1"),
        ] {
            let found = answer(&text, &json!(null));
            let said = found.expect_err("too deep");
            assert!(said.len() < 2000, "{}", said.len());
        }
    }
    // All operations work up to that limit.
    let list = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let deep =
        format!("{}{}", list(45), format!(".map(a, {})", list(0).replace('1', "[[[[a]]]]")).repeat(12));
    let texts = [
        format!("{deep} == {deep}"),
        format!("'%s'.format([{deep}]).size() > 90"),
        format!("{deep}.map(a, a).size() == 1"),
    ];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_all_hold(&texts, &json!(null));
}

#[test]
fn memory_of_patterns_is_bounded() {
    let groups = "()".repeat(2000);
    assert!(fault(&format!("''.matches('{groups}')")).contains("must have less than 50 groups"));
    let made = answer("''.matches(self)", &json!(groups)).unwrap_err();
    assert!(made.contains("must have less than 50 groups"), "{made}");
    // Each pattern is different and large.
    let text = "self.all(a, !''.matches('(x{1,100}){1,20}' + string(a)))";
    let many: Vec<Value> = (0..100).map(|number| json!(number)).collect();
    assert_eq!(answer(text, &json!(many)), Err("Budget".to_owned()));
    let written: Vec<String> =
        (0..100).map(|number| format!("''.matches('(x{{1,100}}){{1,20}}{number}')")).collect();
    assert!(fault(&written.join(" || ")).contains("too complex to check"));
    // Common patterns are cached.
    let common = "self.all(a, 'a.b-c'.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'))";
    assert_all_hold(&[common], &json!(many));
    assert!(pattern(&groups).is_err() && pattern("^(a|b)+$").is_ok());
}

/// Evaluates an expression over a `self` of a type.
fn answer_of(text: &str, of: &Type, value: &Value) -> Result<Answer, String> {
    let program = Program::compile(text, &[("self", of.clone())]).map_err(|fault| fault.message(text))?;
    let run = program.run(&[("self", of, Some(value))], &mut Meter::new(1_000_000), &mut Regexes::default());
    run.map_err(|failure| format!("{failure:?}"))
}

#[test]
fn repeated_parsing_of_strings_costs_steps() {
    let long = "A".repeat(200_000);
    let ten = "[0,1,2,3,4,5,6,7,8,9]";
    for (text, of, value) in [
        (format!("{ten}.all(a, self[0].size() > 0)"), Type::list(Type::Bytes), &*long),
        (format!("{ten}.all(a, self['k'].size() > 0)"), Type::map(Type::Text, Type::Bytes), &*long),
        (format!("{ten}.all(a, string(b'{}').size() > 0)", "A".repeat(90_000)), Type::Dyn, ""),
    ] {
        let value = match &of {
            Type::List(_) => json!([value]),
            Type::Map(_) => json!({"k": value}),
            _ => json!(value),
        };
        let mut meter = Meter::new(1_000_000);
        let program = Program::compile(&text, &[("self", of.clone())]).unwrap();
        let run = program.run(&[("self", &of, Some(&value))], &mut meter, &mut Regexes::default());
        let spent = 1_000_000 - meter.left();
        let read = if value == json!("") { 90_000 } else { 200_000 };
        assert!(spent > 10 * read / 16, "{}: {spent}, {run:?}", &text[..40]);
    }
    // A literal is not copied for each item.
    let literal = format!("self.all(a, b'{}'.size() > 0)", "A".repeat(90_000));
    let many = json!(vec![0; 30_000]);
    assert_eq!(answer(&literal, &many), Ok(Answer::Bool(true)));
}

#[test]
fn functions_cost_the_size_of_their_arguments() {
    let long = "A".repeat(1_000_000);
    let query: String = (0..40_000).map(|number| format!("&k{number}=")).collect();
    let value = json!({
        "long": long,
        "url": format!("https://host/{long}"),
        "query": format!("/?{query}"),
        "texts": [long, long],
        "one": {"list": vec![0; 1000], long.clone(): 1},
        "times": vec![0; 200],
        "version": format!("1.0.0-{}", "a.".repeat(100_000) + "a"),
    });
    for text in [
        "self.times.all(a, !''.contains(self.long))",
        "self.times.all(a, 'a'.startsWith(self.long) || true)",
        "self.times.all(a, ''.replace('a', self.long) == '')",
        "self.times.all(a, self.texts.isSorted())",
        "self.times.all(a, self.texts.min() == '' || true)",
        "self.times.all(a, self.texts.sort().size() == 2)",
        "self.times.all(a, self.long < self.long || true)",
        "self.times.all(a, bytes(self.long) < bytes(self.long) || true)",
        "[url(self.url)].all(u, self.times.all(a, u.getEscapedPath() != ''))",
        "[url(self.url)].all(u, self.times.all(a, u == u))",
        "[url(self.query)].all(u, self.times.all(a, u.getQuery().size() > 0))",
        "[semver(self.version)].all(v, self.times.all(a, !v.isLessThan(v)))",
        "self.times.all(a, self.times.all(b, self[self.long] == 1 || true))",
        "self.times.all(a, int(self.long) == 1 || true)",
        "self.times.all(a, '%x'.format([self.long]) != '')",
    ] {
        assert_eq!(answer(text, &value), Err("Budget".to_owned()), "{text}");
    }
    // A query is parsed once, not once for each name.
    assert_all_hold(&["url(self.query).getQuery().size() == 40000"], &value);
    let object = Type::Object(std::sync::Arc::new(ObjectOf::default()));
    assert_eq!(
        answer_of(
            "[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, self == self))",
            &object,
            &value
        ),
        Err("Budget".to_owned())
    );
}

#[test]
fn failures_truncate_texts() {
    let long = "A".repeat(10_000);
    let value = json!({"long": long});
    for text in [
        "self[self.long] == 1",
        "int(self.long) == 1",
        "bool(self.long)",
        "double(self.long) == 1.0",
        "timestamp(self.long) == timestamp(self.long)",
        "duration(self.long) == duration('1s')",
        "url(self.long) == url('/')",
        "ip.isCanonical(self.long)",
        "cidr('10.0.0.0/8').containsIP(self.long)",
        "cidr('10.0.0.0/8').containsCIDR(self.long)",
        "quantity(self.long).isInteger()",
        "''.matches('[' + self.long.substring(0, 4000))",
    ] {
        let said = answer(text, &value).unwrap_err();
        assert!(said.len() < 300 && said.starts_with("Failed"), "{text}: {said}");
    }
}

#[test]
fn errors_show_their_surroundings() {
    let before = "true && ".repeat(5000);
    let said = fault(&format!("{before}foo && {before}true"));
    assert!(said.starts_with("ERROR: <input>:1:40001: undeclared reference to 'foo'"), "{said}");
    assert!(said.len() < 600 && said.contains("true && foo && true"), "{said}");
    let marked: Vec<&str> = said.lines().collect();
    assert_eq!(marked[1].find("foo"), marked[2].find('^'), "{said}");
    assert!(fault(&format!("''.matches('\\\\p{{{}}}')", "x".repeat(4000))).len() < 400);
    assert!(fault(&"x".repeat(90_000)).len() < 600);
    assert!(fault(&format!("{:?} 1", "x".repeat(90_000))).len() < 600);
    assert!(fault(&format!("[].size({})", vec!["1"; 40_000].join(","))).len() < 600);
}

#[test]
fn sort_requires_items_of_one_type() {
    let mixed: Vec<Value> =
        (0..100).map(|n| if n % 3 == 0 { json!(n) } else { json!(format!("{n}")) }).collect();
    let said = answer("self.sort().size() > 0", &json!(mixed)).unwrap_err();
    assert!(said.contains("no such overload: sort of int and string"), "{said}");
    let numbers = "self.map(a, a % 2 == 0 ? double(a) : 0.0 / 0.0).sort().size() > 0";
    assert!(
        answer(numbers, &json!((0..100).collect::<Vec<i64>>())).unwrap_err().contains("no such overload")
    );
    let near =
        "self.map(a, a % 2 == 0 ? dyn(9007199254740992.0) : dyn(9007199254740992 + a)).sort().size() > 0";
    assert!(answer(near, &json!((0..100).collect::<Vec<i64>>())).unwrap_err().contains("no such overload"));
    assert_all_hold(
        &[
            "['b', 'a'].sort() == ['a', 'b'] && [].sort() == [] && [2.0, 1.0].sort() == [1.0, 2.0] && [true, false].sort()[0] == false",
        ],
        &json!(null),
    );
}

#[test]
fn type_checking_is_bounded() {
    let fields = |number: usize| {
        let fields = (0..number).map(|n| format!("f{n}").into());
        let object = ObjectOf {
            fields: fields
                .map(|name: std::sync::Arc<str>| (name.clone(), FieldOf { name, of: Type::Int }))
                .collect(),
        };
        Type::Object(std::sync::Arc::new(object))
    };
    let two = [("self", fields(20_000)), ("other", fields(20_000))];
    let items = vec!["self"; 15_000].join(",");
    assert!(Program::compile(&format!("[{items}] == [{items}].map(a, a)"), &two).is_err(), "too long");
    let items = vec!["self, other"; 6_000].join(",");
    assert!(Program::compile(&format!("[{items}].size() > 0"), &two).is_ok());
    assert!(Program::compile("self == self && [self] == [self]", &two).is_ok());
    // Objects declared at different places have different types.
    assert!(Program::compile("self == other", &two).is_err());
}

#[test]
fn duration_accessors_return_the_whole_duration() {
    let texts = [
        "duration('1h0m1.5s').getMilliseconds() == 3601500 && duration('-1.5s').getMilliseconds() == -1500",
        "timestamp('2024-05-06T07:08:09.250Z').getMilliseconds() == 250",
    ];
    assert_all_hold(&texts, &json!(null));
}

#[test]
fn empty_sum_has_the_type_of_the_items() {
    let texts = [
        "[1.5].filter(a, a > 2.0).sum() == 0.0 && [1u].filter(a, false).sum() + 1u == 1u",
        "[1].filter(a, false).sum() + 1 == 1 && [].sum() == 0",
        "[duration('1s')].filter(a, false).sum() + duration('1m') == duration('60s')",
    ];
    assert_all_hold(&texts, &json!(null));
    let numbers = Type::list(Type::Double);
    assert_eq!(answer_of("self.sum() + 0.5 == 0.5", &numbers, &json!([])), Ok(Answer::Bool(true)));
}

#[test]
fn invalid_syntax_is_refused() {
    for text in [
        "'a'.startsWith('a',)",
        "size([1],) == 1",
        "'\\x+1' == ''",
        "'\\u+123' == ''",
        "1e999 == 1.0",
        "self.all(a, true,)",
    ] {
        assert!(fault(text).contains("Syntax error"), "{text}: {}", fault(text));
    }
    assert!(fault("timestamp('2024-05-06T07:08:09Z').getHours('+02:-5') == 1").contains("not evaluated"));
    for text in
        ["timestamp('2024-01-01').getHours() == 0", "'%5d'.format([1]) == ''", "'%5s'.format(['a']) == ''"]
    {
        assert!(answer(text, &json!(null)).is_err(), "{text}");
    }
    let texts = [
        "bool('T') && !bool('F') && [1, 2,].size() == 2 && {'a': 1,}.size() == 1",
        "string(1000000.0) == '1e+06' && string(123456.5) == '123456.5' && string(0.00001) == '1e-05'",
        "string(100000.0) == '100000' && string(-1.5) == '-1.5' && string(0.0) == '0'",
        "'aéa'.lastIndexOf('a', 1) == 0 && 'aéa'.lastIndexOf('a', 2) == 2 && 'éé'.lastIndexOf('é', 0) == 0",
        "'ab€b'.lastIndexOf('b', 2) == 1 && 'x€'.lastIndexOf('€', 0) == -1",
    ];
    assert_all_hold(&texts, &json!(null));
    // A date is a time if the schema declares it.
    assert_eq!(
        answer_of("self.getFullYear() == 2024", &Type::Time, &json!("2024-01-01")),
        Ok(Answer::Bool(true))
    );
}
