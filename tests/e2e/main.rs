//! Whole installations: agents, cloud sides, brokers and kubectl as processes of their own.
#![cfg(feature = "cloud")]

#[path = "../cloudcore/mod.rs"]
mod cloudcore;
#[path = "../support/mod.rs"]
mod support;

mod check;
mod cloud_store;
mod crash;
mod database;
mod demo;
mod disk;
mod edge_status;
mod frames;
mod in_effect;
mod isolation;
mod javascript;
mod join;
mod kubectl;
mod kubectl_edge;
mod kubectl_nodes;
mod kubectl_read;
mod kubectl_rules;
mod kubectl_table;
mod kubectl_words;
mod kubectl_write;
mod kubeedge;
mod link;
mod nodes;
mod objects;
mod operator;
mod placements;
mod python;
mod readme;
mod seal;
mod service;
mod site;
mod upstream;
