//! The part of the configuration that the loop reads, converted for it.

use std::sync::Arc;

use super::node::EventRate;
use crate::config::Config;
use crate::source::MAX_BODIES;
use edgesync_object::OmittedFields;
use edgesync_protocol::cloud::CloudConfig;

/// Settings of the loop; see the module. Limits are in bytes.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The configuration of each node's machine.
    pub(super) machine: Arc<CloudConfig>,
    /// Parts of objects that are not sent to nodes.
    pub(super) left_out: OmittedFields,
    /// Frames larger than this are compressed.
    pub(super) compress_above: usize,
    pub(super) max_frame: usize,
    /// `nodes.trusted_labels` as of the start; a reload keeps it.
    pub(super) trusted_labels: Vec<String>,
    /// `nodes.metrics_per_node` as of the last reload.
    pub(super) metrics_per_node: bool,
    /// The rate of each node's Events.
    pub(super) events: EventRate,
}

impl Settings {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            machine: Arc::new(cloud_config(config)),
            left_out: OmittedFields {
                managed_fields: config.sync.strip_managed_fields,
                last_applied: config.sync.strip_last_applied,
            },
            compress_above: config.sync.compress_above.unwrap_or(usize::MAX),
            max_frame: config.link.max_frame,
            trusted_labels: config.nodes.trusted_labels.clone(),
            metrics_per_node: config.nodes.metrics_per_node,
            events: EventRate {
                burst: u32::try_from(config.nodes.event_burst).unwrap_or(u32::MAX),
                refill: config.nodes.event_refill,
            },
        }
    }

    /// Applies a reloaded configuration. The largest frame and the trusted labels stay until the
    /// next start.
    pub(super) fn reload(&mut self, config: &Config) {
        let (max_frame, trusted_labels) = (self.max_frame, std::mem::take(&mut self.trusted_labels));
        *self = Self { max_frame, trusted_labels, ..Self::new(config) };
    }
}

fn cloud_config(config: &Config) -> CloudConfig {
    CloudConfig {
        window_objects: config.sync.window_objects,
        window_bytes: config.sync.window_bytes,
        frame_objects: config.sync.frame_objects.min(MAX_BODIES),
        max_frame: u32::try_from(config.link.max_frame).unwrap_or(u32::MAX),
        resend_min: config.sync.resend_min,
        resend_max: config.sync.resend_max,
        reject_retry_min: config.sync.resend_max,
        reject_retry_max: config.sync.resend_max * 12,
        answer_timeout: config.sync.resend_min * 2,
        mass_delete_share: config.sync.mass_delete_share,
        mass_delete_min: config.sync.mass_delete_min as u64,
        max_unknown: config.sync.max_unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_configuration_equals_that_of_the_simulation() {
        assert_eq!(cloud_config(&Config::default()), CloudConfig::defaults());
    }

    #[test]
    fn reload_keeps_the_largest_frame_and_the_trusted_labels() {
        let mut config = Config::default();
        let mut settings = Settings::new(&config);
        let max_frame = settings.max_frame;
        config.link.max_frame += 1;
        config.nodes.trusted_labels.push("another".into());
        config.nodes.metrics_per_node = !config.nodes.metrics_per_node;
        settings.reload(&config);
        assert_eq!((settings.max_frame, settings.trusted_labels.len()), (max_frame, 0));
        assert_eq!(settings.metrics_per_node, config.nodes.metrics_per_node);
    }
}
