//! Responses with every field set: the source of the fixtures, and a starting point for tests of
//! other crates.

mod agent;
mod cloud;

pub use agent::{
    check_report, files, files_check, files_summary, full_status, metered, rejected, seal, status, traffic,
    verification, waiting_for_link,
};
pub use cloud::{
    fleet_history, full_node, joined_node, label_keys, label_values, new_token, node_history, node_list,
    node_objects, not_in_effect, objects, operator_list, page, placed_object, placement, recorded_node,
    removed_node, rollout, rollout_of_rule, rollout_status, rules, served_node, summary, token_list,
};
