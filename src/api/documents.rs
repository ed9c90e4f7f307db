//! stub
use std::sync::Arc;
use hyper::Response;
use serde_json::Value;
use super::dispatch::Head;
use super::extension::Extension;
use super::kind::Kind;
use super::metrics::ApiMetrics;
use super::request::{Discovery, HealthRequest, OpenApi};
use super::response::ResponseBody;
use crate::object::status::Result;
pub(super) fn health(_: &HealthRequest, _: &[(&'static str, Result<()>)]) -> Response<ResponseBody> { Response::new(ResponseBody::Whole(None)) }
pub(super) fn metrics(_: &ApiMetrics, _: &impl Extension) -> Response<ResponseBody> { Response::new(ResponseBody::Whole(None)) }
pub(super) fn discovery(_: &[Arc<Kind>], _: &Discovery, _: &Head<'_>) -> Result<Response<ResponseBody>> { Ok(Response::new(ResponseBody::Whole(None))) }
pub(super) fn openapi(_: &[Arc<Kind>], _: &OpenApi, _: &Head<'_>) -> Result<Response<ResponseBody>> { Ok(Response::new(ResponseBody::Whole(None))) }
pub(super) fn version() -> Value { Value::Null }
