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
        "# mosquitto 2.0 for edgesync: nodes are identified by their certificates.
#
# To install:
#   - put all files into {directory}, readable by mosquitto's user only:
#       chown -R mosquitto {directory} && chmod 700 {directory} && chmod 600 {directory}/*
#   - make this file the whole configuration (/etc/mosquitto/mosquitto.conf), and restart mosquitto
#   - on the cloud side: broker.mode = \"external\", link.broker = \"mqtts://HOST:{port}\"
# The certificate is for {names}; it expires on {ends}: generate new files before.
#
# After 'edgesync-cloud node revoke': copy revoked.crl from enrollment.directory of the cloud side to {directory} and
# restart mosquitto. SIGHUP reloads the list for new connections only; existing connections stay open until
# a restart. The cloud side ignores all messages of a revoked node in any case.

# These settings do not apply to listeners added later.
per_listener_settings true

listener {port}
cafile {directory}/ca.crt
certfile {directory}/server.crt
keyfile {directory}/server.key
crlfile {directory}/revoked.crl
# TLS 1.2 or newer.
tls_version tlsv1.2
# The certificate identifies a client, not its CONNECT packet.
require_certificate true
use_identity_as_username true
use_username_as_clientid true
allow_anonymous false
acl_file {directory}/acl
max_connections {CONNECTIONS}
# Presence is retained. The access rules limit each client to its own topics, one message each.
retain_available true

# link.max_frame and the overhead of MQTT.
max_packet_size {max_packet}
# By default mosquitto drops messages of a client beyond 1,000 queued ones; here only the bytes limit the queue.
max_queued_messages 0
max_queued_bytes {QUEUED_BYTES}
max_inflight_messages {INFLIGHT}
max_keepalive {KEEPALIVE_SECONDS}
# Sessions end with their connections; edgesync keeps its own state. Leftover sessions expire after an hour.
persistent_client_expiration 1h
persistence false
# Otherwise a message may wait for an acknowledgement of TCP.
set_tcp_nodelay true
# No client reads $SYS.
sys_interval 0

# Collected by journald. Information covers start, listeners, and reloads of configuration and revocation list.
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
        "# Access rules by the common name of the certificate; everything else is forbidden. Patterns apply to all
# clients; %u is the common name, which is the name of the node. mosquitto warns that the last one has no %u:
# that is intended.
pattern write {prefix}/nodes/%u/up
pattern readwrite {prefix}/nodes/%u/presence
pattern read {prefix}/nodes/%u/down
pattern read {prefix}/cloud

# The cloud side. Names of nodes never contain a colon.
user {CLOUD}
topic read {prefix}/nodes/+/up
topic read {prefix}/nodes/+/presence
topic write {prefix}/nodes/+/down
topic readwrite {prefix}/cloud
"
    )
}
