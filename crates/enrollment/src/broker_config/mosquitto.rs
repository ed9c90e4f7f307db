//! Configuration of Eclipse Mosquitto 2.0.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{BrokerConfig, CONNECTIONS, INFLIGHT, KEEPALIVE_SECONDS, QUEUED_BYTES};
use edgesync_transport::tls::CLOUD;

pub(super) fn files(config: &BrokerConfig, ends: Timestamp) -> BTreeMap<String, String> {
    [("mosquitto.conf".to_owned(), configuration(config, ends)), ("acl".to_owned(), rules(config))].into()
}

fn configuration(config: &BrokerConfig, ends: Timestamp) -> String {
    let BrokerConfig { directory, port, max_packet, .. } = config;
    let names = config.names.join(", ");
    format!(
        "# mosquitto 2.0 for edgesync: nodes are told apart by their certificates.
#
# To install:
#   - put all files into {directory}, readable by mosquitto's user only:
#       chown -R mosquitto {directory} && chmod 700 {directory} && chmod 600 {directory}/*
#   - make this file the whole configuration (/etc/mosquitto/mosquitto.conf), and restart mosquitto
#   - tell the cloud side: broker.mode = \"external\", link.broker = \"mqtts://HOST:{port}\"
# The certificate is for {names}; it ends on {ends}: make new files before.
#
# After 'edgesync-cloud node revoke': copy revoked.crl from the cloud side's pairing directory to {directory} and
# restart mosquitto. SIGHUP is enough to have the list read for new connections; connections that exist go on until
# a restart. The cloud side listens to nothing that comes from a revoked node, whatever mosquitto does.

# Nothing here counts for a listener that somebody adds.
per_listener_settings true

listener {port}
cafile {directory}/ca.crt
certfile {directory}/server.crt
keyfile {directory}/server.key
crlfile {directory}/revoked.crl
# TLS 1.2 or newer.
tls_version tlsv1.2
# Who a client is stands in its certificate, whatever it says itself.
require_certificate true
use_identity_as_username true
use_username_as_clientid true
allow_anonymous false
acl_file {directory}/acl
max_connections {CONNECTIONS}
# Presence is retained. The rules let nobody retain anything but its own topics, one message each.
retain_available true

# link.max_frame and what MQTT adds.
max_packet_size {max_packet}
# Without a number mosquitto drops what a client is further behind than 1,000 messages; the bytes limit it instead.
max_queued_messages 0
max_queued_bytes {QUEUED_BYTES}
max_inflight_messages {INFLIGHT}
max_keepalive {KEEPALIVE_SECONDS}
# Sessions end with their connections; edgesync keeps its own state. What is left over goes after an hour.
persistent_client_expiration 1h
persistence false
# Without it a message may wait for an acknowledgement of TCP.
set_tcp_nodelay true
# Nobody may read $SYS.
sys_interval 0

# journald takes it from there. Information is: started, a listener, configuration and revocation list read anew.
log_dest stderr
log_type error
log_type warning
log_type notice
log_type information
connection_messages true
"
    )
}

fn rules(config: &BrokerConfig) -> String {
    let prefix = &config.prefix;
    format!(
        "# Who may do what, by the common name of the certificate. What is not here is forbidden. Patterns count for
# everybody; %u is the common name, which is the name of the node. mosquitto warns that the last one has no %u:
# that is meant.
pattern write {prefix}/nodes/%u/up
pattern readwrite {prefix}/nodes/%u/presence
pattern read {prefix}/nodes/%u/down
pattern read {prefix}/cloud

# The cloud side. No node can have a name with a colon.
user {CLOUD}
topic read {prefix}/nodes/+/up
topic read {prefix}/nodes/+/presence
topic write {prefix}/nodes/+/down
topic readwrite {prefix}/cloud
"
    )
}
