//! `explain-placement`: explains why an object is on a node, or is not.

use serde_json::Value;

use super::args_cloud::ExplainArgs;
use super::server::client;
use edgesync_admin::cloud::PlacementExplanation;
use edgesync_admin::{Route, read};
use edgesync_cli::apply::DEFAULT_NAMESPACE;
use edgesync_cli::output::{Output, Table, cell, render};
use edgesync_cli::{CliError, Kinds, Terminal};
use edgesync_object::Scope;
use edgesync_object::encoding::percent;

/// Runs `explain-placement`.
///
/// # Errors
/// Node, kind or object is unknown, or the request fails.
pub(super) async fn run(args: ExplainArgs, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let ExplainArgs { node, object, namespace, output, server } = args;
    let client = client(server).await?;
    let mut path = Route::Placement(&node).path();
    if let Some(object) = &object {
        let Some((word, name)) = object.split_once('/') else {
            return Err(CliError::Usage(format!(
                "invalid object '{object}': must be KIND/NAME, such as configmap/line-1"
            )));
        };
        let kind = Kinds::new(&client).by_word(word).await?;
        let namespace = match kind.scope {
            Scope::Cluster => "",
            Scope::Namespaced => namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE),
        };
        let query = [
            ("group", kind.group.as_str()),
            ("version", &kind.version),
            ("kind", &kind.kind),
            ("plural", &kind.plural),
            ("namespace", namespace),
            ("name", name),
        ];
        let query: Vec<String> =
            query.iter().map(|(field, value)| format!("{field}={}", percent(value))).collect();
        path.push_str(&format!("?{}", query.join("&")));
    }
    let answer: Value = client.get(&path).await?;
    let text = match output.output {
        Output::Yaml | Output::Json => render(&answer, output.output)?,
        _ => format_answer(&node, object.as_deref(), &read(&answer)?),
    };
    Ok(terminal.out.write_all(text.as_bytes())?)
}

/// Formats the answer, followed by the verdict of each rule.
fn format_answer(node: &str, named: Option<&str>, answer: &PlacementExplanation) -> String {
    let mut out = String::new();
    if let (Some(named), Some(object)) = (named, &answer.object) {
        let not = if object.desired { "" } else { "not " };
        out.push_str(&format!("{named}: {not}desired on node '{node}': {}\n", text(&object.state)));
        if let Some(facts) = &object.facts {
            for reason in &facts.because {
                out.push_str(&format!("  placed by: {}\n", text(reason)));
            }
            if let Some(held) = &facts.held {
                let (held, newest) = (text(held), text(&facts.version));
                out.push_str(&format!("  held version: {held}, newest version: {newest}\n"));
            }
        }
        out.push('\n');
    }
    if answer.rules.is_empty() {
        out.push_str("No placement rules.\n");
        return out;
    }
    let mut headers = vec!["rule", "node"];
    headers.extend(named.is_some().then_some("object"));
    let mut table = Table::new(headers);
    for rule in &answer.rules {
        let verdict = |mismatch: &Option<String>| mismatch.clone().unwrap_or_else(|| "selected".to_owned());
        let object = named.is_some().then(|| verdict(&rule.object_mismatch));
        table.row([text(&rule.rule), verdict(&rule.node_mismatch)].into_iter().chain(object));
    }
    out + &table.render()
}

/// Escapes control characters in foreign text.
fn text(text: &str) -> String {
    cell(&Value::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_admin::samples;

    #[test]
    fn the_state_of_the_object_precedes_the_rules() {
        let answer = samples::placement();
        let text = format_answer("edge-1", Some("cm/line-1"), &answer);
        assert!(
            text.starts_with("cm/line-1: desired on node 'edge-1': rejected by the node, TooLarge: no\n"),
            "{text}"
        );
        assert!(text.contains("  placed by: Placement plant/web\n"), "{text}");
        assert!(text.contains("\nPlacement plant/web             selected         selected\n"), "{text}");
        let text = format_answer("edge-1", None, &PlacementExplanation { rules: Vec::new(), ..answer });
        assert_eq!(text, "No placement rules.\n");
    }
}
