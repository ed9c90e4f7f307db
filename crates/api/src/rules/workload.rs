//! Workloads: Deployments and similar kinds, Jobs, CronJobs, autoscalers and disruption budgets.
//! Pure.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::causes::{Causes, Path};
use super::cron::{check_schedule, check_time_zone};
use super::pod::{ALWAYS, UNTIL_DONE, check_template, check_template_with};
use super::{items, map, text};
use edgesync_object::{LabelSelector, Labels, Object, Selector};

/// Maximum length of the name of a CronJob, in bytes: its Jobs append eleven.
const MAX_CRON_JOB_NAME: usize = 52;

/// Checks a Deployment, ReplicaSet, DaemonSet or StatefulSet.
pub(super) fn check(spec: &Map<String, Value>, causes: &mut Causes) {
    let at = Path::new("spec");
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        causes.not_negative(&at, spec, field);
    }
    let template = map(spec, "template");
    check_selector(spec, &at, &template_labels(template), causes);
    let claims: Vec<&str> =
        items(spec, "volumeClaimTemplates").map(|(_, claim)| text(map(claim, "metadata"), "name")).collect();
    check_template_with(template, &at.field("template"), ALWAYS, &claims, causes);
}

fn template_labels(template: &Map<String, Value>) -> Labels {
    let labels = map(map(template, "metadata"), "labels").iter();
    labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Checks that the selector is valid, not empty, and selects the Pods of the template.
fn check_selector(spec: &Map<String, Value>, at: &Path, labels: &Labels, causes: &mut Causes) {
    let Some(selector) = spec.get("selector") else {
        return causes.required(&at.field("selector"), "must select the Pods of the template");
    };
    let at_selector = at.field("selector");
    let shown = selector.to_string();
    let Ok(structured) = LabelSelector::deserialize(selector) else {
        return causes.invalid(&at_selector, &shown, "must be a label selector");
    };
    match Selector::try_from(structured) {
        Err(error) => causes.invalid(&at_selector, &shown, &error.to_string()),
        Ok(selector) if selector.is_empty() => {
            causes.invalid(&at_selector, &shown, "must not be empty");
        }
        Ok(selector) if !selector.matches(labels) => {
            let at = at.field("template").field("metadata").field("labels");
            let shown = serde_json::to_string(labels).unwrap_or_default();
            causes.invalid(&at, &shown, "must be selected by `selector`");
        }
        Ok(_) => {}
    }
}

/// Checks a ReplicationController, whose selector is a plain map of labels.
pub(super) fn check_controller(spec: &Map<String, Value>, causes: &mut Causes) {
    let at = Path::new("spec");
    causes.not_negative(&at, spec, "replicas");
    causes.not_negative(&at, spec, "minReadySeconds");
    let template = map(spec, "template");
    let labels = template_labels(template);
    let selector = map(spec, "selector");
    let selects = |(key, value): (&String, &Value)| value.as_str() == labels.get(key).map(String::as_str);
    if !selector.is_empty() && !selector.iter().all(selects) {
        let at = at.field("template").field("metadata").field("labels");
        let shown = serde_json::to_string(&labels).unwrap_or_default();
        causes.invalid(&at, &shown, "must be selected by `selector`");
    }
    check_template(template, &at.field("template"), ALWAYS, causes);
}

/// Checks a Job spec.
pub(super) fn check_job(spec: &Map<String, Value>, at: &Path, causes: &mut Causes) {
    for field in
        ["parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"]
    {
        causes.not_negative(at, spec, field);
    }
    causes.choice(at, spec, "completionMode", &["NonIndexed", "Indexed"]);
    let template = map(spec, "template");
    if spec.contains_key("selector") {
        check_selector(spec, at, &template_labels(template), causes);
    }
    check_template(template, &at.field("template"), UNTIL_DONE, causes);
}

pub(super) fn check_cron_job(object: &Object, causes: &mut Causes) {
    let (spec, at) = (map(object.fields(), "spec"), Path::new("spec"));
    if object.name().len() > MAX_CRON_JOB_NAME {
        let must = format!("must be at most {MAX_CRON_JOB_NAME} bytes");
        causes.invalid(&Path::new("metadata.name"), object.name(), &must);
    }
    let schedule = text(spec, "schedule");
    if schedule.is_empty() {
        causes.required(&at.field("schedule"), "must not be empty");
    } else {
        causes.name(&at.field("schedule"), schedule, check_schedule(schedule));
    }
    if let Some(zone) = spec.get("timeZone").and_then(Value::as_str) {
        causes.name(&at.field("timeZone"), zone, check_time_zone(zone));
    }
    causes.choice(&at, spec, "concurrencyPolicy", &["Allow", "Forbid", "Replace"]);
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        causes.not_negative(&at, spec, field);
    }
    let job = map(map(spec, "jobTemplate"), "spec");
    check_job(job, &at.field("jobTemplate").field("spec"), causes);
}

pub(super) fn check_autoscaler(spec: &Map<String, Value>, causes: &mut Causes) {
    let at = Path::new("spec");
    causes.range(&at, spec, "minReplicas", 0..=i64::MAX);
    causes.range(&at, spec, "maxReplicas", 1..=i64::MAX);
    let least = spec.get("minReplicas").and_then(Value::as_i64).unwrap_or(1);
    if let Some(most) = spec.get("maxReplicas").and_then(Value::as_i64)
        && most < least
    {
        let must = "must be greater than or equal to `minReplicas`";
        causes.invalid(&at.field("maxReplicas"), &most.to_string(), must);
    }
    for field in ["kind", "name"] {
        if text(map(spec, "scaleTargetRef"), field).is_empty() {
            causes.required(&at.field("scaleTargetRef").field(field), "must not be empty");
        }
    }
}

pub(super) fn check_budget(spec: &Map<String, Value>, causes: &mut Causes) {
    let at = Path::new("spec");
    if spec.contains_key("minAvailable") && spec.contains_key("maxUnavailable") {
        let shown = spec.get("maxUnavailable").map(ToString::to_string).unwrap_or_default();
        let must = "must be absent when `minAvailable` is there";
        causes.invalid(&at.field("maxUnavailable"), &shown, must);
    }
    causes.not_negative(&at, spec, "minAvailable");
    causes.not_negative(&at, spec, "maxUnavailable");
}
