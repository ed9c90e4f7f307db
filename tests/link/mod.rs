//! The links and the endpoint, with real and scripted peers.

mod bad_peers;
mod broker_config;
mod client;
mod cloudcore_proxies;
mod cloudcore_replay;
mod cloudcore_server;
mod compact;
mod endpoint;
mod endpoint_raw;
mod haproxy;
mod inspecting;
mod kubeedge;
mod mosquitto;
mod shared_port;
mod tls;
mod ways;
