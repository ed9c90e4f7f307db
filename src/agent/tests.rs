use super::*;

#[test]
fn the_simulation_runs_with_the_default_configuration() {
    let defaults = EdgeConfig { agent: VERSION.into(), ..EdgeConfig::defaults("") };
    assert_eq!(edge_config(&Config::default()), defaults);
}
