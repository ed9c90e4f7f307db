use super::*;

#[test]
fn the_simulation_runs_with_the_default_configuration() {
    assert_eq!(cloud_config(&Config::default()), CloudConfig::defaults());
}
